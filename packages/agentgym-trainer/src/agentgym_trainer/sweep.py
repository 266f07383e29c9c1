"""Sweeps: one run for each combination of values and seeds, in processes of their own, resumed together.

Nothing here imports torch: the runs do.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_envs.util.installation import command
from agentgym_eval.util.errors import UsageError, listed
from agentgym_eval.util.stopping import Termination
from rich.console import Console

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config_files import SETTINGS, read_run

if TYPE_CHECKING:
    from agentgym_eval.metrics.comparison import Difference

_POLL_S = 0.2
_OF_SWEEP = ("--sweep", "--seeds", "--sweep-processes", "--out")
"""Flags that the single runs don't get."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    setting: str
    """Its values, such as `optimizer.lr=1e-3`; empty if only seeds vary."""
    seed: int | None
    """None if the seed isn't varied."""
    folder: Path
    arguments: tuple[str, ...] = field(repr=False)
    """The command line of the run."""

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return (self.folder / "summary.json").is_file()

    @property
    def started_with(self) -> list[str]:
        """The command line that starts or resumes the run."""
        begun = (self.folder / SETTINGS).is_file()
        return ["--resume", str(self.folder)] if begun else [*self.arguments, "--out", str(self.folder)]


def run_sweep(
    runs: Sequence[SweepRun],
    processes: int,
    parse: Callable[[Sequence[str]], BaseConfig],
    again: str,
    early: Termination,
) -> int:
    """Train the runs of a sweep that aren't complete, and print a table of all; return the exit code.

    Args:
        runs: All runs of the sweep.
        processes: Number of runs at a time.
        parse: Returns the configuration of a run's command line.
        again: The command of the sweep, which continues it.
        early: Records SIGTERM and SIGUSR1.

    Raises:
        UsageError: as `check_existing`.
        SystemExit: as `check_existing`.
    """
    console = Console(stderr=True)
    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    if processes < 1:
        raise UsageError(f"--sweep-processes must be at least 1, not {processes}.")
    check_existing(runs, parse)
    done, out = sum(run.done for run in runs), runs[0].folder.parent
    say(f"{len(runs)} runs in {out}" + (f", {done} of them already complete" if done else ""))
    codes = play_sweep(runs, processes, say, early)
    failed = [folder.name for folder, code in codes.items() if code]
    for line in sweep_table(runs):
        sys.stdout.write(f"{line}\n")
    missing = sum(not run.done for run in runs)
    if missing:
        which = f" ({listed(failed)})" if failed else ""
        say(f"{missing} of {len(runs)} runs are not complete{which}; the same command continues: {again}")
        if early.received:
            return early.exit_code
        return max((code if code > 0 else 1 for code in codes.values() if code), default=1)  # below 0: by a signal
    say(f"View the runs in a browser: {command('view')} {shlex.quote(str(out))}")
    return 0


def sweep_runs(arguments: Sequence[str], sweep: Sequence[str], seeds: Sequence[int], out: Path) -> list[SweepRun]:
    """Return the runs of a sweep: every combination of values, each with every seed.

    Args:
        arguments: The command line of the sweep.
        sweep: For each varied setting `FLAG=VALUE,VALUE,...`, without dashes. A value with spaces is several words.
        seeds: The seeds; empty to leave the seed as it is.
        out: The folder of the sweep.

    Raises:
        UsageError: if a setting is malformed or named twice, or two runs would have the same folder.
    """
    settings = dict(map(_values, sweep))
    if len(settings) < len(sweep):
        raise UsageError("--sweep names a setting twice; write all its values after one =, separated by commas.")
    if seeds and ("seed" in settings or "--seed" in {word.partition("=")[0] for word in arguments}):
        raise UsageError("--seeds gives the seeds of a sweep; leave out --seed and --sweep seed=.")
    common, runs = _without(arguments, _OF_SWEEP), list[SweepRun]()
    for values in product(*settings.values()):
        setting = " ".join(f"{flag}={value}" for flag, value in zip(settings, values, strict=True))
        flags = [word for flag, value in zip(settings, values, strict=True) for word in _words(flag, value)]
        for seed in seeds or (None,):
            seeded = [] if seed is None else ["--seed", str(seed)]
            name = " ".join([setting, *([] if seed is None else [f"seed={seed}"])]).strip()
            folder = out / re.sub(r"[^\w.=+-]+", "-", name.replace(" ", "_"))
            runs.append(SweepRun(setting, seed, folder, (*common, *flags, *seeded)))
    if len({run.folder for run in runs}) < len(runs):
        raise UsageError(
            "--sweep or --seeds has the same value twice, or two that differ only in special characters, for which two "
            "runs would have the same folder; give each value once."
        )
    return runs


def _words(flag: str, value: str) -> tuple[str, ...]:
    """Return the command line of a value. A flag that is on or off takes True and False here."""
    group, dot, name = flag.rpartition(".")
    on_or_off = {"True": f"--{flag}", "False": f"--{group}{dot}no-{name}"}
    return (on_or_off[value],) if value in on_or_off else (f"--{flag}", *value.split())


def _values(setting: str) -> tuple[str, list[str]]:
    flag, equals, values = setting.partition("=")
    found = [value.strip() for value in _between_commas(values)]
    if not (flag and equals and all(found)):
        raise UsageError(
            f"--sweep {setting} is not of the form FLAG=VALUE,VALUE,..., such as --sweep optimizer.lr=1e-5,2e-5."
        )
    return flag.removeprefix("--"), found


def _between_commas(values: str) -> Iterator[str]:
    """Yield the parts of a text between the commas that are outside of quotes and brackets."""
    start, depth, quote = 0, 0, ""
    for at, character in enumerate(values):
        if quote or character in "'\"":
            quote = "" if quote == character else quote or character
        elif character == "," and not depth:
            yield values[start:at]
            start = at + 1
        else:
            depth += (character in "([{") - (character in ")]}" and depth > 0)
    yield values[start:]


def _without(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the arguments without these flags and their values."""
    kept, dropping = list[str](), False
    for word in arguments:
        if word.startswith("--"):
            dropping = word.partition("=")[0].replace("_", "-") in flags
        if not dropping:
            kept.append(word)
    return kept


def check_existing(runs: Sequence[SweepRun], parse: Callable[[Sequence[str]], BaseConfig]) -> None:
    """Parse the command line of every run, and check that the existing runs have these settings.

    Raises:
        UsageError: if a value is wrong, or a folder holds a run with other settings.
        SystemExit: with 2, after reporting wrong flags.
    """
    for run in runs:
        config = parse(run.arguments)
        if (run.folder / SETTINGS).is_file() and read_run(run.folder)[0] != config:
            raise UsageError(f"{run.folder} holds a run with other settings; choose another --out for this sweep.")


def play_sweep(
    runs: Sequence[SweepRun], processes: int, say: Callable[[str], object], early: Termination
) -> dict[Path, int]:
    """Train the runs that aren't complete, and return the exit codes of those that were started, by folder.

    After a signal, it is passed on to the active runs, which save their progress, and no others are started.

    Args:
        runs: The runs, in the order in which they are started.
        processes: Number of runs at a time. If more than 1, each prints to a file next to its folder.
        say: Called with a sentence when a run starts or ends.
        early: Records SIGTERM and SIGUSR1.
    """
    waiting, codes = [run for run in runs if not run.done], dict[Path, int]()
    active = dict[Path, subprocess.Popen[bytes]]()
    passed_on = False
    with ExitStack() as files:
        while active or (waiting and not passed_on):
            try:
                while waiting and len(active) < processes and not passed_on:
                    run = waiting.pop(0)
                    say(f"run {len(runs) - len(waiting)} of {len(runs)}: {run.folder.name}")
                    active[run.folder] = _start(run, files, logged=processes > 1)
                time.sleep(_POLL_S)
                if early.received and not passed_on:
                    passed_on = True
                    _pass_on(active, early.received)
                for folder in [folder for folder, process in active.items() if process.poll() is not None]:
                    codes[folder] = active.pop(folder).returncode
            except KeyboardInterrupt:
                passed_on = True
                _pass_on(active, signal.SIGINT)
    return codes


def _start(run: SweepRun, files: ExitStack, *, logged: bool) -> subprocess.Popen[bytes]:
    output: Any = None
    if logged:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        output = files.enter_context(run.folder.with_name(f"{run.folder.name}.log").open("ab"))
    return subprocess.Popen([sys.executable, "-m", "agentgym_trainer", *run.started_with], stdout=output, stderr=output)


def _pass_on(active: dict[Path, subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to all runs. They take a second SIGINT within a second, from the terminal, as the same."""
    for process in active.values():
        if process.poll() is None:
            process.send_signal(number)


def sweep_table(runs: Sequence[SweepRun]) -> Iterator[str]:
    """Yield a line for each setting whose runs are all complete: mean success over seeds of the final models, and the
    difference from the first of these settings, by `agentgym_eval.compare`, with p-values adjusted for the number of
    settings (Holm 1979). Runs without common tasks have no difference. Success is on dev tasks if they were played: a
    choice by test tasks would make their results too good.
    """
    from agentgym_eval.metrics.comparison import holm

    from agentgym_trainer.run.evaluation_files import load_evaluation

    by_setting: dict[str, list[SweepRun]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    complete = {
        name: [_final(run) for run in group] for name, group in by_setting.items() if all(r.done for r in group)
    }
    for name, group in [*complete.items()]:
        if damaged := [(path, damage) for path, _ in group if (damage := load_evaluation(path)[1])]:
            yield f"{name or 'all'}: left out, since {damaged[0][0]} is incomplete: {damaged[0][1]}"
            del complete[name]
    paths = {name: [path for path, _ in group] for name, group in complete.items()}
    first, *others = complete or [""]
    found = {name: _difference(paths[first], paths[name]) for name in others}
    adjusted = holm({name: difference.p for name, difference in found.items() if difference})
    for name, files in paths.items():
        means, split = [_mean(file) for file in files], complete[name][0][1]
        over = f"{len(means)} run{'s' * (len(means) > 1)}"
        line = f"{name or 'all'}: success on {split} tasks {sum(means) / len(means):.3f} over {over}"
        if difference := found.get(name):
            at, over = difference.difference, "seeds" if len(files) > 1 else "tasks"
            line += (
                f", {at.mean:+.3f} from {first} ({at.low:+.3f} to {at.high:+.3f} over {over}, p {adjusted[name]:.3f})"
            )
        yield line


def _difference(first: Sequence[Path], second: Sequence[Path]) -> Difference | None:
    """Return the difference in success over seeds, or over tasks of single runs; None if they have no common tasks."""
    from agentgym_eval import compare

    try:
        found = compare(first, against=second) if len(second) > 1 else compare([*first, *second])
    except UsageError:
        return None
    return (found.across_seeds or found.comparisons[0]).success


def _final(run: SweepRun) -> tuple[Path, str]:
    """Return the file of the evaluation of a complete run's final model and the split of its tasks: that of the
    evaluations during training, or test if there are none.
    """
    from agentgym_eval import TrainingRun

    read = TrainingRun(run.folder)
    sampled = [at for at in read.evaluations if at.decoding == "sampled" and at.step == read.model_step]
    found = sampled[0]
    return found.path, "test" if found.test else read.settings.get("evaluation", {}).get("split", "dev")


def _mean(file: Path) -> float:
    from agentgym_eval import Report, load_run

    report = load_run(file)
    return report.success.mean if isinstance(report, Report) else float("nan")
