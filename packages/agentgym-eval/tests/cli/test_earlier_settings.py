"""Tests of `--config` and `--like` of `evaluate` and `collect`: settings from files and from earlier runs."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.cli.flags import read_flags
from agentgym_eval.cli.earlier_settings import defaults
from agentgym_eval.cli.examples import COMMON, EXAMPLES, SYNONYMS
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.runs.settings import CollectSettings, EvaluateSettings
from agentgym_eval.util.errors import UsageError

SETTINGS: dict[str, Any] = {"evaluate": EvaluateSettings, "collect": CollectSettings}
TOML = """
env = "textcraft"
policy = ["random", "oracle"]
samples = 8
k = [8]
options = ["depth=(1, 2)"]
base_url = "http://127.0.0.1:1/v1"
price = [1, 2]
max_failed = 1
"""


def parsed(command: str, *arguments: object) -> Any:
    texts = {"examples": EXAMPLES[command], "synonyms": SYNONYMS[command], "common": COMMON[command]}
    flags = list(map(str, arguments))
    return read_flags(command, SETTINGS[command], flags, **texts, from_files=lambda: defaults(SETTINGS[command], flags))


def written(folder: Path, text: str, name: str = "settings.toml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def settings_in(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["settings"]


def test_flags_replace_the_settings_of_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, TOML)
    settings = parsed("evaluate", "--config", file, "--policy", "oracle", "--seed", "3")
    endpoint = EndpointSettings(base_url="http://127.0.0.1:1/v1", price=(1.0, 2.0))
    assert settings == EvaluateSettings(
        env=("textcraft",),
        policy=("oracle",),
        samples=8,
        k=(8,),
        options=("depth=(1, 2)",),
        endpoint=endpoint,
        max_failed=1.0,
        seed=3,
    )
    assert parsed("evaluate", f"--config={file}").policy == ("random", "oracle")
    # The file alone would be wrong with one sample.
    assert parsed("evaluate", "--config", file, "--samples", "4", "--k", "4").samples == 4
    less = written(tmp_path, "k = 4", "k.toml")
    assert parsed("evaluate", "--config", less, "--env", "babyai", "--policy", "random", "--samples", 4).k == (4,)


def test_collect_takes_its_own_settings(tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps({"env": ["babyai"], "policy": "oracle", "keep": "success"}), "settings.json")
    settings = parsed("collect", "--config", file, "--out", tmp_path / "data")
    assert settings == CollectSettings(env=("babyai",), policy="oracle", keep="success", out=tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampels = 3", "There is no setting 'sampels'. Did you mean 'samples'?"),
        ("max-tokens = 3", "Did you mean 'max_tokens'?"),
        ('samples = "many"', "samples must be of type int, not 'many'"),
        ('split = "tset"', "split can't be 'tset'. Did you mean 'test'?"),
        ("env = [1]", "env.0 must be of type str, not 1"),
        ("samples =", "isn't valid TOML"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, text)
    assert evaluate(["--config", str(file), "--env", "textcraft", "--policy", "oracle"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"evaluate: --config {file}")
    assert message in error
    assert evaluate(["--config", str(tmp_path / "none.toml")]) == 2
    assert "can't be read (No such file or directory)" in capsys.readouterr().err


def test_required_flags_and_checks_remain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("evaluate", "--config", written(tmp_path, 'env = "textcraft"'))
    assert "--policy" in capsys.readouterr().err
    assert evaluate(["--config", str(written(tmp_path, TOML)), "--samples", "4"]) == 2
    assert capsys.readouterr().err.startswith("evaluate: --k 8 must be between 1 and --samples, which is 4")
    with pytest.raises(SystemExit):
        parsed("evaluate", "--env", "textcraft", "--policy", "oracle", "--lik", "x")
    assert "There is no --lik. Did you mean --like?" in capsys.readouterr().err


def test_like_plays_with_the_settings_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    flags = ["--env", "textcraft", "--tasks", "2", "--agent", "bare", "--options", "depth=(1,2)", "--seed", "4"]
    assert evaluate([*flags, "--policy", "oracle", "--horizon", "30", "--out", str(first)]) == 0
    assert evaluate(["--like", str(first), "--out", str(second)]) == 0
    assert settings_in(first) == settings_in(second)
    file = written(tmp_path, "tasks = 3\nhorizon = 5")
    changed = tmp_path / "changed"
    arguments = ["--like", str(first), "--config", str(file), "--horizon", "6", "--policy", "random"]
    assert evaluate([*arguments, "--out", str(changed)]) == 0
    different = {"tasks": 3, "horizon": 6, "policy": "random", "tasks_sha256": settings_in(changed)["tasks_sha256"]}
    assert settings_in(changed) == settings_in(first) | different
    assert evaluate(["--config", str(first / "run.json"), "--out", str(tmp_path / "third")]) == 0
    assert settings_in(tmp_path / "third") == settings_in(first)
    capsys.readouterr()
    assert evaluate(["--like", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "is no run of evaluate and no output of collect (run.json is missing). Name one of the runs in it: " in error
    assert str(first) in error
    assert evaluate(["--like", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("out", ["data", "data.jsonl"])
def test_like_collects_as_before_and_evaluates_the_same(out: str, tmp_path: Path) -> None:
    first, second = tmp_path / out, tmp_path / f"again-{out}"
    options = ["--options", "textcraft:depth=(1,2)", "--env", "textcraft", "babyai"]
    flags = [*options, "--tasks", "2", "--keep", "success", "--min-score", "0.5"]
    assert collect([*flags, "--policy", "oracle", "--out", str(first)]) == 0
    assert collect(["--like", str(first), "--out", str(second)]) == 0

    def card(path: Path) -> dict[str, Any]:
        file = path / "card.json" if path.is_dir() else path.with_suffix(".card.json")
        return json.loads(file.read_text(encoding="utf-8"))["settings"]

    assert card(first) == card(second)
    evaluated = parsed("evaluate", "--like", first)
    assert (evaluated.env, evaluated.policy, evaluated.tasks) == (("textcraft", "babyai"), ("oracle",), 2)
    assert evaluated.options == ("textcraft:depth=(1,2)",)


def run_with(folder: Path, **settings: object) -> Path:
    folder.mkdir()
    record = {"schema": "agentgym.run/1", "settings": {"env": "agentgym/TextCraft-v0", "policy": "random"} | settings}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_protocols_determine_the_settings_of_other_environments(tmp_path: Path) -> None:
    settings = {"protocol": "agentgym-rl", "tasks": 100, "horizon": 30, "max_tokens": 512, "split": "test"}
    run = run_with(tmp_path / "run", **settings)
    assert parsed("evaluate", "--like", run, "--env", "sciworld").runs()["random"]
    collected = parsed("collect", "--like", run, "--out", tmp_path / "data")
    assert (collected.tasks, collected.horizon) == (100, 30)


def test_what_a_run_does_not_keep_or_share_is_refused(tmp_path: Path) -> None:
    secret = run_with(tmp_path / "secret", options=["password=***", "depth=1"])
    with pytest.raises(UsageError, match=r"password=\*\*\* was a secret, .* Give all of --options again, with p"):
        parsed("evaluate", "--like", secret)
    assert parsed("evaluate", "--like", secret, "--options", "password=a").options == ("password=a",)
    harness = run_with(tmp_path / "harness", harness="mine:play", policy="hf:x")
    assert parsed("evaluate", "--like", harness).harness.harness == "mine:play"
    with pytest.raises(UsageError, match="was played by a harness, and collect takes none"):
        parsed("collect", "--like", harness, "--out", tmp_path / "data")
    for schema, complaint in (("agentgym.train/4", "is a training run"), ("agentgym.run/0", "of another version")):
        (secret / "run.json").write_text(json.dumps({"schema": schema, "settings": {}}), encoding="utf-8")
        with pytest.raises(UsageError, match=complaint):
            parsed("evaluate", "--like", secret)
    (secret / "run.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"run.json can't be used"):
        parsed("evaluate", "--like", secret)


def training_run(folder: Path, **config: Any) -> Path:
    world = {"env": "textcraft", "agent": "bare", "options": ["style='x y'"], "prompt": "", "instructions": False}
    settings = {"horizon": {"type": "StepHorizon", "stages": [4, 12]}, "world": world, "extra_worlds": []} | config
    settings["generation"] = {"max_tokens": 8, "temperature": 1.0}
    (folder / "model").mkdir(parents=True)
    record = {"schema": "agentgym.train/4", "kind": "rl", "config": settings}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_a_training_run_names_the_evaluation_of_its_model(tmp_path: Path) -> None:
    def suggested(run: Path, flag: str = "--like", file: str = "") -> list[str]:
        with pytest.raises(UsageError, match="is a training run, with other settings; train takes it") as error:
            parsed("evaluate", flag, run / file)
        return str(error.value).splitlines()[1:]

    run = training_run(tmp_path / "run")
    (line,) = suggested(run)
    assert suggested(run, "--config", "run.json") == [line]
    program, arguments = line.split(" evaluate ")
    assert program in ("  uv run", "  agentgym")
    assert parsed("evaluate", *shlex.split(arguments)) == EvaluateSettings(
        env=("textcraft",),
        policy=(f"hf:{run / 'model'}",),
        samples=4,
        agent="bare",
        instructions=False,
        horizon=12,
        max_tokens=8,
        options=("style='x y'",),
    )
    assert line.endswith("""--options "style='x y'\"""")
    babyai = {"env": "babyai", "agent": "react", "options": [], "prompt": "my prompt.md", "instructions": True}
    both = suggested(training_run(tmp_path / "both", extra_worlds=[babyai], horizon={"turns": 7}))
    assert len(both) == 2
    assert "--env babyai" in both[1]
    assert "--agent react --prompt 'my prompt.md' --horizon 7" in both[1]
    (played,) = suggested(training_run(tmp_path / "harness", harness="mine:play"))
    assert "--harness mine:play" in played
    assert "--agent" not in played
    assert suggested(training_run(tmp_path / "other", horizon={"own": 3})) == []
    shutil.rmtree(run / "model")
    assert suggested(run) == []


def test_the_help_lists_both_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parsed("evaluate", flag)
        out = capsys.readouterr().out
        assert "--config" in out
        assert "--like" in out
        assert "--prompt" in out
