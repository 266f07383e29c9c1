"""Tests of the packages in the how-tos, built and installed as written: they train, and resume after being killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_trainer import cli
from agentgym_trainer.recipes import find_recipe
from agentgym_trainer.run.folder import RunFolder
from documents import ROOT, write_files
from metric_lines import without_measured

pytestmark = pytest.mark.long

UV = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
HOW_TOS = ("add-an-algorithm", "extend-training")
ARGUMENTS = (
    *("growing", "--algorithm", "reinforce", "--sampler", "hardest-first", "--horizon", "linear"),
    *("--reward", "no-repeats", "--reward.penalty", "0.5", "--horizon.first", "2", "--horizon.every", "1"),
    # Such a small model earns no rewards; the entropy bonus ensures that its weights change.
    *("--algorithm.advantages.scale", "0.5", "--algorithm.entropy", "0.1", "--tiny"),
)
# Kills the process after the first step is logged and before it is saved.
KILLED = """
import os, signal, sys
from agentgym_trainer import cli
from agentgym_trainer.run.folder import RunFolder

log = RunFolder.log

def logged(folder, metrics):
    log(folder, metrics)
    os.kill(os.getpid(), signal.SIGKILL)

RunFolder.log = logged
cli.main(sys.argv[1:])
"""


def run(*command: object, cwd: Path) -> None:
    result = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the import path with the packages of the how-tos, installed from their wheels."""
    base = tmp_path_factory.mktemp("packages")
    for how_to in HOW_TOS:
        write_files(ROOT / f"docs/howto/{how_to}.md", base / how_to)
        run(*UV, "build", "--quiet", "--wheel", "--out-dir", base / "dist", cwd=base / how_to)
    run(*UV, "pip", "install", "--quiet", "--no-deps", "--target", base / "site", *base.glob("dist/*.whl"), cwd=base)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(base / "site"))
        yield base / "site"


def metrics(folder: Path) -> list[dict[str, Any]]:
    return without_measured(map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))


def test_entry_points_are_listed_without_imports(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("batch_baseline", "curriculum"):
        sys.modules.pop(module, None)
    with pytest.raises(SystemExit):
        cli.main(["--list"])
    out = capsys.readouterr().out
    for line in (
        "recipes of installed packages: growing",
        "algorithms of installed packages: reinforce",
        "advantage estimators of installed packages: batch-baseline",
        "samplers of installed packages: hardest-first",
        "horizons of installed packages: linear",
        "reward shapings of installed packages: no-repeats, success-only",
    ):
        assert line in out
    assert {"batch_baseline", "curriculum"}.isdisjoint(sys.modules)
    assert find_recipe("growing").about == "the quickstart as a curriculum"


def test_killed_runs_with_all_extensions_resume_identically(site: Path, tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert cli._run([*ARGUMENTS, "--out", str(uninterrupted)]) == 0
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, "-c", KILLED, *ARGUMENTS, "--out", str(killed)]
    result = subprocess.run(call, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert len(metrics(killed)) == 1
    assert not (killed / "model").exists()

    assert cli._run(["--resume", str(killed)]) == 0
    assert metrics(killed) == metrics(uninterrupted)
    assert [line["horizon"] for line in metrics(uninterrupted)] == [2, 3]
    assert {"score", "shaped_return"} <= metrics(uninterrupted)[0].keys()
    weights = [(folder / "model/model.safetensors").read_bytes() for folder in (uninterrupted, killed)]
    assert weights[0] == weights[1] != (uninterrupted / "start/model.safetensors").read_bytes()

    config = json.loads((uninterrupted / "run.json").read_text(encoding="utf-8"))["config"]
    assert config["algorithm"]["advantages"] == {"type": "batch_baseline:BatchBaseline", "scale": 0.5}
    assert config["sampler"] == {"type": "curriculum:HardestFirst", "floor": 0.05}
    assert config["horizon"] == {"type": "curriculum:Linear", "first": 2, "last": 12, "every": 1}
    assert config["reward"] == {"type": "curriculum:NoRepeats", "penalty": 0.5}
    assert RunFolder.open(uninterrupted)[1] == RunFolder.open(killed)[1]
    assert RunFolder.open(uninterrupted)[2] == "growing"


def test_functions_are_restored_and_missing_packages_reported(
    site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    recipe, command = cli._parse(["growing", "--reward", "success-only"])
    RunFolder.create(folder, command.config, recipe)
    assert json.loads((folder / "run.json").read_text())["config"]["reward"] == {"type": "curriculum:success_only"}
    assert RunFolder.open(folder)[1] == command.config

    # The folder `curriculum` of the trainer's tests would be found as a namespace package.
    others = [entry for entry in sys.path if entry != str(site) and not Path(entry, "curriculum").is_dir()]
    monkeypatch.setattr(sys, "path", others)
    monkeypatch.delitem(sys.modules, "curriculum")
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(["--resume", str(folder)])
    assert end.value.code == 2
    stderr = " ".join(capfd.readouterr().err.split())
    assert "can't be imported: No module named 'curriculum'. Install its package" in stderr
    assert "Traceback" not in stderr
