"""Tests of sweeps: which runs there are, how they are started, stopped and continued, and the final table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.util.stopping import Termination
from agentgym_trainer import load_run, sweep
from agentgym_trainer.cli import _parse
from agentgym_trainer.config import BaseConfig
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.sweep import SweepRun, check_existing, play_sweep, sweep_runs, sweep_table
from cli_errors import error_of
from patience import eventually
from toy_learner import coin_flags, episode_with_samples, train_cli


def parse(arguments: Sequence[str]) -> BaseConfig:
    return _parse(arguments)[1].config


def test_every_combination_with_every_seed_is_a_run(tmp_path: Path) -> None:
    flags = [
        "quickstart",
        "--sweep",
        "optimizer.lr=1e-3,3e-4",
        "algorithm=grpo,ppo",
        "--steps",
        "9",
        "--seeds",
        "0",
        "7",
    ]
    runs = sweep_runs(
        [*flags, "--out", "elsewhere"], ("optimizer.lr=1e-3,3e-4", "algorithm=grpo,ppo"), (0, 7), tmp_path
    )
    assert len(runs) == 8
    assert [run.folder.name for run in runs[:3]] == [
        "optimizer.lr=1e-3_algorithm=grpo_seed=0",
        "optimizer.lr=1e-3_algorithm=grpo_seed=7",
        "optimizer.lr=1e-3_algorithm=ppo_seed=0",
    ]
    assert runs[0].setting == runs[1].setting == "optimizer.lr=1e-3 algorithm=grpo"
    assert runs[3].arguments == (
        "quickstart", "--steps", "9", "--optimizer.lr", "1e-3", "--algorithm", "ppo", "--seed", "7",
    )  # fmt: skip
    config: Any = parse(runs[7].arguments)
    assert (config.optimizer.lr, config.seed, config.steps) == (3e-4, 7, 9)
    assert runs[0].started_with[-2:] == ["--out", str(runs[0].folder)]
    (run,) = sweep_runs(["--seeds=3"], (), (3,), tmp_path)
    assert (run.folder.name, run.arguments) == ("seed=3", ("--seed", "3"))
    words = sweep_runs([], ("horizon.stages=2 3,4 5",), (), tmp_path)[1]
    assert words.arguments == ("--horizon.stages", "4", "5")
    assert words.folder.name == "horizon.stages=4_5"
    first, second = sweep_runs([], ("world.options=levels=('A','B'),levels=[('C'),'D,E']",), (), tmp_path)
    assert (first.arguments[1:], second.arguments[1:]) == (("levels=('A','B')",), ("levels=[('C'),'D,E']",))
    on, off = sweep_runs([], ("evaluation.test=True,False",), (), tmp_path)
    assert (on.arguments, off.arguments) == (("--evaluation.test",), ("--evaluation.no-test",))
    assert not parse(off.arguments).evaluation.test


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--sweep", "optimizer.lr"], "--sweep optimizer.lr is not of the form FLAG=VALUE,VALUE,..."),
        (["--sweep", "optimizer.lr=1e-3,"], "is not of the form"),
        (["--sweep", "optimizer.lr=1", "optimizer.lr=2"], "names a setting twice"),
        (["--sweep", "optimizer.lr=1e-3,1e-3"], "has the same value twice"),
        (["--seeds", "1", "2", "--seed", "1"], "leave out --seed"),
        (["--seeds", "1", "--sweep", "seed=2,3"], "leave out --seed and --sweep seed="),
        (["--sweep", "model=a/b,a:b"], "two that differ only in special characters"),
        (["--seeds", "1", "--sweep-processes", "0"], "--sweep-processes must be at least 1, not 0"),
        (["--sweep", "algorithm=grpo,pppo"], "There is no algorithm 'pppo'. Did you mean 'ppo'"),
    ],
)
def test_wrong_sweeps_start_nothing(
    flags: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sentence in error_of([*flags, "--out", str(tmp_path / "sweep")], capfd)
    assert not (tmp_path / "sweep").exists()


def test_runs_with_other_settings_are_not_continued(tmp_path: Path) -> None:
    runs = sweep_runs(["quickstart"], ("optimizer.lr=1e-3,3e-4",), (), tmp_path)
    RunFolder.create(runs[0].folder, parse(runs[0].arguments), "quickstart")
    check_existing(runs, parse)
    assert runs[0].started_with == ["--resume", str(runs[0].folder)]
    RunFolder.create(runs[1].folder, RECIPES["quickstart"].config, "quickstart")
    with pytest.raises(UsageError, match=r"3e-4 holds a run with other settings; choose another --out"):
        check_existing(runs, parse)


FINISH = "import sys, pathlib; pathlib.Path(sys.argv[1]).mkdir(); pathlib.Path(sys.argv[1], 'summary.json').touch()"
WAIT = """
import pathlib, signal, sys, threading
def end(number, frame):
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
pathlib.Path(sys.argv[1]).mkdir()
while True:
    signal.pause()
"""


def start(scripts: dict[str, str], started: list[str]) -> Any:
    """Return a function that starts a script in place of each run."""

    def begin(run: SweepRun, files: object, *, logged: bool) -> subprocess.Popen[bytes]:
        started.append(run.folder.name)
        return subprocess.Popen([sys.executable, "-c", scripts[run.folder.name], str(run.folder)])

    return begin


def test_complete_runs_are_skipped_and_failed_ones_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, started, said = sweep_runs([], (), (0, 1, 2), tmp_path), list[str](), list[str]()
    scripts = {"seed=0": FINISH, "seed=1": "raise SystemExit(1)", "seed=2": FINISH}
    monkeypatch.setattr(sweep, "_start", start(scripts, started))
    codes = play_sweep(runs, 1, said.append, Termination())
    assert {folder.name: code for folder, code in codes.items()} == {"seed=0": 0, "seed=1": 1, "seed=2": 0}
    assert said == ["run 1 of 3: seed=0", "run 2 of 3: seed=1", "run 3 of 3: seed=2"]
    assert [run.done for run in runs] == [True, False, True]
    started.clear()
    scripts["seed=1"] = FINISH
    assert len(play_sweep(runs, 2, said.append, Termination())) == 1
    assert started == ["seed=1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_active_runs_and_start_no_others(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, started = sweep_runs([], (), (0, 1, 2), tmp_path), list[str]()
    monkeypatch.setattr(sweep, "_start", start(dict.fromkeys(["seed=0", "seed=1", "seed=2"], WAIT), started))

    def send() -> None:
        eventually(lambda: runs[0].folder.exists() and runs[1].folder.exists())
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    try:
        with Termination() as early:
            sender.start()
            codes = play_sweep(runs, 2, lambda _: None, early)
    finally:
        signal.signal(signal.SIGINT, before)
    sender.join()
    assert set(codes.values()) == {128 + number}
    assert started == ["seed=0", "seed=1"]


def complete(run: SweepRun, successes: int, tasks: str = "t") -> None:
    """Write what a complete run leaves for the table: `successes` of 8 tasks in its test."""
    (run.folder / "evaluations").mkdir(parents=True)
    (run.folder / "summary.json").write_text('{"model_step": 3}')
    blank = episode_with_samples([None])
    episodes = [replace(blank, task_id=f"{tasks}/{i}", success=i < successes) for i in range(8)]
    for name in ("step-000000-sampled", "test-000003-greedy", "step-000004-sampled"):
        (run.folder / f"evaluations/{name}.jsonl").write_text(episodes[0].to_json() + "\n")
    text = "".join(f"{episode.to_json()}\n" for episode in episodes)
    (run.folder / "evaluations/test-000003-sampled.jsonl").write_text(text)


def test_settings_are_compared_with_the_first_over_seeds_or_tasks(tmp_path: Path) -> None:
    runs = sweep_runs([], ("lr=0,1,2,3",), (0, 1), tmp_path)
    for run, successes in zip(runs[2:6], (2, 4, 5, 8), strict=True):
        complete(run, successes)
    first, second = sweep_table(runs)
    assert first == "lr=1: success on test tasks 0.375 over 2 runs"
    assert second.startswith("lr=2: success on test tasks 0.812 over 2 runs, +0.438 from lr=1 (")
    assert second.endswith("over seeds, p 0.090)")
    first, second = sweep_table([runs[2], runs[4]])
    assert first == "lr=1: success on test tasks 0.250 over 1 run"
    assert "success on test tasks 0.625 over 1 run, +0.375 from lr=1 (" in second
    assert second.endswith("over tasks, p 0.250)")


def test_settings_are_compared_on_dev_tasks_if_these_were_played(tmp_path: Path) -> None:
    (run,) = sweep_runs([], ("lr=1",), (), tmp_path)
    complete(run, 2)
    dev = run.folder / "evaluations/step-000003-sampled.jsonl"
    (run.folder / "evaluations/test-000003-sampled.jsonl").rename(dev)
    assert [*sweep_table([run])] == ["lr=1: success on dev tasks 0.250 over 1 run"]
    text = dev.read_text()
    shutil.rmtree(run.folder)
    complete(run, 8)
    dev.write_text(text)
    assert [*sweep_table([run])] == ["lr=1: success on dev tasks 0.250 over 1 run"]
    (run.folder / "run.json").write_text('{"config": {"evaluation": {"split": "train"}}}')
    assert [*sweep_table([run])] == ["lr=1: success on train tasks 0.250 over 1 run"]


def test_settings_with_a_damaged_evaluation_are_left_out(tmp_path: Path) -> None:
    runs = sweep_runs([], ("lr=1,2",), (), tmp_path)
    for run in runs:
        complete(run, 4)
    file = runs[0].folder / "evaluations/test-000003-sampled.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    left_out, other = sweep_table(runs)
    assert left_out.startswith(f"lr=1: left out, since {file} is incomplete: ")
    assert other == "lr=2: success on test tasks 0.500 over 1 run"


def test_p_values_are_adjusted_for_the_number_of_settings(tmp_path: Path) -> None:
    runs = sweep_runs([], ("lr=1,2,3",), (), tmp_path)
    for run, successes in zip(runs, (2, 6, 8), strict=True):
        complete(run, successes)
    assert [line.rpartition(" p ")[2] for line in sweep_table(runs)][1:] == ["0.125)", "0.062)"]


def test_runs_without_common_tasks_are_listed_without_a_difference(tmp_path: Path) -> None:
    runs = sweep_runs([], ("world.env=a,b",), (), tmp_path)
    for run in runs:
        complete(run, 4, tasks=run.setting)
    assert [*sweep_table(runs)] == [f"world.env={env}: success on test tasks 0.500 over 1 run" for env in "ab"]


@pytest.mark.long
def test_a_sweep_trains_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the coin environment
    small = ("--steps", "1", "--warm-start.epochs", "1", "--evaluation.every", "1")
    flags = coin_flags(tmp_path / "sweep", *small, "--sweep", "optimizer.lr=1e-3,1e-2")
    assert train_cli([*flags, "--sweep-processes", "2"]) == 0
    out, err = capfd.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()] == ["optimizer.lr=1e-3", "optimizer.lr=1e-2"]
    assert f"2 runs in {tmp_path / 'sweep'}" in err
    names = ["optimizer.lr=1e-2", "optimizer.lr=1e-3"]
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {*names, *(f"{name}.log" for name in names)}
    configs: list[Any] = [load_run(tmp_path / "sweep" / name).config for name in names]
    assert [config.optimizer.lr for config in configs] == [1e-2, 1e-3]

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("*")}
    assert train_cli(flags) == 0
    again = capfd.readouterr()
    assert again.out == out
    assert "2 of them already complete" in again.err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").rglob("*")} == written
