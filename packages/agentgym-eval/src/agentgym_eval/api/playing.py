"""What `evaluate` and `collect` share, as functions and as commands: playing runs, and reporting what happens."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from agentgym_envs import Episode
from agentgym_envs.util.redaction import redacted

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.runs.item_ids import read_items
from agentgym_eval.runs.run import Run, play_runs
from agentgym_eval.util.errors import UsageError
from agentgym_eval.util.progress import progress

_logger = logging.getLogger("agentgym_eval")
_Result = TypeVar("_Result")


def _ignore(_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Where runs report what happens while they are played."""

    warn: Callable[[str], object]
    """Called with each sentence that the user should know of."""
    say: Callable[[str], object]
    """Called with each sentence for information, such as the usage of an endpoint."""
    shows_progress: bool
    """Whether to show the progress on stderr."""
    opened: Callable[[Sequence[Run]], object] = _ignore
    """Called with the runs before they are played."""
    check: Callable[[], object] = lambda: None
    """Called after each episode; an exception that it raises ends the runs."""


def log_reporter(*, shows_progress: bool, check: Callable[[], object]) -> Reporter:
    """Return a reporter to the logger `agentgym_eval`."""

    def say(sentence: str) -> None:
        _logger.info("%s", redacted(sentence))

    return Reporter(warn=warn, say=say, shows_progress=shows_progress, check=check)


def warn(sentence: str) -> None:
    """Log a warning, without secrets."""
    _logger.warning("%s", redacted(sentence))


def play(runs: Sequence[Run], reporter: Reporter, *, several: bool = False) -> Sequence[Run]:
    """Play runs of one policy. With `several`, return those whose environment it can't play, instead of raising."""
    asked = runs[0].settings
    if asked.skip and (without := read_items(asked.items).without_tasks):
        reporter.warn(f"Left out: {without}")
    skipped: list[Run] = []

    def skip(run: Run, why: UsageError) -> None:
        skipped.append(run)
        reporter.warn(f"Skipping {run.settings.policy} in {run.settings.env}: {why}")

    for sentence in (run.protocol_note for run in runs if run.protocol_note and run.missing):
        reporter.say(sentence)
    for sentence in (sentence for run in runs for sentence in run.left_out):
        reporter.warn(sentence)
    reporter.opened(runs)
    with (
        _showing(runs, reporter) as show,
        closing(play_runs(runs, unplayable=skip if several else None)) as episodes,
    ):
        for episode in episodes:
            show(episode)
            reporter.check()
    if changed := sum(len(run.store.journal.diverged) for run in runs):
        reporter.warn(
            f"In {changed} episodes the environment's observations differ from those before the interruption, so the "
            "recorded replies could not be reused from there on and new ones were requested."
        )
    if used := _spent(runs):
        reporter.say(used)
    return skipped


@contextmanager
def _showing(runs: Sequence[Run], reporter: Reporter) -> Generator[Callable[[Episode], object]]:
    if not reporter.shows_progress:
        yield _ignore
        return
    title = f"{runs[0].settings.label} in {', '.join(run.settings.env for run in runs)}"
    done = [episode for run in runs for episode in run.episodes]
    total = sum(len(run.episode_specs) for run in runs)
    with progress(title, done, total, spent=partial(_spent, runs)) as show:
        yield show


def _spent(runs: Sequence[Run]) -> str:
    usage = sum((run.usage for run in runs), start=Usage())
    return usage.sentence(runs[0].settings.endpoint.price) if usage.requests else ""


def too_many_failed(failed: int, episodes: int, max_failed: float, broke: str = "environment broke") -> str:
    """Return a sentence if more episodes failed than `max_failed` allows; else an empty string."""
    if failed <= max_failed * episodes:
        return ""
    return (
        f"{failed} of {episodes} episodes failed, more than --max-failed {max_failed:g} allows: the {broke}, "
        "not the policy. See `error` in the episodes for the causes; fix them and start over with --overwrite."
    )


def outside_loop(work: Callable[[Callable[[], object]], _Result]) -> _Result:
    """Do work that runs an event loop, in a thread of its own where one is running already, as in a notebook.

    Args:
        work: Gets a function to call from time to time, which raises `KeyboardInterrupt` after an interruption.
    """
    if not _loop_runs():
        return work(lambda: None)
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1, "episodes") as thread:
        try:
            return thread.submit(work, check).result()
        except BaseException:
            interrupted.set()
            raise


def _loop_runs() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
