"""Tests of Gymnasium's environments as text environments: the contract as far as it applies, spaces, and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from agentgym_envs import EnvFault, EnvPool, EpisodeSpec, WorldSpec, make, play_many, text_env
from agentgym_envs.pool import Reset, Step
from door_policies import FunctionPolicy
from gymnasium import spaces

LAKE = "gymnasium:FrozenLake-v1"
LAKE_OPTIONS: dict[str, Any] = {
    "actions": ("left", "down", "right", "up"),
    "settings": {"is_slippery": False},
}
WAY = ("down", "down", "right", "right", "down", "right")


class Echo(gymnasium.Env[Any, Any]):
    """Has spaces of all kinds; the reward is a part of the action. A negative one breaks it."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Dict({"seen": spaces.Box(-9, 9, (2,)), "words": spaces.Text(50)})
    action_space = spaces.Dict(
        {"pay": spaces.Box(-1, 1, ()), "say": spaces.Text(5), "both": spaces.Tuple([spaces.Discrete(3)] * 2)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"seen": np.array([seed, 1 / 3], np.float32), "words": "Hello."}, {}

    def step(self, action: Any) -> Any:
        if action["pay"] < 0:
            raise OSError("the echo is gone")
        observation = {"seen": np.zeros(2, np.float32), "words": action["say"]}
        return observation, float(action["pay"]), action["both"] == (2, 2), False, {"is_success": bool(action["pay"])}


class Parts(gymnasium.Env[Any, Any]):
    """Pays a tenth for each of ten actions, and shows a long text."""

    observation_space = spaces.Text(10**6)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return "long " * 10**5, {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return "long " * 10**5, 0.1 if action else -0.1, self.taken == 10, False, {}


class Lists(gymnasium.Env[Any, Any]):
    """Shows each action as it arrives."""

    observation_space = spaces.Text(1000)

    def __init__(self, kind: str) -> None:
        self.action_space = {
            "sequence": spaces.Sequence(spaces.Discrete(3)),
            "one of": spaces.OneOf([spaces.Discrete(2), spaces.Text(5)]),
            "counts": spaces.MultiDiscrete([3, 3]),
            "bytes": spaces.Box(0, 255, (1,), np.uint8),
            "flags": spaces.MultiBinary(2),
            "reals": spaces.Box(-np.inf, np.inf, (1,)),
            "graph": spaces.Tuple([spaces.Graph(spaces.Box(0, 1, (1,)), None)]),
            "stacked": spaces.Sequence(spaces.Discrete(3), stack=True),
        }[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "", {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return str(action), 0.0, False, False, {}


class Picture(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = spaces.Discrete(2)


gymnasium.register("test/Echo-v0", Echo)
gymnasium.register("test/Parts-v0", Parts, max_episode_steps=500)
gymnasium.register("test/Lists-v0", Lists)
gymnasium.register("test/Picture-v0", Picture)


def test_a_text_environment_with_seeds_as_tasks() -> None:
    env = make(LAKE, **LAKE_OPTIONS)
    tasks = text_env(env).tasks
    assert (len(tasks.train) + len(tasks.dev), len(tasks.test)) == (10_000, 1_000)
    assert tasks["FrozenLake-v1/test/7"].payload == {"seed": 1_000_007}
    assert tasks["FrozenLake-v1/test/7"].env == LAKE
    observation, info = env.reset(options={"task": "FrozenLake-v1/test/7"})
    assert observation.startswith("[S]FFF\nFHFH\n")
    assert info["available_actions"] == list(LAKE_OPTIONS["actions"])
    keys, total = {info["state_key"]}, 0.0
    for action in WAY:
        _, reward, terminated, truncated, info = env.step(action)
        keys.add(info["state_key"])
        total += float(reward)
    assert (terminated, truncated, total, info["score"], info["success"]) == (True, False, 1.0, 1.0, True)
    assert len(keys) == len(WAY) + 1
    assert env.step("up")[1] == 0.0
    env.close()
    env.close()


def test_the_same_task_is_the_same_text_in_every_process() -> None:
    options = {"actions": ("stick", "hit"), "low": -1.0}
    env = make("gymnasium:Blackjack-v1", **options)
    task = text_env(env).tasks.train[3].id
    here = [env.reset(options={"task": task})[0], *(env.step(action)[0] for action in ("hit", "stick"))]
    env.close()
    there: list[str] = []
    with EnvPool(WorldSpec("gymnasium:Blackjack-v1", options), 1, "process") as pool:
        for call in (Reset(task), Step("hit"), Step("stick")):
            pool.submit(0, call)
            there.append(pool.recv()[0].observation)
    assert here == there


@pytest.mark.parametrize("action", ["banana", "4", "-1", "", "{}", "1.0"])
def test_what_is_no_action_costs_a_turn_and_says_what_is_one(action: str) -> None:
    env = make(LAKE, **LAKE_OPTIONS)
    before, _ = env.reset(options={"task": "FrozenLake-v1/train/0"})
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["valid"]) == (0, False, False, False)
    assert "one of: left, down, right, up" in observation
    assert env.step("Left")[0].splitlines()[1:] == before.splitlines()
    env.close()


def test_other_spaces_are_json() -> None:
    env = make("gymnasium:test/Echo-v0", low=-1.0)
    observation, _ = env.reset(options={"task": "test-Echo-v0/train/5"})
    assert observation == '{"seen": [5.0, 0.3333], "words": "Hello."}'
    for wrong in ('{"pay": 2, "say": "a", "both": [0, 0]}', '{"pay": 1}', "[1]", '{"pay": 1, "say": 3, "both": [0]}'):
        assert env.step(wrong)[4]["valid"] is False
    observation, reward, *_, info = env.step('{"pay": 0.5, "say": "Yes", "both": [0, 1]}')
    assert observation == '{"seen": [0.0, 0.0], "words": "Yes"}'
    assert (reward, info["score"], info["raw"]) == (0.0, 0.0, {"return": 0.5})  # paid at the end, as low is negative
    _, reward, terminated, _, info = env.step('{"pay": 0.0, "say": "a", "both": [2, 2]}')
    assert (reward, terminated, info["score"], info["success"]) == (0.75, True, 0.75, False)
    env.close()


@pytest.mark.parametrize(
    ("kind", "actions", "wrong"),
    [
        ("sequence", {"[1, 2]": "(1, 2)", "[]": "()"}, ["[3]", "1", "[1.5]"]),
        ("one of", {'[1, "ab"]': "(np.int64(1), 'ab')"}, ['[0, "ab"]', "[2, 0]", '["1", "ab"]', "[1]", "0"]),
        ("counts", {"[1, 2]": "[1 2]"}, ["[1.7, 0]", "[3, 0]", "[NaN, 0]"]),
        ("bytes", {"[44]": "[44]", "[255.0]": "[255]"}, ["[300]", "[300.0]", "[-1]"]),  # 300 is 44 in eight bits
        ("flags", {"[1, 0]": "[1 0]"}, ["[1.9, 0]", "[1]"]),
        ("reals", {"[1.5]": "[1.5]"}, ["[1e999]", "[NaN]", "1.5"]),
    ],
)
def test_lists_are_elements_of_the_spaces_that_have_them(kind: str, actions: dict[str, str], wrong: list[str]) -> None:
    env = make("gymnasium:test/Lists-v0", settings={"kind": kind})
    env.reset()
    for action, shown in actions.items():
        assert env.step(action)[0] == shown.replace("np.int64(1)", repr(np.int64(1)))
    for action in wrong:
        assert env.step(action)[4]["valid"] is False
    env.close()


@pytest.mark.parametrize(
    "action", ["[" * 5000, '{"pay": 1, "say": "\\ud83d", "both": [' + "9" * 5000 + "]}", "[" * 70 + "]" * 70]
)
def test_no_action_of_an_agent_is_a_fault(action: str) -> None:
    """Otherwise an agent that is about to lose could have its episode left out of all results."""
    env = make("gymnasium:test/Echo-v0")
    env.reset(options={"task": "test-Echo-v0/train/5"})
    assert env.step(action)[4]["valid"] is False
    env.close()


def test_rewards_that_add_up_to_the_highest_return_but_for_rounding_are_a_success() -> None:
    env = make("gymnasium:test/Parts-v0")
    observation, _ = env.reset()
    assert observation in env.observation_space
    for _ in range(10):
        observation, _, terminated, _, info = env.step("1")
        assert observation in env.observation_space
    assert (terminated, info["score"], info["success"]) == (True, 1.0, True)
    env.close()


def test_the_limit_of_turns_is_the_one_that_gymnasium_has_registered() -> None:
    limits = {name: make(f"gymnasium:test/{name}-v0").spec for name in ("Parts", "Echo")}
    assert {name: spec and spec.max_episode_steps for name, spec in limits.items()} == {"Parts": 500, "Echo": 100}


@pytest.mark.parametrize("by", ["make", "horizon"])
def test_a_score_that_is_paid_at_the_end_is_paid_at_a_limit_of_turns(by: str) -> None:
    limit = {"max_episode_steps": 4} if by == "make" else {}
    env = make("gymnasium:test/Parts-v0", low=-1.0, **limit)
    mixed = FunctionPolicy(lambda context: str(len(context.conversation) % 4 // 2))  # alternates
    (episode,) = play_many(env, mixed, [EpisodeSpec("test-Parts-v0/train/1")], horizon=4 if by == "horizon" else None)
    assert (len(episode.turns), episode.stop) == (4, "truncated")
    assert (episode.score, episode.success) == (pytest.approx(0.5), False)
    assert [turn.reward for turn in episode.turns] == [0, 0, 0, pytest.approx(0.5)]
    (best,) = play_many(env, FunctionPolicy(lambda _: "1"), [EpisodeSpec("test-Parts-v0/train/1")])
    assert (best.score, best.success) == ((pytest.approx(0.7), False) if by == "make" else (1.0, True))
    env.close()


def test_a_score_is_paid_once_at_a_limit_of_turns() -> None:
    env = make("gymnasium:test/Parts-v0", low=-1.0, max_episode_steps=2)
    for _ in range(2):
        env.reset(options={"task": "test-Parts-v0/train/1"})
        results = [env.step("1") for _ in range(4)]
        assert [float(reward) for _, reward, *_ in results] == [0, pytest.approx(0.6), 0, 0]
        assert [truncated for *_, truncated, _ in results] == [False, True, True, True]
        assert results[3][0] == results[1][0]
        assert results[3][4] == results[1][4]
    env.close()


def test_returns_above_high_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    for high in (0.5, 0.5, 1.0):
        env = make("gymnasium:test/Parts-v0", high=high)
        (episode,) = play_many(env, FunctionPolicy(lambda _: "1"), [EpisodeSpec("test-Parts-v0/train/1")])
        assert episode.score == 1.0
        env.close()
    assert [message.partition(", so")[0] for message in caplog.messages] == [
        "A return of gymnasium:test/Parts-v0 exceeds high=0.5"
    ]


def test_failures_are_faults_and_the_next_episode_begins_afresh() -> None:
    env = make("gymnasium:test/Echo-v0")
    broken = FunctionPolicy(lambda _: '{"pay": -1, "say": "a", "both": [2, 2]}')
    whole = FunctionPolicy(lambda _: '{"pay": 1, "say": "a", "both": [2, 2]}')
    specs = [EpisodeSpec("test-Echo-v0/train/1")]
    (failed,) = play_many(env, broken, specs)
    assert (failed.stop, failed.score) == ("failed", None)
    assert "the echo is gone" in str(failed.error)
    (episode,) = play_many(env, whole, specs)
    assert (episode.stop, episode.score, episode.success) == ("terminated", 1.0, True)
    env.close()


def test_there_is_no_expert() -> None:
    env = make(LAKE, **LAKE_OPTIONS)
    env.reset()
    with pytest.raises(EnvFault, match="gymnasium:FrozenLake-v1 has no expert"):
        text_env(env).oracle()
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gymnasium:", {}, "names no environment"),
        ("gymnasium:FrozenLace-v1", {}, "Did you mean: `FrozenLake`"),
        (LAKE, {"low": 1.0}, "low"),
        (LAKE, {"low": float("-inf")}, "finite returns"),
        (LAKE, {"train": 0}, "train"),
        (
            LAKE,
            {"map": "8x8"},
            "no option 'map'.* Its options: actions, settings, low, high, train, test, instructions",
        ),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, gymnasium.error.Error), match=words):
        make(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gymnasium:agentgym/TextCraft-v0", {}, "leave out gymnasium:"),
        ("gymnasium:test/Picture-v0", {}, "images"),
        ("gymnasium:test/Lists-v0", {"settings": {"kind": "graph"}}, "can't be written as JSON"),
        ("gymnasium:test/Lists-v0", {"settings": {"kind": "stacked"}}, "can't be written as JSON"),
        (LAKE, {"actions": ("on", "off")}, "2 names don't fit"),
    ],
)
def test_environments_that_do_not_fit_are_refused_when_they_are_made(
    name: str, options: dict[str, Any], words: str
) -> None:
    env = make(name, **options)
    with pytest.raises(ValueError, match=words):
        _ = text_env(env).instructions
    env.close()


@pytest.mark.parametrize("solved", [True, np.True_, 1, 1.0, np.float32(1)])
def test_success_may_be_a_number(solved: Any) -> None:
    class Reach(Parts):
        def step(self, action: Any) -> Any:
            observation, _, _, truncated, _ = super().step(action)
            return observation, 0.5, True, truncated, {"is_success": solved}

    gymnasium.register("test/Reach-v0", Reach)
    try:
        env = make("gymnasium:test/Reach-v0", low=0, high=1)
        env.reset(options={"split": "test"})
        *_, info = env.step("1")
    finally:
        gymnasium.registry.pop("test/Reach-v0")
    assert (info["score"], info["success"]) == (0.5, True)


MODULE = """
import gymnasium
from gymnasium.envs.toy_text import FrozenLakeEnv
gymnasium.register("own/Lake-v0", FrozenLakeEnv, max_episode_steps=7)
"""


def test_a_module_that_registers_the_environment_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_lakes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = WorldSpec("gymnasium:own_lakes:own/Lake-v0", LAKE_OPTIONS)
    env = spec.build()
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7
    env.reset(options={"split": "test"})
    assert env.step("down")[-1]["valid"]
    with pytest.raises(ValueError, match="No module named"):
        make("gymnasium:no_lakes:own/Lake-v0")
