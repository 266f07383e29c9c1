"""Tests of finding environments, parsing their options and choosing tasks."""

from __future__ import annotations

from collections import Counter

import pytest
from agentgym_envs import Task, Tasks
from agentgym_eval.runs.environments import choose_tasks, open_world, parse_options, spread, world_id
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from counting_world import ENV
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def settings(**changes: object) -> PlaySettings:
    return PlaySettings(**({"env": ENV, "policy": "oracle"} | changes))  # type: ignore[arg-type]


def tasks_of(sizes: list[int]) -> Tasks:
    tasks = [Task(f"t/{c}/{i}", "w", "test", f"c{c}", i % 5) for c, size in enumerate(sizes) for i in range(size)]
    by_id = {task.id: task for task in tasks}
    return Tasks(list(by_id), by_id.__getitem__)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_spread_is_deterministic_and_covers_every_category(sizes: list[int], data: st.DataObject) -> None:
    tasks = tasks_of(sizes)
    count = data.draw(st.integers(1, len(tasks)))
    chosen = spread(tasks, count)
    assert len({task.id for task in chosen}) == count
    assert spread(tasks, count) == chosen
    assert [task.id for task in chosen] == [i for i in tasks.ids if i in {task.id for task in chosen}]
    per_category = Counter(task.category for task in chosen)
    if count >= len(sizes):
        assert set(per_category) == {f"c{c}" for c in range(len(sizes))}


def test_spread_is_proportional_and_even_over_difficulties() -> None:
    chosen = spread(tasks_of([60, 30, 10]), 20)
    assert Counter(task.category for task in chosen) == {"c0": 12, "c1": 6, "c2": 2}
    levels = Counter(task.difficulty for task in chosen if task.category == "c0")
    assert set(levels) == set(range(5))
    assert max(levels.values()) - min(levels.values()) <= 1


def test_options_are_parsed_as_literals_or_text() -> None:
    assert parse_options(["depth=(2,3)", "name=a=b", "n=4", "on=True", "e="]) == {
        "depth": (2, 3), "name": "a=b", "n": 4, "on": True, "e": "",
    }  # fmt: skip


@pytest.mark.parametrize("pair", ["depth", "=3", "a b=3", "max_episode_steps=3"])
def test_malformed_options_are_rejected(pair: str) -> None:
    with pytest.raises(UsageError, match=r"KEY=VALUE|--horizon"):
        parse_options([pair])


def test_environments_are_found_by_short_names() -> None:
    assert world_id("TextCraft") == world_id("textcraft") == "agentgym/TextCraft-v0"
    assert world_id(ENV) == "counting/Count-v0"
    with pytest.raises(UsageError, match="no environment 'Count'"):
        world_id("Count")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": "agentgym/TextKraft-v0"}, r"no environment 'agentgym/TextKraft-v0'. Did you mean agentgym/TextC"),
        ({"env": "no_such_module:x/Y-v0"}, "module of the environment no_such_module:x/Y-v0 can't be imported"),
        ({"options": ("speed=3",)}, "has no option 'speed'.*Its options"),
        ({"task": ("count/test/77",)}, "no task 'count/test/77'.*Did you mean count/test/7"),
        ({"agent": ""}, "no agent ''.*react"),
        ({"split": "dev", "tasks": 2}, r"has no dev tasks .* Splits with tasks: train \(12\), test \(10\)\."),
        ({"tasks": 11}, "has 10 test tasks under these options, not 11"),
    ],
)
def test_errors_for_unknown_names_list_the_existing_ones(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose_tasks(open_world(settings(**changes)), settings(**changes))


def test_choose_tasks_selects_all_some_or_named_tasks() -> None:
    env = open_world(settings())
    assert len(choose_tasks(env, settings(split="train"))) == 12
    assert {task.category for task in choose_tasks(env, settings(tasks=2))} == {"few", "many"}
    named = choose_tasks(env, settings(task=("count/train/3", "count/test/1", "count/train/3")))
    assert [task.id for task in named] == ["count/train/3", "count/test/1"]


def test_horizon_replaces_the_environments_own_limit() -> None:
    env = open_world(settings(horizon=30))
    env.reset(options={"task": "count/test/3"})
    truncated = [env.step("Action: add")[3] for _ in range(30)]
    assert truncated == [False] * 29 + [True]


def test_environment_variables_in_options_are_not_parsed_as_literals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_TOKEN", "1234567890123456")
    monkeypatch.setenv("PASSWORD", "it's\\1")
    monkeypatch.setenv("ACCOUNTS", "{'shop': ('me', 'secret')}")
    pairs = ("token=${WORLD_TOKEN}", "accounts={'shop': ('me', '${PASSWORD}')}", "others=${ACCOUNTS}", "depth=(2, 3)")
    assert parse_options(pairs) == {
        "token": "1234567890123456",
        "accounts": {"shop": ("me", "it's\\1")},
        "others": {"shop": ("me", "secret")},
        "depth": (2, 3),
    }
