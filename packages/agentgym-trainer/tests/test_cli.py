from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_eval.cli.flags import flag_names
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import UsageError
from agentgym_trainer import cli
from agentgym_trainer.algorithms import GAE, PPO, PRESETS, Clip
from agentgym_trainer.cli import _parse
from agentgym_trainer.cli_flags import EXAMPLES, SYNONYMS
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.curriculum.horizon import KINDS, AdaptiveHorizon, FixedHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess, Uniform
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run.folder import RunFolder
from toy_learner import train_cli

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "gymnasium", "minigrid")


LOADING = "Loading torch and transformers …"


def _error_of(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one-line error with which `train` rejects these arguments."""
    assert train_cli(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    err = err.removeprefix(f"{LOADING}\n")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()


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
    for name in [*PRESETS, *KINDS, "uniform", "mid-success"]:
        assert f" {name}," in done.stdout or f" {name}." in done.stdout


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
    assert _error_of(["quickstart", *flags], capfd).startswith(sentence)


def test_unknown_recipe_is_rejected_with_a_suggestion(capfd: pytest.CaptureFixture[str]) -> None:
    sentence = _error_of(["textcraft-grop"], capfd)
    assert sentence.startswith(
        "There is no recipe 'textcraft-grop'. Did you mean 'textcraft-grpo'? There are: babyai-dpo, babyai-grpo"
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


def test_resuming_a_folder_without_a_run_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert _error_of(["--resume", str(folder)], capfd).startswith(f"{folder} holds no training run")


def test_resuming_with_invalid_settings_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", RECIPES["quickstart"].config, "quickstart")
    record = json.loads(folder.settings.read_text())
    record["config"]["optimizer"]["momentun"] = 0.9
    folder.settings.write_text(json.dumps(record))
    assert "There is no setting 'optimizer.momentun'" in _error_of(["--resume", str(folder.path)], capfd)
    record["config"]["optimizer"] = {"lr": "fast"}
    folder.settings.write_text(json.dumps(record))
    assert "optimizer.lr must be of type float, not 'fast'" in _error_of(["--resume", str(folder.path)], capfd)
    folder.settings.write_text("{")
    assert f"{folder.settings} can't be used" in _error_of(["--resume", str(folder.path)], capfd)


@pytest.mark.parametrize(
    "arguments",
    [["textcraft-grpo", "--resume", "X"], ["--resume", "X", "--steps", "3"], ["--tiny", "--resume=X"]],
)  # fmt: skip
def test_resume_rejects_other_arguments(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert "takes no recipe or other flags" in _error_of(arguments, capfd)


def test_nonempty_folder_is_rejected_with_its_full_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "[bold]run"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    sentence = _error_of(["quickstart", "--out", str(full)], capfd)
    assert (
        sentence == f"{full} is not an empty folder; choose another --out, or continue that run with --resume {full}."
    )
    assert (full / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--world.env", "agentgym/TextCarft-v0"], "There is no environment 'agentgym/TextCarft-v0'. Did you mean"),
        (["--world.env", "no_such_module:World-v0"], "The module of the environment no_such_module:World-v0 can't be"),
        (
            ["--world.options", "dept=(1,2)"],
            "agentgym/TextCraft-v0 has no option 'dept'. Did you mean 'depth'? Its options: depth, distractors. "
            "--world.options KEY=VALUE ... replaces all options of the recipe; without values it removes them.",
        ),
        (["--world.options", "depth"], "is not of the form KEY=VALUE"),
        (["--model", "/no/such/model"], "The model /no/such/model can't be loaded"),
    ],
)
def test_missing_environments_options_and_models_are_rejected(
    flags: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        train_cli(["textcraft-grpo", "--device", "cpu", "--precision", "no", *flags, "--out", str(tmp_path / "run")])
        == 2
    )
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert message in err.splitlines()[-1]


# Other recipes differ only in numbers, or need a JVM's gold paths or a browser; test_mixture.py covers mixtures.
@pytest.mark.parametrize("name", ["quickstart", pytest.param("searchqa-scaling", marks=pytest.mark.long)])
def test_tiny_recipes_complete_two_steps(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert train_cli([name, "--tiny", "--out", str(folder.path)]) == 0
    lines = list(folder.read_metrics())
    assert [line["step"] for line in lines] == [1, 2]
    assert all("grad_norm" in line for line in lines)
    config = RECIPES[name].config
    assert lines[0]["horizon"] == config.horizon.begin().turns
    assert len(lines[0]["worlds"]) == len(config.worlds)
    for path in (folder.curve, folder.summary, folder.model / "model.safetensors"):
        assert path.exists()
    assert folder.evaluated_steps("sampled") == folder.evaluated_steps("greedy") == [0, 2]


def test_run_that_cannot_start_leaves_no_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert train_cli(["--tiny", "--world.env", "agentgym/Texcraft-v0", "--out", str(out)]) == 2
    assert "Did you mean agentgym/TextCraft-v0?" in capfd.readouterr().err
    assert not out.exists()


def test_failed_resume_leaves_the_run_unchanged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    config = replace(tiny(RECIPES["quickstart"].config), world=WorldConfig("agentgym/Gone-v0"))
    RunFolder.create(out, config, "quickstart")
    assert train_cli(["--resume", str(out)]) == 2
    assert "There is no environment 'agentgym/Gone-v0'" in capfd.readouterr().err
    assert (out / "run.json").is_file()


def test_run_locked_by_another_process_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny(RECIPES["quickstart"].config), "quickstart")
    with FolderLock(folder.path):
        before = {path: path.read_bytes() for path in folder.path.iterdir()}
        sentence = _error_of(["--resume", str(folder.path)], capfd)
        assert sentence.startswith(f"Another process is using {folder.path}: process {os.getpid()} on ")
        assert {path: path.read_bytes() for path in folder.path.iterdir()} == before
    starting = tmp_path / "begun"
    with FolderLock(starting):  # by a process that hasn't written its settings yet
        assert "Another process is using" in _error_of(["--tiny", "--out", str(starting)], capfd)
        assert [path.name for path in starting.iterdir()] == [".lock"]
    assert not starting.exists()


def test_killed_startup_does_not_block_a_new_run(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.7-7.new"):
        (tmp_path / name).write_text('{"sch')
    folder = RunFolder.create(tmp_path, RECIPES["quickstart"].config, "quickstart")
    assert RunFolder.open(folder.path)[2] == "quickstart"
    with pytest.raises(UsageError, match="is not an empty folder"):
        RunFolder.create(tmp_path, RECIPES["quickstart"].config, "quickstart")


def test_quickstart_prints_errors_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("There is no room.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "resolve_name", lambda name: refuse)
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2
    assert capfd.readouterr().err.endswith("error: There is no room.\n")
    assert list(tmp_path.glob("runs/*")) == []


def test_resume_command_quotes_the_folder_for_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "resolve_name", lambda name: interrupted)
    out = tmp_path / "Ann's first run"
    assert train_cli(["--tiny", "--out", str(out)]) == 130
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert shlex.split(last_line.removeprefix("Interrupted; resume with: ")) == [
        "uv",
        "run",
        "train",
        "--resume",
        str(out),
    ]
