"""What a person sees of a run while it goes on: bars and a line a step in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from agentgym_eval.metrics.summary import Report
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_Item = TypeVar("_Item")
_PLAIN_EVERY_S = 10.0
PHASES = ("load", "rollout", "logprobs", "update")
"""What every step consists of, in `seconds` of its line; the engine's own seconds lie within them."""
_LESSON = {
    "loss": ("loss", ".4f"),
    "mean_token_accuracy": ("tokens foretold", ".1%"),
    "rewards/accuracies": ("pairs told apart", ".1%"),
    "rewards/margins": ("margin", ".3f"),
    "grad_norm": ("grad norm", ".2f"),
    "learning_rate": ("learning rate", ".2g"),
}
"""What of a trainer of TRL's is worth a glance, with a name and a layout."""
_WHY = {
    "steps": "the next stage of the schedule",
    "plateau": "success in evaluations has stopped rising",
    "cut": "many episodes were cut short while they still earned",
}


class _Bars(Progress):
    """Bars with the last step's figures on a line of their own, which no bar has to make room for."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield self.note


class RunConsole:
    """Shows how a run goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spoke = 0.0
        self._progress = _Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, Any] = {}

    @contextmanager
    def showing(self) -> Generator[None]:
        """Bars are on the screen while this is open."""
        with self._progress:
            yield
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()
        self._progress.note = ""

    def say(self, sentence: str) -> None:
        """One line that stays, as it is: brackets in it are no markup."""
        self._print(escape(sentence))

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    def phase(self, name: str, items: Iterable[_Item], total: int) -> Iterator[_Item]:
        """Pass `items` on and show how many of `total` have passed; of none there is nothing to show."""
        if not total:
            yield from items
            return
        bar = self._bar(name, total)
        began = time.perf_counter()
        for item in items:
            yield item
            self._progress.advance(bar)
        if not self._console.is_terminal:
            self.say(f"{name}: {total} in {time.perf_counter() - began:.0f} s")

    def step(self, metrics: dict[str, Any], steps: int) -> None:
        """One of `steps` training steps has been taken; `metrics` is its line."""
        stage, step = metrics["stage"], metrics["step"]
        if stage["number"] and stage["since"] == step - 1:
            why = _WHY.get(stage["why"], stage["why"])
            self.say(f"From step {step} on episodes have up to {metrics['horizon']} turns: {why}.")
        for warning in metrics.get("warnings", ()):
            self._print(f"[yellow]Warning ({warning['id']}, step {step}):[/] {escape(warning['sentence'])}")
        self.note("Learning by acting", step, steps, " · ".join(_figures(metrics)))

    def lesson(self, step: int, steps: int, figures: Mapping[str, float]) -> None:
        """One of `steps` steps of learning from data has been taken, with these figures of its trainer."""
        shown = [f"{label} {figures[name]:{layout}}" for name, (label, layout) in _LESSON.items() if name in figures]
        self.note("Learning from data", step, steps, " · ".join(shown))

    def note(self, doing: str, step: int, steps: int, figures: str) -> None:
        """One of `steps` steps of what is being done has been taken, with these figures."""
        self._progress.note = figures
        self._progress.update(self._bar(doing, steps), completed=step)
        due = time.monotonic() - self._spoke > _PLAIN_EVERY_S or step == steps
        if not self._console.is_terminal and due:
            self._spoke = time.monotonic()
            self._print(f"step {step}/{steps}: {figures}")

    def evaluation(self, step: int, manner: str, split: str, result: Report) -> None:
        """Tasks of this split have been played."""
        success = result.overall.success
        self._print(
            f"[dim]after {step} steps, {manner} on {result.overall.tasks} {split} tasks:[/] "
            f"success {success.mean:.3f} [dim]({success.low:.3f} to {success.high:.3f})[/]"
        )

    def _bar(self, name: str, total: int) -> Any:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        return self._bars[name]


def _figures(metrics: dict[str, Any]) -> Iterator[str]:
    """What of a step's line is worth a glance."""

    def said(name: str, layout: str) -> str:
        return "–" if metrics.get(name) is None else format(metrics[name], layout)

    yield f"success {said('success', '.2f')}"
    if len(metrics["worlds"]) > 1:
        for name, world in metrics["worlds"].items():
            yield f"{name.rpartition('/')[2]} " + ("–" if world["success"] is None else f"{world['success']:.2f}")
    yield f"score {said('score', '.2f')}"
    if "shaped_return" in metrics:
        yield f"shaped return {said('shaped_return', '.2f')}"
    attempts = f" in {said('trials', '.1f')} attempts" if (metrics.get("trials") or 1) > 1 else ""
    yield f"turns {said('turns', '.1f')} of {metrics['horizon']}{attempts}"
    yield f"KL {said('ref_kl' if 'ref_kl' in metrics else 'approx_kl', '.4f')}"
    yield f"entropy {said('entropy', '.2f')}"
    yield f"advantage {said('advantage/mean_token', '+.2f')}"
    yield f"grad norm {said('grad_norm', '.2f')}"
    yield f"{said('tokens_per_s', ',.0f')} tokens/s"
    seconds = metrics["seconds"]
    yield f"engine busy {seconds['engine'] / sum(seconds.get(phase, 0.0) for phase in PHASES):.0%}"
    if metrics["failed"]:
        yield f"[red]{metrics['failed']} failed[/]"
