"""What a person sees of a run while it goes on: bars and a line a step in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agentgym_eval.report import Report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_Item = TypeVar("_Item")
_PLAIN_EVERY_S = 10.0


class Tracker:
    """Shows how a run goes on."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._spoke = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, Any] = {}

    @contextmanager
    def showing(self) -> Generator[None]:
        """Bars are on the screen while this is open."""
        with self._progress:
            yield

    def say(self, sentence: str) -> None:
        """One line that stays."""
        self._console.print(sentence, highlight=False)

    def phase(self, name: str, items: Iterable[_Item], total: int) -> Iterator[_Item]:
        """Pass `items` on and show how many of `total` have passed."""
        bar = self._bar(name, total)
        began = time.perf_counter()
        for item in items:
            yield item
            self._progress.advance(bar)
        if not self._console.is_terminal:
            self.say(f"{name}: {total} in {time.perf_counter() - began:.0f} s")

    def step(self, metrics: dict[str, Any]) -> None:
        """A training step has been taken; `metrics` is its line."""
        spent = sum(metrics["seconds"].values())
        tokens = metrics.get("tokens", {}).get("seen", 0)
        share = {name: "–" if metrics[name] is None else f"{metrics[name]:.2f}" for name in ("success", "score")}
        turns = "–" if metrics["turns"] is None else f"{metrics['turns']:.1f}"
        failed = f" · [red]{metrics['failed']} failed[/]" if metrics["failed"] else ""
        note = (
            f"success {share['success']} · score {share['score']} · turns {turns} of {metrics['horizon']} · "
            f"{tokens / spent:,.0f} tokens/s{failed}"
        )
        bar = self._bar("Learning by acting", self._steps)
        self._progress.update(bar, completed=metrics["step"], note=note)
        due = time.monotonic() - self._spoke > _PLAIN_EVERY_S or metrics["step"] == self._steps
        if not self._console.is_terminal and due:
            self._spoke = time.monotonic()
            self.say(f"step {metrics['step']}/{self._steps}: {note}")

    def evaluation(self, step: int, manner: str, result: Report) -> None:
        """Held-out tasks have been played."""
        success = result.overall.success
        self.say(
            f"[dim]after {step} steps, {manner} on {result.overall.tasks} test tasks:[/] "
            f"success {success.mean:.3f} [dim]({success.low:.3f} to {success.high:.3f})[/]"
        )

    def _bar(self, name: str, total: int) -> Any:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, note="")
        return self._bars[name]
