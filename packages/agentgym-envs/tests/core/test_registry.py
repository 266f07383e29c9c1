"""Tests of finding and making environments by name, and of the messages for names that don't work."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import gymnasium
import pytest
from agentgym_envs import EnvPool, WorldSpec, make, text_env
from agentgym_envs.core.registry import find_spec
from door_world import ENV_ID, Door
from gymnasium.envs.registration import EnvSpec

TEXTCRAFT = "agentgym/TextCraft-v0"


def test_short_names_are_environments() -> None:
    assert find_spec("textcraft").id == TEXTCRAFT
    assert WorldSpec("TextCraft").build().spec == make("textcraft").spec
    for backend in ("inline", "process"):
        with EnvPool("textcraft", 2, backend) as pool:
            assert [spec.id for spec in pool.specs] == [TEXTCRAFT] * 2
            pool.reset(0, "textcraft/test/map")
            assert pool.recv()[0].info["task_id"] == "textcraft/test/map"


def test_a_command_in_the_folder_above_a_package_is_told_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "one_too_high" / "one_too_high"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    message = (
        "one_too_high is a folder without code of its own here, so it registers no environment "
        "'one_too_high/World-v0'. Run the command in that folder (cd one_too_high), or name the module in it"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        find_spec("one_too_high:one_too_high/World-v0")


def test_environments_of_the_named_module_are_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^The module door_world registers no environment 'door/Dor-v0'\. Call gymn"):
        find_spec("door_world:door/Dor-v0")
    monkeypatch.setitem(gymnasium.registry, ENV_ID, EnvSpec(ENV_ID, Door))
    for name in ("door/Dor-v0", "lamps"):
        with pytest.raises(ValueError, match=rf"registers no environment '{name}'\. Did you mean door/Door-v0\?$"):
            find_spec(f"door_world:{name}")
    with pytest.raises(ValueError, match=rf"Did you mean {TEXTCRAFT}\?$"):
        find_spec("agentgym_envs:agentgym/TextCaft-v0")


def test_an_environment_without_text_is_refused_with_the_name_to_write() -> None:
    message = r"^CartPole-v1 isn't a text environment \(TextEnv\): write gymnasium:CartPole-v1, or see docs/howto/use-"
    for make_env in (make, lambda name: WorldSpec(name).build()):
        with pytest.raises(ValueError, match=message):
            make_env("CartPole-v1")
    with closing(make("gymnasium:CartPole-v1")) as env:
        assert text_env(env).tasks.test
    with closing(gymnasium.make("CartPole-v1")) as env, pytest.raises(TypeError, match="docs/howto/use-other-env"):
        text_env(env)
