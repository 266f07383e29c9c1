"""Checks that need other processes: dependence on the hash seed or on the order of directory listings, and printing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from agentgym_envs.checks import transcript_script
from agentgym_envs.core.text_env import TextEnv

_SHOWN = 300


class NotAlike(Exception):
    """A violation of the contract in another process; the message says which."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The output of a process."""

    exit_code: int
    stdout: str
    stderr: str
    transcript: list[tuple[str, Any]]


def check_elsewhere(world: TextEnv, tasks: int) -> None:
    """Play the first tasks of each split in two processes that differ in hash seed and directory order.

    An environment that no other process can import is skipped with a warning.

    Raises:
        NotAlike: if the transcripts differ, the environment prints, or it can't be made there.
    """
    job = _job(world, tasks)
    if job is None:
        warnings.warn(
            f"{type(world).__name__} can't be made in another process: define it in a module and register it. Checks "
            "of printing and of dependence on the hash seed and the order of files are skipped.",
            stacklevel=4,
        )
        return
    (one, other) = _play(job, ("1", "forward"), ("2", "backward"))
    for outcome in (one, other):
        _check_quiet(outcome)
    if one.transcript != other.transcript:
        (third,) = _play(job, ("2", "forward"))
        _check_quiet(third)
        depends_on_seed = one.transcript != third.transcript
        raise NotAlike(_difference(one, third, _SEED) if depends_on_seed else _difference(one, other, _ORDER))


_SEED = "between processes with different hash seeds. Sort the elements of sets before showing or choosing them."
_ORDER = "with the order in which the system lists a directory. Sort the results of os.listdir, glob and iterdir."


def _job(world: TextEnv, tasks: int) -> bytes | None:
    """Return the script's stdin, or None if no other process can make this environment."""
    maker, spec = type(world), world.spec
    if spec is None or maker.__module__ == "__main__":
        return None
    try:
        return pickle.dumps(sys.path) + pickle.dumps((maker, spec.kwargs, tasks))
    except (pickle.PicklingError, AttributeError, TypeError):  # a class within a function, an option such as a lock
        return None


def _play(job: bytes, *variants: tuple[str, str]) -> list[_Outcome]:
    """Play in one process per pair of hash seed and order, concurrently."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentgym-check-")))
        started: list[tuple[Path, subprocess.Popen[bytes]]] = []
        for seed, order in variants:
            subfolder = folder / f"{seed}-{order}"
            subfolder.mkdir()
            (subfolder / "job").write_bytes(job)
            stdin = stack.enter_context((subfolder / "job").open("rb"))
            stdout, stderr = (stack.enter_context((subfolder / name).open("wb")) for name in ("out", "err"))
            out = str(subfolder / "transcript")
            command = [sys.executable, "-P", "-W", "ignore", transcript_script.__file__, order, out]
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)  # if the other process can't be started, or on Ctrl-C
            started.append((subfolder, process))
        return [_read(subfolder, process.wait()) for subfolder, process in started]


def _read(folder: Path, exit_code: int) -> _Outcome:
    stdout, stderr = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return _Outcome(exit_code, stdout, stderr, [] if exit_code else pickle.loads((folder / "transcript").read_bytes()))


def _check_quiet(outcome: _Outcome) -> None:
    if outcome.exit_code:
        reason = (outcome.stderr.strip().splitlines() or [f"exit code {outcome.exit_code}"])[-1]
        raise NotAlike(f"The environment can't be played in a process of its own: {reason}")
    for stream, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if text:
            raise NotAlike(
                f"The environment writes to {stream}: {text[:_SHOWN]!r}. This clutters the user's terminal: silence "
                "the simulator, or redirect its output to a log."
            )


def _difference(one: _Outcome, other: _Outcome, cause: str) -> str:
    pairs = zip_longest(one.transcript, other.transcript, fillvalue=("the end", None))
    (label, value), (_, other_value) = next(pair for pair in pairs if pair[0] != pair[1])
    first, second = repr(value), repr(other_value)
    difference = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    begin = max(0, difference - 60)
    shown, other_shown = first[begin : begin + _SHOWN], second[begin : begin + _SHOWN]
    return f"{label}, differs {cause} One process: {shown} The other: {other_shown}"
