"""Our update against that of TRL's `GRPOTrainer`: tokens/s, padding and peak memory.

    uv run python benchmarks/learner.py --repeats 3 --out learner.json
    uv run python benchmarks/learner.py --out learner.json --report docs/results

The same model of 20M parameters with a vocabulary of 32k and random weights, the same ragged multi-turn episodes with
the same log-probabilities from sampling and the same advantages, GRPO's loss without a KL term, AdamW, float32, one
thread. TRL's side is its own trainer with its own training loop: only where it would generate and score it is handed
the episodes, padded by its own function as it pads (prompts to the left, completions to the right, a `tool_mask` on
observations). On a CPU TRL's head scores every position, said or not; on a GPU it would leave out padding, not
observations. Either side's whole update is timed: laying out, forward, backward, clipping, optimizer.

First each way of setting either side up runs alone in a process of its own: there memory is measured. Then TRL's
fastest and our fastest take turns in one process, and the ratios of neighbouring updates are what counts. The second
command writes a page of what the first one measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from updates import Size, Way, build_model, make_episodes, ours, trls  # the file beside this one

WAYS = (
    Way("TRL", "as it comes", 8, checkpointing=True),
    Way("TRL", "leanest", 1, checkpointing=True),
    Way("TRL", "1 episode at a time", 1),
    Way("TRL", "4 episodes at a time", 4),
    Way("ours", "4,096 tokens at a time", 4096),
    Way("ours", "1,536 tokens at a time", 1536),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a way came to when it ran alone."""

    way: Way
    seconds: float
    tokens_per_second: float
    """Of the episodes' tokens; padding doesn't count."""
    padding: float
    """Share of the token positions that went through the model for nothing."""
    peak_mb: float
    """Peak of resident memory above what the process held with the model and the episodes loaded."""
    resident_mb: float
    """Of it, gradients and the optimizer's state, the same for all."""
    largest_mb: float
    """The largest tensor that was made."""
    grad_norm: float


# Each way alone.


def alone(way: Way, size: Size) -> Figures:
    """Two updates in a fresh process: memory over both, time of the second, the largest tensor of the first."""
    quiet()
    model = build_model(size)
    episodes = make_episodes(size, model)
    largest = Largest()
    norms: list[float] = []
    marks: list[float] = []
    _reset_peak()
    before = _memory("VmRSS")
    if way.side == "ours":
        update, padding = ours(way, model, episodes)
        with largest:
            norms.append(update()["grad_norm"])
        marks.append(time.perf_counter())
        update()
        marks.append(time.perf_counter())
    else:
        # Before the first update the largest tensor begins to be looked for, before the second it ends.
        stack = contextlib.ExitStack()
        first = iter((lambda: stack.enter_context(largest), stack.close))

        def mark() -> None:
            marks.append(time.perf_counter())

        def begin() -> None:
            next(first)()
            mark()

        trainer, padding = trls(way, model, episodes, 2, begin, mark)
        trainer.train()
        norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    seconds = marks[-1] - marks[-2]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    peak = _memory("VmHWM") - before
    rate = episodes.tokens / seconds
    return Figures(way, seconds, rate, padding, peak / 1e6, 3 * weights / 1e6, largest.bytes / 1e6, norms[0])


class Largest(TorchDispatchMode):
    """Looks out for the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


def _memory(what: str) -> int:
    """Resident memory of this process in bytes, now (VmRSS) or at most since the last reset (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# Side by side.


def side_by_side(theirs: Way, own: Way, size: Size, repeats: int) -> list[tuple[float, float]]:
    """Seconds of neighbouring updates of TRL's and ours, which take turns in one process; the first pair isn't kept."""
    quiet()
    episodes = make_episodes(size, build_model(size))
    update, _ = ours(own, build_model(size), episodes)
    marks: list[float] = []

    def mark() -> None:
        marks.append(time.perf_counter())

    def follow() -> None:
        mark()
        update()
        mark()

    trainer, _ = trls(theirs, build_model(size), episodes, repeats + 1, mark, follow)
    trainer.train()
    pairs = [(ended - began, done - ended) for began, ended, done in zip(*[iter(marks)] * 3, strict=True)]
    return pairs[1:]


def quiet() -> None:
    """One thread, and no bars or notes of libraries."""
    import datasets
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()


def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


def measure(size: Size, repeats: int, console: Console) -> dict[str, Any]:
    """Everything, as JSON values."""
    found: list[Figures] = []
    for way in WAYS:
        found.append(apart(alone, way, size))
        console.print(f"{way.side}, {way.name}: {found[-1].seconds:.1f} s", highlight=False)
    best = {side: min((f for f in found if f.way.side == side), key=lambda f: f.seconds) for side in ("TRL", "ours")}
    pairs = apart(side_by_side, best["TRL"].way, best["ours"].way, size, repeats)
    ratios = sorted(theirs / own for theirs, own in pairs)
    return {
        "size": asdict(size),
        "alone": [asdict(figures) for figures in found],
        "pairs_s": pairs,
        "ratio": {"median": median(ratios), "least": ratios[0], "most": ratios[-1]},
    }


# The report.


def rows_of(record: dict[str, Any]) -> list[dict[str, str]]:
    """The table of the ways alone."""
    return [
        {
            "": f"{row['way']['side']}, {row['way']['name']}",
            "s per update": f"{row['seconds']:.1f}",
            "tokens/s": f"{row['tokens_per_second']:,.0f}",
            "padding": f"{row['padding']:.1%}",
            "peak MB": f"{row['peak_mb']:,.0f}",
            "largest tensor MB": f"{row['largest_mb']:,.0f}",
            "grad norm": f"{row['grad_norm']:.4f}",
        }
        for row in record["alone"]
    ]


def conclusion(record: dict[str, Any]) -> str:
    """What comes of it, in sentences."""
    by_side = {side: [row for row in record["alone"] if row["way"]["side"] == side] for side in ("TRL", "ours")}
    fast = {side: min(rows, key=lambda row: row["seconds"]) for side, rows in by_side.items()}
    lean = {side: min(rows, key=lambda row: row["peak_mb"]) for side, rows in by_side.items()}
    ratio = record["ratio"]
    return (
        f"Side by side in {len(record['pairs_s'])} pairs, TRL ({fast['TRL']['way']['name']}) and ours "
        f"({fast['ours']['way']['name']}): ours has {ratio['median']:.2f} times the tokens/s "
        f"({ratio['least']:.2f} to {ratio['most']:.2f}). Peak memory of the fastest: ours "
        f"{fast['ours']['peak_mb'] / fast['TRL']['peak_mb']:.2f} of TRL's; of the leanest: "
        f"{lean['ours']['peak_mb'] / lean['TRL']['peak_mb']:.2f}. Of each peak, gradients and Adam's state are "
        f"{record['alone'][0]['resident_mb']:,.0f} MB."
    )


def show(record: dict[str, Any], console: Console) -> None:
    """Tables for a terminal."""
    rows = rows_of(record)
    table = Table(title="Each alone, in a process of its own", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    console.print(conclusion(record), highlight=False)


_PAGE = """# Our update against TRL's

```sh
uv run python benchmarks/learner.py --repeats {repeats} --out learner.json
```

{episodes} ragged multi-turn episodes of {shortest} to {longest} tokens, a Qwen2 with {layers} layers of width {hidden},
a vocabulary of {vocab} and random weights, GRPO without KL, float32, one thread of a CPU. The same tokens, masks,
log-probabilities and advantages on both sides; that both take the same step shows in the norm of the gradient. TRL is
its own `GRPOTrainer` with its own loop, padded as it pads, with and without gradient checkpointing and with several
sizes of micro-batch. On a CPU its LM head scores every position; on a GPU it would leave out padding, not observations.

{table}

{conclusion}

Memory is resident memory above what the process held before the first update; times of the ways alone are of one update
each on a machine with other work, so compare the pairs, which ran side by side.
"""


def write_page(record: dict[str, Any], folder: Path) -> None:
    """`learner.md`."""
    rows = rows_of(record)
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    size = {name: f"{number:,}" for name, number in record["size"].items()}
    page = _PAGE.format(table=table, conclusion=conclusion(record), repeats=len(record["pairs_s"]), **size)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "learner.md").write_text(page, encoding="utf-8")


def main() -> None:
    """Measure, print tables, write JSON; or write a page of what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="pairs of updates side by side")
    parser.add_argument("--quick", action="store_true", help="a small model and short episodes: shows that it works")
    parser.add_argument("--out", type=Path, default=Path("runs/learner.json"), help="the figures, as JSON")
    parser.add_argument("--report", type=Path, help="write a page on what is in --out to this folder; measures nothing")
    asked = parser.parse_args()
    console = Console()
    if asked.report is None:
        size = Size(16, 200, 400, 2048, 64, 2) if asked.quick else Size()
        record = measure(size, asked.repeats, console)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    else:
        record = json.loads(asked.out.read_text(encoding="utf-8"))
        write_page(record, asked.report)
    show(record, console)


if __name__ == "__main__":
    main()
