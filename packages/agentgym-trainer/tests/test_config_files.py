"""Tests of `train --config` and `train --like`: settings from files and from other runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import PPO, GroupRelative
from agentgym_trainer.cli import _parse
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.config_files import SETTINGS, read_run
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder

QUICKSTART: Any = RECIPES["quickstart"].config
TOML = """
recipe = "textcraft-grpo"
steps = 7
algorithm = "ppo"
sampler = { type = "MidSuccess", floor = 0.2 }

[optimizer]
lr = 2e-6

[world]
options = ["depth=(1, 2)"]
"""


def written(folder: Path, text: str, name: str = "settings.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_settings_of_a_file_replace_those_of_the_recipe_and_flags_replace_them(tmp_path: Path) -> None:
    file = written(tmp_path, TOML)
    recipe, command = _parse(["--config", file, "--optimizer.lr", "3e-6", "--sampler.floor", "0.3"])
    config, before = command.config, RECIPES["textcraft-grpo"].config
    assert recipe == "textcraft-grpo"
    assert (config.steps, config.optimizer.lr, config.sampler) == (7, 3e-6, MidSuccess(0.3))
    assert config.algorithm == PPO
    assert config.world == replace(before.world, options=("depth=(1, 2)",))
    assert config.optimizer == replace(before.optimizer, lr=3e-6)  # the rest is as before
    assert (config.generation, config.evaluation) == (before.generation, before.evaluation)
    assert _parse([f"--config={file}"])[1].config.optimizer.lr == 2e-6


def test_a_recipe_on_the_command_line_comes_before_that_of_the_file(tmp_path: Path) -> None:
    recipe, command = _parse(["babyai-grpo", "--config", written(tmp_path, 'recipe = "mixture"\nsteps = 7')])
    assert recipe == "babyai-grpo"
    assert command.config == replace(RECIPES["babyai-grpo"].config, steps=7)


def test_nested_choices_by_name_and_with_settings(tmp_path: Path) -> None:
    settings = {"algorithm": {"advantages": "group-relative"}, "horizon": "fixed"}
    config = _parse(["--config", written(tmp_path, json.dumps(settings), "settings.json")])[1].config
    assert isinstance(config.algorithm.advantages, GroupRelative)
    assert isinstance(config.horizon, FixedHorizon)
    assert config.algorithm.clip == QUICKSTART.algorithm.clip


def test_run_json_is_a_configuration_file(tmp_path: Path) -> None:
    config = replace(QUICKSTART, steps=3, sampler=MidSuccess(0.4))
    RunFolder.create(tmp_path / "run", config, "quickstart")
    assert _parse(["--config", str(tmp_path / "run" / SETTINGS)])[1].config == config
    other = written(tmp_path, json.dumps({"schema": "agentgym.train/1", "config": {}}), "other.json")
    with pytest.raises(UsageError, match=r"is a run\.json of another version \(agentgym\.train/1"):
        _parse(["--config", other])


@pytest.mark.long
def test_the_settings_of_every_recipe_can_be_given_as_a_file(tmp_path: Path) -> None:
    for name, recipe in RECIPES.items():
        file = written(tmp_path, json.dumps(to_json(recipe.config)), "all.json")
        assert _parse([name, "--config", file])[1].config == recipe.config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "There is no setting 'stepz'. Did you mean 'steps'?"),
        ("[optimizer]\nlearning = 3", "There is no setting 'optimizer.learning'."),
        ('steps = "many"', "steps must be of type int, not 'many'"),
        ("steps = 0", "steps"),
        ('algorithm = "pppo"', "There is no algorithm 'pppo'. Did you mean 'ppo'?"),
        ("optimizer = 3", "optimizer must be a record of settings, not 3"),
        ("recipe = 3", "recipe must be the name of a recipe, not 3"),
        ('recipe = "quickstrat"', "There is no recipe 'quickstrat'"),
        ("steps =", "isn't valid TOML"),
        (f"steps = {'[' * 10_000}", "isn't valid TOML"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        _parse(["--config", written(tmp_path, text)])
    assert message in str(error.value)


def test_missing_files_and_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't be read \(No such file or directory\)"):
        _parse(["--config", str(tmp_path / "none.toml")])
    with pytest.raises(UsageError, match=r"isn't valid JSON \(a TOML file needs the ending \.toml\)"):
        _parse(["--config", written(tmp_path, "steps = 3", "settings.yaml")])
    with pytest.raises(UsageError, match="must contain settings by name"):
        _parse(["--config", written(tmp_path, "[1]", "list.json")])


def test_like_takes_recipe_and_settings_of_a_run(tmp_path: Path) -> None:
    config = replace(RECIPES["sft-textcraft"].config, seed=3)
    RunFolder.create(tmp_path / "run", config, "sft-textcraft")
    run = str(tmp_path / "run")
    assert read_run(tmp_path / "run") == (config, "sft-textcraft")
    recipe, command = _parse(["--like", run, "--seed", "4"])
    assert (recipe, command.config) == ("sft-textcraft", replace(config, seed=4))
    file = written(tmp_path, "seed = 5")
    assert _parse(["--like", run, "--config", file])[1].config.seed == 5
    with pytest.raises(UsageError, match="takes the recipe of that run; leave out quickstart"):
        _parse(["quickstart", "--like", run])
    with pytest.raises(UsageError, match=r"holds no training run \(run\.json is missing\)"):
        _parse(["--like", str(tmp_path)])


@pytest.mark.parametrize(
    ("before", "selected", "needed"),
    [
        ({"algorithm": "ppo", "group_size": 1}, ("--algorithm", "grpo"), ("--group-size", "8")),
        ({"algorithm": "ppo", "truncation": "bootstrap"}, ("--algorithm", "grpo"), ("--truncation", "reward")),
        ({"evaluation": {"every": 0}}, ("--horizon", "adaptive"), ("--evaluation.every", "10")),
    ],
)
def test_what_is_selected_by_name_is_checked_with_the_other_flags(
    tmp_path: Path, before: dict[str, Any], selected: tuple[str, str], needed: tuple[str, str]
) -> None:
    file = written(tmp_path, json.dumps(before), "settings.json")
    assert _parse(["--config", file, *selected, *needed])[1].config == _parse([*selected, *needed])[1].config
    with pytest.raises(UsageError, match=needed[0].removeprefix("--").replace("-", "_")):
        _parse(["--config", file, *selected])
