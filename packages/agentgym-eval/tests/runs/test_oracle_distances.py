"""Tests of the expert's distances and of the causes of failure, on episodes played in three environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest
from agentgym_envs import EnvFault, Episode, EpisodeSpec, Feedback, Policy, Reply, TurnContext, make, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.episodes.replay import ReplayDeviation, replay
from agentgym_eval.metrics.failure_causes import KINDS, FailureCause, failure_cause
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.runs.oracle_distances import DistanceMeter, can_measure, measure, measure_run, recorded_distances
from agentgym_eval.storage.distances import distances_file, read_distances, write_distances
from counting_world import Count
from viewer_runs import write_episodes, write_evaluation_run

WORLDS = ("agentgym/TextCraft-v0", "agentgym/BabyAI-v0", "agentgym/SearchQA-v0")
AGENT = {"agentgym/SearchQA-v0": "tags"}


class Says(Policy):
    """Replies with what a function makes of the number of the turn."""

    name = "says"

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text, self._turn = text, -1

    async def reply(self, context: TurnContext) -> Reply:
        self._turn += 1
        return Reply(self._text(self._turn))


def tasks_of(world: str, number: int) -> list[str]:
    with closing(make(world)) as env:
        tasks = text_env(env).tasks.test
        return [tasks[at].id for at in range(0, len(tasks), max(1, len(tasks) // number))][:number]


def episode_of(world: str, task: str, policy: Policy, horizon: int, *, agent: str = "") -> Episode:
    wrapped = Agent.parse(agent or AGENT.get(world, "react")).wrap(make(world, max_episode_steps=horizon))
    with closing(wrapped) as env:
        return play(env, policy, EpisodeSpec(task, seed=0, split="test"), horizon=horizon)


def policy_of(name: str) -> Policy:
    return find_policy(name)(temperature=1.0, seed=0, max_tokens=64)


def distances_of(world: str, episodes: Sequence[Episode]) -> list[Sequence[int | None]]:
    with closing(make(world)) as env:
        meter = DistanceMeter(text_env(env), 0)
        return [meter.distances(episode) for episode in episodes]


@pytest.mark.parametrize("world", WORLDS)
def test_the_expert_comes_one_action_nearer_with_each_of_its_actions(world: str) -> None:
    solved = 0
    for task in tasks_of(world, 5):
        whole = episode_of(world, task, policy_of("oracle"), 60)
        if not whole.success:
            continue
        solved += 1
        cut = episode_of(world, task, policy_of("oracle"), max(1, whole.acts - 1))
        distances, partly = distances_of(world, [whole, cut])
        assert list(distances) == list(range(whole.acts, -1, -1))
        if whole.acts > 1:
            assert list(partly) == list(range(whole.acts, 0, -1))
            cause = failure_cause(cut, distances=partly)
            assert cause is not None
            assert (cause.kind, cause.turn) == ("turn_budget", cut.acts - 1)  # it was on its way to the last turn
    assert solved >= 4


@pytest.mark.parametrize("world", WORLDS)
def test_every_failed_episode_of_policies_without_skill_has_a_cause(world: str) -> None:
    causes: list[tuple[str, FailureCause]] = []
    for task in tasks_of(world, 4):
        kinds: dict[str, Policy] = {"rambling": Says(lambda at: f"I wonder {at}")}
        if world != "agentgym/SearchQA-v0":  # which lists no actions to choose from
            kinds |= {"random": policy_of("random"), "noisy": policy_of("oracle:0.7")}
        for name, policy in kinds.items():
            episode = episode_of(world, task, policy, 6)
            (distances,) = distances_of(world, [episode])
            assert len(distances) == len(episode.turns) + 1
            cause = failure_cause(episode, distances=distances)
            assert (cause is None) == bool(episode.success)
            causes += [(name, cause)] if cause else []
    tags = world == "agentgym/SearchQA-v0"  # whose environment parses the tags, and rejects a reply without them
    expected = {"invalid_actions" if tags else "format"}
    assert {cause.kind for name, cause in causes if name == "rambling"} == expected
    assert all(cause.turn == 0 for name, cause in causes if name == "rambling")
    assert {cause.kind for _, cause in causes} <= set(KINDS)


def test_a_policy_that_looks_again_and_again_is_in_a_loop() -> None:
    (task,) = tasks_of("agentgym/TextCraft-v0", 1)
    episode = episode_of("agentgym/TextCraft-v0", task, Says(lambda _: "inventory"), 6, agent="bare")
    cause = failure_cause(episode)
    assert cause is not None
    assert (cause.kind, cause.turn) == ("loop", 1)


def test_a_policy_that_turns_round_is_in_a_loop() -> None:
    (task,) = tasks_of("agentgym/BabyAI-v0", 1)
    episode = episode_of("agentgym/BabyAI-v0", task, Says(lambda _: "turn left"), 9, agent="bare")
    cause = failure_cause(episode)
    assert cause is not None
    assert (cause.kind, cause.turn) == ("loop", 4)  # after a whole turn


def test_an_action_that_the_environment_refuses_is_invalid() -> None:
    (task,) = tasks_of("agentgym/TextCraft-v0", 1)
    episode = episode_of("agentgym/TextCraft-v0", task, Says(lambda at: f"craft {at + 1} moon"), 5, agent="bare")
    cause = failure_cause(episode)
    assert cause is not None
    assert (cause.kind, cause.turn) == ("invalid_actions", 0)


def test_an_answer_ends_a_question_and_is_wrong_or_none() -> None:
    (task,) = tasks_of("agentgym/SearchQA-v0", 1)
    for text, kind in (("<answer>Atlantis</answer>", "wrong_answer"), ("<answer>unknown</answer>", "gave_up")):
        episode = episode_of("agentgym/SearchQA-v0", task, Says(lambda _, text=text: text), 5)
        cause = failure_cause(episode)
        assert cause is not None
        assert (cause.kind, cause.turn) == (kind, 0)


def crafting(*after: str) -> Episode:
    """Gather what a stick needs in the first turn, and then go on with other actions."""
    actions = ["get 2 bamboo", *after]
    return episode_of(
        "agentgym/TextCraft-v0", "textcraft/train/stick", Says(lambda at: actions[at]), len(actions), agent="bare"
    )


def test_an_agent_that_has_what_it_needs_and_gathers_more_has_gone_too_far() -> None:
    episode = crafting("get 1 coal", "get 2 coal", "get 3 coal", "get 4 coal")
    (distances,) = distances_of("agentgym/TextCraft-v0", [episode])
    assert list(distances) == [2, 1, 1, 1, 1, 1]
    cause = failure_cause(episode, distances=distances)
    assert cause is not None
    assert (cause.kind, cause.turn) == ("over_interaction", 1)
    assert "1 action away, with 4 turns left" in cause.detail


# An environment in which a goal can be passed for good: reply `add` as often as the goal says, then `stop`.


def counting(*actions: str, goal: int = 3, sample: int = 0) -> Episode:
    wrapped = Agent.parse("bare").wrap(gymnasium.make("counting/Count-v0", max_episode_steps=len(actions)))
    with closing(wrapped) as env:
        spec = EpisodeSpec(f"count/train/{goal}", sample=sample, seed=0, split="train")
        return play(env, Says(lambda at: actions[at]), spec, horizon=len(actions))


def counted(episode: Episode, most: int = 100) -> list[int | None]:
    with closing(Count()) as env:
        return list(DistanceMeter(env, 0, most).distances(episode))


def test_a_goal_that_cannot_be_reached_any_more_has_no_distance() -> None:
    assert counted(counting("add", "add", "add", "add", "add")) == [4, 3, 2, 1, None, None]
    assert counted(counting("add", "what?", "add"), most=3) == [None, 3, 3, 2]


def test_passing_the_goal_in_the_last_turn_is_moving_away_and_before_it_over_interaction() -> None:
    last, before = counting(*["add"] * 4), counting(*["add"] * 5)
    for episode, kind in ((last, "moved_away"), (before, "over_interaction")):
        cause = failure_cause(episode, distances=counted(episode))
        assert cause is not None
        assert (cause.kind, cause.turn) == (kind, 3)


def test_distances_end_where_the_replay_deviates() -> None:
    episode = counting("add", "add", "add", "add")
    changed = replace(episode.turns[2], observation="Count: 7.")
    found = replace(episode, turns=(*episode.turns[:2], changed, *episode.turns[3:]))
    assert counted(found) == [4, 3]
    assert failure_cause(found, distances=counted(found)) == failure_cause(found)
    assert counted(replace(episode, task_id="count/train/99")) == []


def test_a_broken_environment_ends_the_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = counting("add", "add")

    def broken(self: Count) -> str:
        raise EnvFault("no expert today")

    monkeypatch.setattr(Count, "oracle", broken)
    assert counted(episode) == [None, None, None]


def test_common_beginnings_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [counting("add", "add", "add", "add", sample=sample) for sample in range(5)]
    asked = Counter[str]()
    original = Count.oracle
    monkeypatch.setattr(Count, "oracle", lambda self: asked.update(["oracle"]) or original(self))
    with closing(Count()) as env:
        assert dict(measure(env, 0, episodes)) == {
            ("counting/Count-v0", "count/train/3", sample): (4, 3, 2, 1, None) for sample in range(5)
        }
    assert asked["oracle"] == 5  # four from the start, and one where the goal has been passed


def test_an_expert_that_raises_has_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    episode, original = counting("add", "add"), Count.oracle

    def oracle(env: Count) -> str:
        if env._count == 1:
            raise RuntimeError("it is lost")
        return original(env)

    monkeypatch.setattr(Count, "oracle", oracle)
    with closing(Count()) as env:
        assert dict(measure(env, 0, [episode])) == {("counting/Count-v0", "count/train/3", 0): (None, None, 2)}


def test_an_environment_that_raises_in_a_replay_has_distances_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    episode, original = counting("add", "wait", "add"), Count._act

    def act(env: Count, action: str) -> Feedback:
        if action == "wait":
            raise RuntimeError("it can't wait")
        return original(env, action)

    monkeypatch.setattr(Count, "_act", act)
    with closing(Count()) as env:
        assert dict(measure(env, 0, [episode])) == {("counting/Count-v0", "count/train/3", 0): (4, 3)}


def test_environments_without_such_an_expert_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "oracle_replans", False)
    with closing(Count()) as env:
        assert not can_measure(Count)
        with pytest.raises(ValueError, match="no expert that decides"):
            DistanceMeter(env, 0)


def test_a_run_keeps_its_distances_next_to_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [counting("add", "add", "add", "add"), counting("stop", goal=0)]
    file = write_episodes(tmp_path / "episodes.jsonl", episodes)
    with closing(Count()) as env:
        found = measure_run(file, episodes, env, 0)
        assert found == {("counting/Count-v0", "count/train/3", 0): (4, 3, 2, 1, None)}
        assert read_distances(file) == found
        monkeypatch.setattr(Count, "oracle", lambda _: pytest.fail("it was measured again"))
        assert measure_run(file, episodes, env, 0) == found
        monkeypatch.setattr(Count, "oracle_replans", False)
        assert measure_run(file, episodes, env, 0) == {}


def test_damaged_lines_of_distances_are_left_out(tmp_path: Path) -> None:
    file = write_episodes(tmp_path / "episodes.jsonl", [counting("add")])
    assert read_distances(file) == {}
    write_distances(file, {("w", "t", 0): (2, None)})
    with distances_file(file).open("a") as lines:
        for record in (
            '{"schema": "agentgym.distances/1"}',
            "half",
            "[]",
            '{"schema": "agentgym.distances/1", "env": 1}',
        ):
            lines.write(f"{record}\n")
    assert read_distances(file) == {("w", "t", 0): (2, None)}


def test_recorded_episodes_are_measured_with_the_options_of_their_run(tmp_path: Path) -> None:
    episode = episode_of("agentgym/TextCraft-v0", "textcraft/train/stick", Says(lambda at: f"get {at + 1} bamboo"), 3)
    changed = replace(
        episode, turns=tuple(replace(each, reply=Reply("Action: get 1 bamboo")) for each in episode.turns)
    )
    settings = {"env": "textcraft", "policy": "p", "split": "test", "options": ["distractors=10"], "seed": 0}
    folder = write_evaluation_run(tmp_path / "run", [changed], settings=settings)
    found = recorded_distances(folder / "episodes.jsonl", [changed])
    assert list(found) == [("agentgym/TextCraft-v0", "textcraft/train/stick", 0)]
    other = write_evaluation_run(tmp_path / "other", [changed], settings={**settings, "options": ["distractors=2"]})
    assert list(recorded_distances(other / "episodes.jsonl", [changed]).values()) == [()]
    unknown = replace(changed, env="nobody/Knows-v0")
    assert recorded_distances(tmp_path / "none.jsonl", [unknown]) == {}


def test_replay_yields_the_actions_of_each_trial() -> None:
    wrapped = Agent.parse("bare+retry:1").wrap(gymnasium.make("counting/Count-v0", max_episode_steps=2))
    texts = ["add", "add", "again", "add", "add"]
    with closing(wrapped) as env:
        episode = play(env, Says(lambda at: texts[at]), EpisodeSpec("count/train/3", seed=0, split="train"), horizon=2)
    with closing(Count()) as env:
        states = list(replay(env, episode, seed=0))
    assert states == [(), ("add",), ("add", "add"), (), ("add",), ("add", "add")]


def test_replay_reports_the_first_deviation() -> None:
    episode = replace(counting("add", "add"), final_observation="Count: 5.")
    with closing(Count()) as env, pytest.raises(ReplayDeviation) as deviation:
        list(replay(env, episode, seed=0))
    assert deviation.value.turn == 2


def test_turns_left_in_observations_are_no_deviation() -> None:
    episode = counting("add", "add")
    shown = [
        replace(turn, observation=f"{turn.observation}\n\nTurns left: {2 - at}.")
        for at, turn in enumerate(episode.turns)
    ]
    with closing(Count()) as env:
        assert len(list(replay(env, replace(episode, turns=tuple(shown)), seed=0))) == 3
