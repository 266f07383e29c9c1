from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs.cli.flags import flag_names
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import GAE, PPO, PRESETS, Clip
from agentgym_trainer.cli import _parse
from agentgym_trainer.cli_flags import EXAMPLES, SYNONYMS
from agentgym_trainer.cli_help import COMMON
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import KINDS, AdaptiveHorizon, FixedHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess, Uniform
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from cli_errors import LOADING, error_of
from toy_learner import train_cli

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "gymnasium", "minigrid")


def test_help_lists_recipes_without_heavy_imports() -> None:
    script = (
        "import json, sys\n"
        "from agentgym_trainer.cli import main\n"
        "sys.argv = ['train', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"sys.stderr.write(json.dumps([name for name in {HEAVY} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert json.loads(done.stderr) == []
    for name, recipe in RECIPES.items():
        assert f"{name}:" in done.stdout
        assert recipe.about.split(",")[0] in " ".join(done.stdout.replace("│", " ").split())
    assert "--optimizer.lr" in done.stdout
    for name in [*PRESETS, *KINDS]:
        assert f" {name}," in done.stdout


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        _parse(arguments)
    assert not end.value.code
    return capsys.readouterr().out


def test_help_has_common_flags_with_the_values_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    everything = set[str]()
    for recipe in ("textcraft-scaling", "sft-textcraft", "dpo-textcraft", "evol-textcraft"):
        short, whole = (shown(capsys, recipe, flag) for flag in ("--help", "--help-all"))
        flags, whole_flags = (set(re.findall(r"(?m)^[ │]+--([a-z][\w.-]*)", text)) for text in (short, whole))
        assert flags <= whole_flags
        assert len(whole_flags) > 3 * len(flags)
        everything |= flags
    assert everything == COMMON.keys()
    assert "learning rate [1e-06]" in shown(capsys, "textcraft-scaling", "-h")
    assert "--critic.* (2)" in shown(capsys, "textcraft-scaling", "--algorithm", "ppo", "--help")
    assert "horizon" not in shown(capsys, "sft-textcraft", "--help").rpartition("--help-all")[2]


def test_help_all_lists_the_names_of_selections(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "quickstart", "--help-all").replace("│", " ").split())
    for name in [*PRESETS, *KINDS, "uniform", "mid-success"]:
        assert f" {name}," in text or f" {name}." in text


def test_loading_message_precedes_heavy_imports(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        assert capfd.readouterr().err == f"{LOADING}\n"
        raise UsageError("Far enough.")

    monkeypatch.setattr("agentgym_trainer.cli._open", refuse)  # the first function that imports torch
    assert train_cli(["quickstart"]) == 2
    assert capfd.readouterr().err == "error: Far enough.\n"


def _config(*arguments: str) -> RLConfig:
    return _parse(arguments)[1].config


def test_default_recipe_is_quickstart() -> None:
    assert _parse([])[0] == "quickstart"
    assert _config() == RECIPES["quickstart"].config


def test_algorithm_flag_selects_a_preset_that_flags_modify() -> None:
    for name, preset in PRESETS.items():
        assert _config("--algorithm", "ppo", "--algorithm", name).algorithm == preset
    changed = _config(
        "babyai-grpo", "--algorithm.advantages.lam", "0.9", "--algorithm=ppo", "--algorithm.clip.dual", "3"
    )
    assert changed.algorithm == replace(PPO, advantages=GAE(lam=0.9), clip=Clip(dual=3.0))
    assert changed == replace(RECIPES["babyai-grpo"].config, algorithm=changed.algorithm)


def test_horizon_flag_keeps_the_stages_of_the_recipe() -> None:
    adaptive = _config("babyai-scaling", "--horizon", "adaptive", "--horizon.at-least", "7").horizon
    assert adaptive == AdaptiveHorizon((6, 13, 20), at_least=7)
    assert _config("--horizon", "adaptive", "--horizon.stages", "2", "3").horizon == AdaptiveHorizon(
        (2, 3), at_least=12
    )
    assert _config("babyai-scaling", "--horizon", "fixed").horizon == FixedHorizon(20)
    assert _config("--horizon", "step").horizon == RECIPES["quickstart"].config.horizon


def test_sampler_flag_enables_flags_of_that_sampler() -> None:
    assert _config("--sampler", "mid-success", "--sampler.floor", "0.2").sampler == MidSuccess(floor=0.2)
    assert _config("mixture", "--sampler=uniform").sampler == Uniform()


@pytest.mark.long
def test_recipe_options_apply_only_to_the_recipes_environment(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("Far enough.")

    monkeypatch.setattr("agentgym_trainer.cli._open", refuse)
    recipe_options = RECIPES["quickstart"].config.world.options
    options_text = " ".join(recipe_options)
    notice = f"The recipe's options {options_text} are for agentgym/BabyAI-v0 and are not used with lamps:mine/Lamps-v0"
    for flags, options, has_notice in (
        (["--world.env", "lamps:mine/Lamps-v0"], (), True),
        (["--world.env=lamps:mine/Lamps-v0"], (), True),
        (["--world.env", "lamps:mine/Lamps-v0", "--world.options", "lit=3"], ("lit=3",), False),
        (["--world.env", "lamps:mine/Lamps-v0", "--world.options"], (), False),
        (["--world.env", "babyai"], recipe_options, False),
        (["--world.env", "agentgym/BabyAI-v0"], recipe_options, False),
        (["--seed", "1"], recipe_options, False),
    ):
        assert _config("quickstart", *flags).world.options == options
        train_cli(["quickstart", *flags])
        assert (notice in capfd.readouterr().err) == has_notice
    assert _config("babyai-sft", "--world.env", "x:y/Z-v0").world.env == "x:y/Z-v0"


def test_every_environment_of_a_mixture_has_flags() -> None:
    config = _config("mixture", "--extra-worlds.0.weight", "3", "--world.options", "depth=(1,2)")
    assert [(world.weight, world.options) for world in config.worlds] == [(1.0, ("depth=(1,2)",)), (3.0, ())]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--algorithm", "grop"], "There is no algorithm 'grop'. Did you mean 'grpo'? There are: cispo, dapo"),
        (["--algorithm=GRPO2"], "There is no algorithm 'GRPO2'. There are: cispo, dapo"),
        (
            ["--horizon", "adaptve"],
            "There is no horizon 'adaptve'. Did you mean 'adaptive'? There are: adaptive, backward, fixed",
        ),
        (["--sampler"], "There is no sampler ''. There are: mid-success, uniform."),
    ],
)
def test_unknown_names_are_rejected_with_the_known_names(
    flags: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert error_of(["quickstart", *flags], capfd).startswith(sentence)


def test_unknown_recipe_is_rejected_with_a_suggestion(capfd: pytest.CaptureFixture[str]) -> None:
    sentence = error_of(["textcraft-grop"], capfd)
    assert sentence.startswith(
        "There is no recipe 'textcraft-grop'. Did you mean 'textcraft-grpo'? There are: babyai-dagger, babyai-distill"
    )


def test_unknown_flag_is_rejected_with_a_suggestion(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(["textcraft-grpo", "--optimizer.lrr", "1"]) == 2
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "--optimizer.lr" in err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["quickstart", "--learning-rate", "1"], "There is no --learning-rate. Here that is --optimizer.lr."),
        (
            ["quickstart", "--batch_size=3"],
            "There is no --batch_size. Here that is --tasks-per-step times",
        ),
        (
            ["quickstart", "--horizon.turns", "3"],
            "There is no --horizon.turns. It is a flag of --horizon fixed or backward: add that to the command.",
        ),
        (["--algorithm.advantages.lam", "1"], "It is a flag of --algorithm ppo"),
        (["--data.files", "x"], "It is a flag of other recipes, such as sft-textcraft, dpo-textcraft, evol-textcraft."),
        (["sft-textcraft", "--group-size", "3"], "It is a flag of other recipes, such as quickstart."),
        (["babyai-sft", "--world.agnet", "bare"], "There is no --world.agnet. Did you mean --world.agent?"),
        (
            ["quickstart", "--floor", "1", "--sampler", "mid-success"],
            "There is no --floor. Did you mean --sampler.floor?",
        ),
    ],
)
def test_unknown_flag_error_names_the_intended_flag(
    arguments: list[str], answer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_cli(arguments) == 2
    assert answer in capfd.readouterr().err


def test_known_flags_are_not_reported_as_unknown(capfd: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--world.no-instructions",
        "--no-tiny",
        "--extra-worlds.0.weight",
        "3",
        "--horizon.stages",
        "2",
        "--tasks-per-step",
        "x",
    ]
    assert train_cli(["mixture", *flags]) == 2
    assert "There is no" not in capfd.readouterr().err


def test_examples_and_synonyms_in_the_help_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text("steps = 3")
    RunFolder.create(Path("runs/mine"), RECIPES["quickstart"].config, "quickstart")
    for example in EXAMPLES:
        program, *arguments = example.split()
        assert program == "train"
        _parse(arguments)
    fixed = ["--horizon", "fixed"]
    known_flags = set(flag_names(_parse(["quickstart", *fixed])[1]))
    for synonym, replacement in SYNONYMS.items():
        assert synonym not in known_flags
        assert set(re.findall(r"--([\w.-]+)", replacement)) <= known_flags


def test_list_prints_all_recipes(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(["--list"]) == 0
    listed = [line.partition(":")[0].strip() for line in capfd.readouterr().out.splitlines()]
    assert listed == list(RECIPES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks-per-step", "0"], "tasks_per_step must be at least 1, not 0."),
        (["--evaluation.ks", "1", "9"], "pass@9 needs"),
        (["--horizon.stages", "5", "3"], "horizon.stages are numbers of turns, at least 1 and never falling"),
        (["--scratch.vocab", "12"], "at least 259 entries, not 12"),
        (["--minibatches", "1000"], "128 episodes can't be split into 1000 minibatches"),
        (["--horizon", "adaptive", "--evaluation.every", "0"], "An adaptive horizon needs evaluations"),
    ],
)
def test_values_out_of_range_are_rejected(flags: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(["quickstart", *flags]) == 2
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert message in " ".join(err.replace("│", " ").split())
