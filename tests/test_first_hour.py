"""Tests of `benchmarks/gpu/first_hour.py`: its list, timeouts, resuming, and the steps that run on a CPU."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_trainer.cli import parse_config

SCRIPT = Path(__file__).parents[1] / "benchmarks/gpu/first_hour.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    sys.modules["first_hour"] = sys.modules[__name__]  # where its dataclass looks up annotations
    try:
        return runpy.run_path(str(SCRIPT), run_name="first_hour")
    finally:
        del sys.modules["first_hour"]


def _use(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **commands: str) -> None:
    """Replace the steps by Python code."""
    made = [
        script["Step"](name, (sys.executable, "-c", code), 0.01 if name == "hangs" else 1, "", on_cpu=True)
        for name, code in commands.items()
    ]
    monkeypatch.setitem(script["main"].__globals__, "steps", lambda *_, **__: made)


def _main(script: dict[str, Any], *words: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        script["main"](words)
    return int(exit_info.value.code or 0)


@pytest.mark.parametrize(("gpus", "last"), [("1", "train-server"), ("8", "fsdp2-4+4")])
def test_the_list_has_every_step_with_its_command_and_expectation(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str], gpus: str, last: str
) -> None:
    script["main"](["--list", "--gpus", gpus])
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert (names[0], names[-1]) == ("facts", last)
    assert len(lines) == 3 * len(names)
    assert all(Path(line.split()[1]).is_file() or line.split()[1] == "-m" for line in lines[1::3])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_training_steps_have_valid_flags(script: dict[str, Any], device: str) -> None:
    commands = [step.command for step in script["steps"]("some/model", Path("runs"), tiny=False, device=device)]
    runs = [command[command.index("agentgym_trainer") + 1 :] for command in commands if "agentgym_trainer" in command]
    assert len(runs) == 6
    assert {parse_config(arguments).device for arguments in runs} == {"auto" if device == "cuda" else "cpu"}


def test_a_step_that_fails_or_hangs_does_not_end_the_others(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _use(script, monkeypatch, fails="exit(3)", hangs="import signal; signal.pause()", works="print('done')")
    assert _main(script, "--out", str(tmp_path / "hour.json")) == 1
    found = json.loads((tmp_path / "hour.json").read_text())
    assert {name: (step["exit_code"], step["timeout"]) for name, step in found.items()} == {
        "fails": (3, False),
        "hangs": (None, True),
        "works": (0, False),
    }
    assert found["works"]["output"] == "done\n"


def test_steps_that_succeeded_are_not_repeated(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('.')"
    _use(script, monkeypatch, works=count, fails=f"{count}; exit(1)")
    out = ("--out", str(tmp_path / "hour.json"))
    assert _main(script, *out) == _main(script, *out) == 1
    assert (tmp_path / "count").read_text() == "..."
    assert _main(script, *out, "--only", "works") == 0
    assert (tmp_path / "count").read_text() == "...."


def test_a_training_step_that_failed_can_be_repeated(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "hour.json"
    real = script["steps"]
    monkeypatch.setitem(script["main"].__globals__, "steps", lambda _, runs, **__: made(runs))

    def made(runs: Path) -> list[Any]:
        (found,) = (step for step in real("model", runs, tiny=True, device="cpu") if step.name == "train")
        folder = found.command[found.command.index("--out") + 1]
        code = f"import os; os.makedirs({folder!r}); open({folder!r} + '/run.json', 'x'); exit(3)"
        return [replace(found, command=(sys.executable, "-c", code))]

    (tmp_path / "train").mkdir()  # somebody's own run beside the results
    for _ in range(2):
        assert _main(script, "--out", str(out)) == 1
        found = json.loads(out.read_text())["train"]
        assert (found["exit_code"], found["output"]) == (3, "")
    assert (tmp_path / "hour-runs" / "train" / "run.json").exists()
    assert (tmp_path / "train").is_dir()


def test_an_unknown_step_is_refused(script: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(script, "--only", "trian") == 2
    assert "no step trian; there are: facts, kernels" in capsys.readouterr().err


@pytest.mark.long
def test_all_steps_of_a_cpu_succeed_at_tiny_size(script: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "hour.json"
    assert _main(script, "--device", "cpu", "--tiny", "--out", str(out)) == 0, out.read_text()
    found = json.loads(out.read_text())
    assert {*found} == {
        "facts", "kernels", "gap-float32", "gap-bf16", "update", "update-stored", "layers", "save", "rollout", "train",
    }  # fmt: skip
    assert found["gap-float32"]["measured"]["gap"]["mean"] < 1e-4
    assert found["gap-bf16"]["measured"]["gap"]["mean"] < 0.05
    layers = found["layers"]["measured"]
    assert {"plain"} <= {way["way"] for way in layers["ways"]}
    assert {way["way"] for way in layers["ways"]} | {*layers["missing"]} == {"plain", "compiled", "liger"}
    assert max(found["kernels"]["measured"]["kernels"]["packed_sdpa"]) < 0.05
