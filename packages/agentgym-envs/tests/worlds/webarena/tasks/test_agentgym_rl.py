"""Tests of the task set of the AgentGym-RL paper."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from agentgym_envs import agentgym_ids
from agentgym_envs.worlds.webarena.tasks.agentgym_rl import AGENTGYM_RL
from agentgym_envs.worlds.webarena.tasks.task_sets import task_set
from gymnasium.error import DependencyNotInstalled

# The package `webarena-verified` uses a deprecated option of `idna`.
pytestmark = pytest.mark.filterwarnings("ignore:Transitional processing is deprecated:DeprecationWarning")


def test_tasks_and_splits_are_those_of_the_paper() -> None:
    try:
        tasks = task_set(AGENTGYM_RL, judged=True)
    except DependencyNotInstalled as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    sites = Counter(task.category for task in tasks.test)
    assert sites == {"shopping": 15, "shopping_admin": 15, "map": 10, "gitlab": 5, "reddit": 5}
    assert len(tasks.train) + len(tasks.dev) == 372  # the paper has no dev split
    assert tasks.train[0].split == "train"
    assert not {*tasks.train.ids, *tasks.dev.ids} & {*tasks.test.ids}
    original = task_set("webarena", judged=True)
    assert all(task.payload == original[task.id].payload for task in tasks.test)
    assert agentgym_ids.task_id("webarena_763") in tasks.test.ids
