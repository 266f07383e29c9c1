"""Tests of the Slurm and Kubernetes scripts of docs/scale.md: starting, resuming, forwarding signals, exit status.

`uv run train` is the real command with a small configuration; `srun` and `scontrol` are small scripts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import psutil
import pytest
import train_processes
import yaml
from agentgym_trainer.cli import _parse
from documents import ROOT, write_files
from patience import eventually
from toy_learner import coin_flags

pytestmark = pytest.mark.long

# Saves the arguments for the test, and runs a small configuration. `FAULT` is one of those in train_processes.py, or
# "usage-error", as for an invalid command.
UV = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
assert arguments[:2] == ["run", "train"]
arguments = arguments[2:]
if "--resume" not in arguments:
    with open("arguments.json", "w") as file:
        json.dump(arguments, file)
    arguments = json.loads(os.environ["SMALL"])
if os.environ["FAULT"] == "usage-error":
    sys.exit(2)
script = {train_processes.__file__!r}
os.execv(sys.executable, [sys.executable, script, "ddp", os.environ["FAULT"], *arguments])
"""
SRUN = '#!/bin/bash\necho $$ > step\nexec setsid --wait "$@"\n'
RUN = "runs/scaling"
SCONTROL = '#!/bin/bash\necho "$@" >> queue\n'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with the scripts of the page and the commands that they call."""
    write_files(ROOT / "docs/scale.md", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, script in {"uv": UV, "srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(train_processes.__file__).parent))
    monkeypatch.setenv("SMALL", json.dumps(coin_flags(tmp_path / RUN, "--steps", "3")))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    return tmp_path


@contextmanager
def started(command: list[str], folder: Path, fault: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own process group, as a scheduler does."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "FAULT": fault},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def wait_until_blocked(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the run is blocked, so that it can't end by itself."""
    eventually(lambda: (folder / "blocked").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]


def is_valid(folder: Path) -> bool:
    """Return whether `train` accepts the scripts' arguments, and they name the run folder."""
    arguments = json.loads((folder / "arguments.json").read_text())
    _parse(arguments)
    return Path(folder, arguments[arguments.index("--out") + 1]) == folder / RUN


def latest(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def test_a_preempted_slurm_job_is_requeued_and_resumes(cluster: Path) -> None:
    run = cluster / RUN
    with started(["bash", "job.sbatch"], cluster, "blocked") as job:
        wait_until_blocked(job, cluster)
        # --signal without `B:` signals all processes of the step, but not the job script.
        step = psutil.Process(job.pid).children(recursive=True)
        for process in step:
            process.send_signal(signal.SIGUSR1)
        _, stderr = job.communicate()
    assert job.returncode == 138, stderr
    assert is_valid(cluster)
    assert "Ended by SIGUSR1. Progress is saved" in stderr
    assert (cluster / "queue").read_text() == "requeue 4711\n"
    assert latest(run) == ["step-000001"]
    with started(["bash", "job.sbatch"], cluster, "none") as job:
        _, stderr = job.communicate()
    assert job.returncode == 0, stderr
    assert (cluster / "queue").read_text() == "requeue 4711\n"
    assert json.loads((run / "summary.json").read_text())["steps"] == 3


def test_a_terminated_pod_saves_and_its_successor_resumes(cluster: Path) -> None:
    (container,) = yaml.safe_load((cluster / "job.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    run = cluster / RUN
    command = [*container["command"], container["args"][0].replace("/runs/", f"{cluster}/runs/")]
    with started(command, cluster, "blocked") as pod:
        wait_until_blocked(pod, cluster)
        pod.send_signal(signal.SIGTERM)  # only to its first process
        _, stderr = pod.communicate()
    assert pod.returncode == 143, stderr
    assert is_valid(cluster)
    assert "Progress is saved" in stderr
    assert latest(run) == ["step-000001"]
    with started(command, cluster, "none") as pod:
        _, stderr = pod.communicate()
    assert pod.returncode == 0, stderr
    assert (run / "summary.json").exists()


def test_usage_errors_are_not_requeued(cluster: Path) -> None:
    with started(["bash", "job.sbatch"], cluster, "usage-error") as job:
        _, stderr = job.communicate()
    assert job.returncode == 2, stderr
    assert not (cluster / "queue").exists()


def test_the_launcher_waits_until_all_processes_have_saved(cluster: Path) -> None:
    config = Path(str(files("agentgym_trainer"))) / "accelerate_configs" / "cpu-ddp.yaml"
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(config), "--main_process_port", "0"]
    command = [sys.executable, *launch, train_processes.__file__, "ddp", "blocked"]
    with started(["bash", "train.sh", *command, *coin_flags(cluster / "run")], cluster, "") as job:
        wait_until_blocked(job, cluster)
        job.send_signal(signal.SIGTERM)
        _, stderr = job.communicate()
    assert job.returncode == 143, stderr
    assert stderr.count("Progress is saved") == 1
    assert "SignalException" not in stderr, "the launcher got the signal"
    assert latest(cluster / "run") == ["step-000001"]
