"""The console output of a run: progress bars and one line per step in a terminal, plain lines otherwise."""

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
_PLAIN_PHASE_EVERY_S = 60.0
PHASES = ("load", "rollout", "logprobs", "update")
"""The phases of every step in the `seconds` of its metrics; the engine's own seconds are part of them."""
_TRL_METRICS = {
    "loss": ("loss", ".4f"),
    "mean_token_accuracy": ("token accuracy", ".1%"),
    "rewards/accuracies": ("preference accuracy", ".1%"),
    "rewards/margins": ("reward margin", ".3f"),
    "grad_norm": ("grad norm", ".2f"),
    "learning_rate": ("learning rate", ".2g"),
}
"""The metrics of TRL's trainers that are shown, with a label and a format."""
_REASONS = {
    "steps": "the next stage of the schedule",
    "plateau": "success in evaluations has stopped rising",
    "cut": "many episodes were truncated while they still earned reward",
}


class _Bars(Progress):
    """Progress bars with the last step's metrics on a line of their own."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield self.note


class RunConsole:
    """Shows the progress of a run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0.0
        self._stage = 0
        """Number of the stage that was shown last."""
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
        """Show progress bars within the block."""
        with self._progress:
            yield
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()
        self._progress.note = ""

    def say(self, sentence: str) -> None:
        """Print a permanent line verbatim: brackets in it are not interpreted as markup."""
        self._print(escape(sentence))

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)

    def _warn(self, markup: str) -> None:
        self._print(markup)

    def phase(self, name: str, items: Iterable[_Item], total: int, *, keep: bool = True) -> Iterator[_Item]:
        """Yield `items` and show how many of `total` have been consumed; show nothing if `total` is 0.

        Args:
            name: Name of the phase.
            items: What is counted.
            total: Number of items.
            keep: Whether the phase stays visible after its end.
        """
        if not total:
            yield from items
            return
        bar = self._bar(name, total)
        began = shown = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            self._progress.advance(bar)
            now = time.monotonic()
            if not self._console.is_terminal and now - shown > _PLAIN_PHASE_EVERY_S and done < total:
                shown = now
                self.say(f"{name}: {done} of {total} after {now - began:.0f} s")
        if not keep:
            self._progress.remove_task(self._bars.pop(name))
        elif not self._console.is_terminal:
            self.say(f"{name}: {total} in {time.monotonic() - began:.0f} s")

    def step(self, metrics: dict[str, Any], steps: int) -> None:
        """Show one of `steps` steps of reinforcement learning; `metrics` is its line."""
        stage, step = metrics["stage"], metrics["step"]
        if stage["number"] != self._stage and stage["since"] == step - 1:
            self._stage = stage["number"]
            why = _REASONS.get(stage["why"], stage["why"])
            begin = f" and begin where the expert has {left} left" if (left := stage.get("remaining")) else ""
            self.say(f"From step {step} on, episodes have up to {metrics['horizon']} turns{begin}: {why}.")
        for warning in metrics.get("warnings", ()):
            self._warn(f"[yellow]Warning ({warning['id']}, step {step}):[/] {escape(warning['sentence'])}")
        self.note("Reinforcement learning", step, steps, " · ".join(_shown(metrics)))

    def trl_step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Show one of `steps` steps of training on data, with the metrics of TRL's trainer."""
        shown = [
            f"{label} {metrics[name]:{layout}}" for name, (label, layout) in _TRL_METRICS.items() if name in metrics
        ]
        self.note("Training on data", step, steps, " · ".join(shown))

    def note(self, activity: str, step: int, steps: int, metrics: str) -> None:
        """Show one of `steps` steps of an activity, with these metrics."""
        self._progress.note = metrics
        self._progress.update(self._bar(activity, steps), completed=step)
        due = time.monotonic() - self._printed > _PLAIN_EVERY_S or step == steps
        if not self._console.is_terminal and due:
            self._printed = time.monotonic()
            self._print(f"step {step}/{steps}: {metrics}")

    def evaluation(self, step: int, decoding: str, split: str, result: Report) -> None:
        """Show the result of an evaluation on tasks of this split."""
        success, failed = result.overall.success, result.overall.failed
        self._print(
            f"[dim]after {step} steps, {decoding} on {result.overall.tasks} {split} tasks:[/] success {success}"
            + (f" [red]without {failed} failed episode{'s' * (failed > 1)}[/]" if failed else "")
        )

    def _bar(self, name: str, total: int) -> Any:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        return self._bars[name]


def _shown(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield the metrics of a step that are shown."""

    def value(name: str, layout: str) -> str:
        return "–" if metrics.get(name) is None else format(metrics[name], layout)

    yield f"success {value('success', '.2f')}"
    if len(metrics["worlds"]) > 1:
        for name, world in metrics["worlds"].items():
            yield f"{name.rpartition('/')[2]} " + ("–" if world["success"] is None else f"{world['success']:.2f}")
    yield f"score {value('score', '.2f')}"
    if "shaped_return" in metrics:
        yield f"shaped return {value('shaped_return', '.2f')}"
    attempts = f" in {value('trials', '.1f')} attempts" if (metrics.get("trials") or 1) > 1 else ""
    yield f"turns {value('turns', '.1f')} of {metrics['horizon']}{attempts}"
    yield f"KL {value('ref_kl' if 'ref_kl' in metrics else 'approx_kl', '.4f')}"
    yield f"entropy {value('entropy', '.2f')}"
    yield f"advantage {value('advantage/mean_token', '+.2f')}"
    yield f"grad norm {value('grad_norm', '.2f')}"
    yield f"{value('tokens_per_s', ',.0f')} tokens/s"
    seconds = metrics["seconds"]
    yield f"engine busy {seconds['engine'] / sum(seconds.get(phase, 0.0) for phase in PHASES):.0%}"
    if metrics["failed"]:
        yield f"[red]{metrics['failed']} failed[/]"
