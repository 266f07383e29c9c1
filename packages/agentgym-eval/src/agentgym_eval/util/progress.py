"""Progress of a run on stderr: a live bar on a terminal; otherwise a line at the start, every 30 s and at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext

from agentgym_envs import Episode
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


_EVERY_S = 30.0


@contextmanager
def progress(
    title: str,
    done: Sequence[Episode],
    total: int,
    *,
    spent: Callable[[], str] = str,
    stopping: threading.Event | None = None,
) -> Generator[Callable[[Episode], None]]:
    """Show the progress of a run of `total` episodes, of which `done` exist already. Yields a function that takes each
    new episode.

    Args:
        title: The policy and environments.
        done: Episodes of earlier sessions.
        total: Number of episodes at the end.
        spent: Returns the usage so far, which is shown even before the first episode ends; empty to show none.
        stopping: Event that times the lines every 30 s; it is set at the end.
    """
    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    tally = _Tally(done)
    resumed = f", {len(done)} of them already done" if done else ""
    console.print(f"{title}: {total} episodes{resumed}")
    began = time.monotonic()

    def so_far() -> str:
        used = f", {usage}" if (usage := spent()) else ""
        return f"{tally.episodes}/{total} episodes after {time.monotonic() - began:.0f} s, {tally.note()}{used}"

    with _Bar(*_COLUMNS, console=console, disable=not console.is_terminal, transient=True) as bar:
        bar.spent = spent
        task = bar.add_task("playing", total=total, completed=len(done), note=tally.note())

        def show(episode: Episode) -> None:
            tally.add(episode)
            bar.update(task, advance=1, note=tally.note())

        lines = _every_30_s(lambda: console.print(so_far()), stopping or threading.Event())
        with lines if bar.disable else nullcontext():
            yield show
    console.print(f"{tally.episodes - len(done)} episodes in {time.monotonic() - began:.1f} s, {tally.note()}")


@contextmanager
def counted(
    title: str, total: int, unit: str, *, stopping: threading.Event | None = None
) -> Generator[Callable[[], None]]:
    """Show how many of `total` things are done. Yields a function to call after each one.

    Args:
        title: What is being done.
        total: Number of things.
        unit: What they are, in the plural.
        stopping: As in `progress`.
    """
    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    console.print(f"{title}: {total:,} {unit}")
    began = time.monotonic()
    with Progress(*_COLUMNS, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(unit, total=total, note="")

        def so_far() -> str:
            return f"{bar.tasks[0].completed:,.0f}/{total:,} {unit} after {time.monotonic() - began:.0f} s"

        lines = _every_30_s(lambda: console.print(so_far()), stopping or threading.Event())
        with lines if bar.disable else nullcontext():
            yield lambda: bar.advance(task)


class _Bar(Progress):
    """A progress bar with the policy's usage below it."""

    spent: Callable[[], str] = str

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if usage := self.spent():
            yield usage


@contextmanager
def _every_30_s(print_line: Callable[[], None], stopping: threading.Event) -> Generator[None]:
    """Call `print_line` every 30 s in a separate thread while the context is open."""

    def run() -> None:
        while not stopping.wait(_EVERY_S):
            print_line()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class _Tally:
    """The running success rate of the episodes that did not fail."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.episodes = self._failed = self._successes = 0
        for episode in episodes:
            self.add(episode)

    def add(self, episode: Episode) -> None:
        self.episodes += 1
        self._failed += episode.failed
        self._successes += episode.success is True

    def note(self) -> str:
        scored = self.episodes - self._failed
        share = f"{self._successes / scored:.1%}" if scored else "-"
        return f"success {share}, failed {self._failed}"
