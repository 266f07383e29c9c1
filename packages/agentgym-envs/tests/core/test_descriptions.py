"""Tests of the facts about environments."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from agentgym_envs import WORLDS, RegisteredWorld, make, text_env
from agentgym_envs.core.descriptions import described_options, missing_dependency, task_counts
from agentgym_envs.core.registry import world_class
from door_world import ENV_ID, SIZES, Door, registered_env
from gymnasium.error import DependencyNotInstalled


def test_tasks_are_counted_from_the_manifest_and_without_one_from_the_tasks() -> None:
    manifest = json.loads(resources.files("agentgym_envs.worlds.textcraft").joinpath("manifest.json").read_text())
    assert task_counts("agentgym/TextCraft-v0") == {split: one["tasks"] for split, one in manifest.items()}
    env = text_env(make("agentgym/TextCraft-v0"))
    assert len(env.tasks.dev) == manifest["dev"]["tasks"] > 0
    with registered_env(Door):
        assert task_counts(ENV_ID) == SIZES | {"dev": 0}


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id)
def test_all_options_are_described(world: RegisteredWorld) -> None:
    options = described_options(world.id)
    assert options
    assert all(option.about and option.default is not ... for option in options), options


def test_missing_programs_and_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_dependency("agentgym/TextCraft-v0") is None

    def fail(self: object) -> None:
        raise DependencyNotInstalled("There is no abacus. Install one: shop abacus")

    monkeypatch.setattr(world_class("agentgym/TextCraft-v0"), "check_dependencies", fail)
    assert missing_dependency("agentgym/TextCraft-v0") == "There is no abacus. Install one: shop abacus"
    with pytest.raises(ValueError, match="no environment 'agentgym/TextCarft-v0'"):
        missing_dependency("agentgym/TextCarft-v0")
