"""Progress of a run on stderr: a live bar on a terminal, and elsewhere a line at the start and one at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from agentgym_envs import Episode
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@contextmanager
def progress(title: str, done: Sequence[Episode], total: int) -> Generator[Callable[[Episode], None]]:
    """Show a run of `total` episodes, of which `done` are there already; gives what to call with each new episode."""
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    tally = _Tally(done)
    resumed = f", of which {len(done)} are there already" if done else ""
    console.print(f"{title}: {total} episodes{resumed}")
    began = time.monotonic()
    with Progress(*_COLUMNS, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("playing", total=total, completed=len(done), note=tally.note())

        def show(episode: Episode) -> None:
            tally.add(episode)
            bar.update(task, advance=1, note=tally.note())

        yield show
    console.print(f"{tally.episodes - len(done)} episodes in {time.monotonic() - began:.1f} s, {tally.note()}")


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
