"""What `check_text_env` finds only in other processes: a world that depends on the hash seed or on the order in which
directories are listed, or that prints.
"""

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
    """The world broke a clause in another process; the message says which."""


@dataclass(frozen=True, slots=True)
class _Played:
    """What came out of a process."""

    code: int
    printed: str
    complaint: str
    """What it wrote to stderr."""
    transcript: list[tuple[str, Any]]


def check_elsewhere(world: TextEnv, tasks: int) -> None:
    """Play the first tasks of each split in two processes that differ in hash seed and order of directories.

    A world that no other process can import is left out with a warning.

    Raises:
        NotAlike: when the transcripts differ, the world prints, or it can't be made there.
    """
    job = _job(world, tasks)
    if job is None:
        warnings.warn(
            f"{type(world).__name__} can't be made in another process: define it in a module and register it. What "
            "depends on the hash seed or the order of files, and what is printed, is not checked.",
            stacklevel=4,
        )
        return
    (one, other) = _play(job, ("1", "forward"), ("2", "backward"))
    for played in (one, other):
        _check_quiet(played)
    if one.transcript != other.transcript:
        (third,) = _play(job, ("2", "forward"))
        _check_quiet(third)
        seed = one.transcript != third.transcript
        raise NotAlike(_difference(one, third, _SEED) if seed else _difference(one, other, _ORDER))


_SEED = "between processes with different hash seeds. Sort what comes out of a set before it is shown or chosen from."
_ORDER = "with the order in which the system lists a directory. Sort what os.listdir, glob or iterdir give."


def _job(world: TextEnv, tasks: int) -> bytes | None:
    """What the script reads from stdin; None where no other process can make this world."""
    maker, spec = type(world), world.spec
    if spec is None or maker.__module__ == "__main__":
        return None
    try:
        return pickle.dumps(sys.path) + pickle.dumps((maker, spec.kwargs, tasks))
    except (pickle.PicklingError, AttributeError, TypeError):  # a class within a function, an option like a lock
        return None


def _play(job: bytes, *ways: tuple[str, str]) -> list[_Played]:
    """Play in one process for each hash seed and order, all at the same time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentgym-check-")))
        started: list[tuple[Path, subprocess.Popen[bytes]]] = []
        for seed, order in ways:
            at = folder / f"{seed}-{order}"
            at.mkdir()
            (at / "job").write_bytes(job)
            stdin = stack.enter_context((at / "job").open("rb"))
            stdout, stderr = (stack.enter_context((at / name).open("wb")) for name in ("out", "err"))
            command = [sys.executable, "-P", "-W", "ignore", transcript_script.__file__, order, str(at / "transcript")]
            surroundings = {**os.environ, "PYTHONHASHSEED": seed}
            process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=surroundings)
            stack.callback(process.wait)
            stack.callback(process.kill)  # where the other one could not be started, or Ctrl-C was pressed
            started.append((at, process))
        return [_read(at, process.wait()) for at, process in started]


def _read(at: Path, code: int) -> _Played:
    printed, complaint = ((at / name).read_text(errors="replace") for name in ("out", "err"))
    return _Played(code, printed, complaint, [] if code else pickle.loads((at / "transcript").read_bytes()))


def _check_quiet(played: _Played) -> None:
    if played.code:
        why = (played.complaint.strip().splitlines() or [f"it ended with {played.code}"])[-1]
        raise NotAlike(f"The world can't be played in a process of its own: {why}")
    for stream, text in (("stdout", played.printed), ("stderr", played.complaint)):
        if text:
            raise NotAlike(
                f"The world writes to {stream}: {text[:_SHOWN]!r}. That is the terminal of whoever plays it: silence "
                "the simulator, or send what it prints to a log."
            )


def _difference(one: _Played, other: _Played, what: str) -> str:
    pairs = zip_longest(one.transcript, other.transcript, fillvalue=("the end", None))
    (label, said), (_, said_there) = next(pair for pair in pairs if pair[0] != pair[1])
    first, second = repr(said), repr(said_there)
    apart = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    begin = max(0, apart - 60)
    shown, shown_there = first[begin : begin + _SHOWN], second[begin : begin + _SHOWN]
    return f"{label}, differs {what} Here: {shown} There: {shown_there}"
