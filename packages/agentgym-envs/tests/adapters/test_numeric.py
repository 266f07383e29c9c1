"""Worlds as numbers: an index plays its text, counts are counts, and a survey finds what there is."""

from __future__ import annotations

import numpy as np
import pytest
from agentgym_envs import make
from agentgym_envs.adapters.numeric import BagOfWords, DiscreteActions, survey
from door_world import Door

pytestmark = pytest.mark.quick

LEVEL = {"levels": "GoToRedBallGrey", "max_episode_steps": 4, "available_actions_in_text": False}


def test_an_index_plays_its_text() -> None:
    env = DiscreteActions(Door(), ["open", "knock", "sing"])
    env.reset(options={"task": "door/train/1"})
    assert env.step(2)[4]["valid"] is False
    observation, reward, *_, info = env.step(np.int64(1))
    assert (observation, reward, info["action"]) == ("You knocked 1 times.", 0.5, "knock")
    assert env.step(0)[2]
    for index in (3, -1):
        with pytest.raises(IndexError, match=f"no action {index}; actions are 0 to 2"):
            env.step(index)


@pytest.mark.parametrize(("actions", "said"), [([], "at least one"), (["a", "b", "a"], "'a' occurs more than once")])
def test_a_list_of_actions_has_each_once(actions: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DiscreteActions(Door(), actions)


def test_masks_say_what_is_possible_now() -> None:
    env = DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), ["turn left", "fly", "drop"])
    _, info = env.reset(seed=3)
    assert "drop" not in info["available_actions"]
    assert env.action_masks().tolist() == [True, False, False]
    unlisted = DiscreteActions(Door(), ["open", "knock"])
    unlisted.reset()
    assert unlisted.action_masks().tolist() == [True, True]
    none_of_them = DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), ["fly", "sing"])
    none_of_them.reset(seed=3)
    assert none_of_them.action_masks().all()


def test_words_are_counted_and_the_goal_goes_on_being_said() -> None:
    env = BagOfWords(Door(), ["knock", "times", "knocked"], goal=True)
    first, _ = env.reset(options={"task": "door/train/2"})
    assert first.tolist() == [1, 1, 0, 1, 1, 0]
    assert env.step("knock")[0].tolist() == [0, 1, 1, 1, 1, 0]
    assert env.reset(options={"task": "door/train/3"})[0].tolist() == [1, 1, 0, 1, 1, 0]
    assert BagOfWords(Door(), ["knock"]).reset()[0].tolist() == [1]


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "at least one"), (["a", "a"], "no duplicates"), (["Knock"], "'Knock' is not a single word")],
)
def test_words_are_those_that_can_be_met(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BagOfWords(Door(), words)


def test_a_survey_finds_what_there_is_and_the_same_each_time() -> None:
    met = survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=20)
    assert {"turn left", "go to red ball 1", "move forward"} <= set(met.actions)
    assert {"red", "grey", "wall", "goal"} <= set(met.words)
    assert met == survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=20)
    assert list(met.actions) == sorted(set(met.actions))
    assert met.words != survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=1).words


def test_a_survey_says_where_it_can_find_nothing() -> None:
    with pytest.raises(ValueError, match="doesn't list its available actions"):
        survey(Door())
    with pytest.raises(ValueError, match="at least 1 episode"):
        survey(Door(), episodes=0)


def test_what_is_seen_and_done_is_in_the_spaces() -> None:
    met = survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=5)
    env = BagOfWords(DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), met.actions), met.words, goal=True)
    env.action_space.seed(0)
    assert env.reset(seed=0)[0] in env.observation_space
    for _ in range(3):
        assert env.step(env.action_space.sample())[0] in env.observation_space
