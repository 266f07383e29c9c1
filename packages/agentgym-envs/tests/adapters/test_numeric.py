"""Tests of the numeric adapters: discrete actions, bags of words and `survey`."""

from __future__ import annotations

import numpy as np
import pytest
from agentgym_envs import make
from agentgym_envs.adapters.numeric import BagOfWords, DiscreteActions, survey
from door_world import Door

pytestmark = pytest.mark.quick

LEVEL = {"levels": "GoToRedBallGrey", "max_episode_steps": 4, "available_actions_in_text": False}


def test_action_index_plays_the_action_text() -> None:
    env = DiscreteActions(Door(), ["open", "knock", "sing"])
    env.reset(options={"task": "door/train/1"})
    assert env.step(2)[4]["valid"] is False
    observation, reward, *_, info = env.step(np.int64(1))
    assert (observation, reward, info["action"]) == ("You knocked 1 times.", 0.5, "knock")
    assert env.step(0)[2]
    for index in (3, -1):
        with pytest.raises(IndexError, match=f"no action {index}; actions are 0 to 2"):
            env.step(index)


@pytest.mark.parametrize(("actions", "message"), [([], "at least one"), (["a", "b", "a"], "'a' occurs more than once")])
def test_empty_and_duplicate_actions_are_rejected(actions: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiscreteActions(Door(), actions)


def test_action_masks_follow_the_available_actions() -> None:
    env = DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), ["turn left", "fly", "drop"])
    _, info = env.reset(seed=3)
    assert "drop" not in info["available_actions"]
    assert env.action_masks().tolist() == [True, False, False]
    without_list = DiscreteActions(Door(), ["open", "knock"])
    without_list.reset()
    assert without_list.action_masks().tolist() == [True, True]
    none_available = DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), ["fly", "sing"])
    none_available.reset(seed=3)
    assert none_available.action_masks().all()


def test_words_are_counted_and_the_goal_stays_in_observations() -> None:
    env = BagOfWords(Door(), ["knock", "times", "knocked"], goal=True)
    first, _ = env.reset(options={"task": "door/train/2"})
    assert first.tolist() == [1, 1, 0, 1, 1, 0]
    assert env.step("knock")[0].tolist() == [0, 1, 1, 1, 1, 0]
    assert env.reset(options={"task": "door/train/3"})[0].tolist() == [1, 1, 0, 1, 1, 0]
    assert BagOfWords(Door(), ["knock"]).reset()[0].tolist() == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "at least one"), (["a", "a"], "no duplicates"), (["Knock"], "'Knock' is not a single word")],
)
def test_invalid_vocabularies_are_rejected(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BagOfWords(Door(), words)


def test_survey_collects_actions_and_words_deterministically() -> None:
    result = survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=20)
    assert {"turn left", "go to red ball 1", "move forward"} <= set(result.actions)
    assert {"red", "grey", "wall", "goal"} <= set(result.words)
    assert result == survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=20)
    assert list(result.actions) == sorted(set(result.actions))
    assert result.words != survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=1).words


def test_survey_needs_available_actions_and_episodes() -> None:
    with pytest.raises(ValueError, match="doesn't list its available actions"):
        survey(Door())
    with pytest.raises(ValueError, match="at least 1 episode"):
        survey(Door(), episodes=0)


def test_observations_and_actions_are_in_the_spaces() -> None:
    result = survey(make("agentgym/BabyAI-v0", **LEVEL), episodes=5)
    env = BagOfWords(DiscreteActions(make("agentgym/BabyAI-v0", **LEVEL), result.actions), result.words, goal=True)
    env.action_space.seed(0)
    assert env.reset(seed=0)[0] in env.observation_space
    for _ in range(3):
        assert env.step(env.action_space.sample())[0] in env.observation_space
