"""Progress of a run on stderr: a live bar on a terminal; elsewhere a line at the start, every 30 s and at the end."""

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
    """Show a run of `total` episodes, of which `done` are there already; gives what to call with each new episode.

    Args:
        title: Who plays what.
        spent: What the player has used so far, shown while no episode has ended yet, too; empty where there is nothing.
        stopping: What the lines every 30 s are timed with; set at the end.
    """
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    tally = _Tally(done)
    resumed = f", of which {len(done)} are there already" if done else ""
    console.print(f"{title}: {total} episodes{resumed}")
    began = time.monotonic()

    def so_far() -> str:
        used = f", {told}" if (told := spent()) else ""
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


class _Bar(Progress):
    """The bar, and below it what the player has used."""

    spent: Callable[[], str] = str

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if told := self.spent():
            yield told


@contextmanager
def _every_30_s(tell: Callable[[], None], stopping: threading.Event) -> Generator[None]:
    """Call `tell` every 30 s, in a thread of its own, while this is open."""

    def go_on() -> None:
        while not stopping.wait(_EVERY_S):
            tell()

    thread = threading.Thread(target=go_on, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class _Tally:
    """The running share of successes among the episodes that did not fail."""

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
