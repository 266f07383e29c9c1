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

pytestmark = pytest.mark.long

UV = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
HOW_TOS = ("add-an-algorithm", "extend-training")
NAMED = (
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
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the import path with the packages of the how-tos, installed from their wheels."""
    place = tmp_path_factory.mktemp("packages")
    for how_to in HOW_TOS:
        write_files(ROOT / f"docs/howto/{how_to}.md", place / how_to)
        run(*UV, "build", "--quiet", "--wheel", "--out-dir", place / "dist", cwd=place / how_to)
    run(*UV, "pip", "install", "--quiet", "--no-deps", "--target", place / "site", *place.glob("dist/*.whl"), cwd=place)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place / "site"))
        yield place / "site"


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name not in ("seconds", "tokens_per_s")} for line in lines]


def test_what_they_register_is_listed_and_not_imported(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_killed_run_with_all_of_them_goes_on_as_if_nothing_had_happened(site: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert cli._run([*NAMED, "--out", str(whole)]) == 0
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, "-c", KILLED, *NAMED, "--out", str(killed)]
    done = subprocess.run(call, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(metrics(killed)) == 1
    assert not (killed / "model").exists()

    assert cli._run(["--resume", str(killed)]) == 0
    assert metrics(killed) == metrics(whole)
    assert [line["horizon"] for line in metrics(whole)] == [2, 3]
    assert {"score", "shaped_return"} <= metrics(whole)[0].keys()
    weights = [(folder / "model/model.safetensors").read_bytes() for folder in (whole, killed)]
    assert weights[0] == weights[1] != (whole / "start/model.safetensors").read_bytes()

    written = json.loads((whole / "run.json").read_text(encoding="utf-8"))["config"]
    assert written["algorithm"]["advantages"] == {"type": "batch_baseline:BatchBaseline", "scale": 0.5}
    assert written["sampler"] == {"type": "curriculum:HardestFirst", "floor": 0.05}
    assert written["horizon"] == {"type": "curriculum:Linear", "first": 2, "last": 12, "every": 1}
    assert written["reward"] == {"type": "curriculum:NoRepeats", "penalty": 0.5}
    assert RunFolder.open(whole)[1] == RunFolder.open(killed)[1]
    assert RunFolder.open(whole)[2] == "growing"


def test_a_function_is_read_back_too_and_where_it_is_missing_that_is_a_sentence(
    site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    recipe, command = cli._parse(["growing", "--reward", "success-only"])
    RunFolder.create(folder, command.config, recipe)
    assert json.loads((folder / "run.json").read_text())["config"]["reward"] == {"type": "curriculum:success_only"}
    assert RunFolder.open(folder)[1] == command.config

    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(site)])
    monkeypatch.delitem(sys.modules, "curriculum")
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(["--resume", str(folder)])
    assert end.value.code == 2
    told = " ".join(capfd.readouterr().err.split())
    assert "can't be imported: No module named 'curriculum'. Install its package" in told
    assert "Traceback" not in told
