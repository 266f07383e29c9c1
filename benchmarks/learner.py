"""Compare the update of this package with that of TRL's `GRPOTrainer`: tokens/s, padding and peak memory.

    uv run python benchmarks/learner.py --repeats 3 --out learner.json
    uv run python benchmarks/learner.py --out learner.json --report docs/results

Both sides get the same model (20M parameters, random weights, a vocabulary of 32k) and the same ragged multi-turn
episodes with the same rollout log-probabilities and advantages: GRPO without KL term, AdamW, float32, one thread.
TRL's side is its own trainer with its own training loop, which is given the episodes instead of generating them, in
its own layout: prompts padded on the left, completions on the right, a `tool_mask` over observations. On a CPU, TRL's
LM head computes logits at every position; on a GPU it would skip padding, but not observations. The time of an update
includes layout, forward, backward, clipping and optimizer.

Each setup of a side first runs in its own process, which measures memory. Then the fastest setup of each side
alternate in one process; the ratios of neighboring updates are the result.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from harness import Spread, arguments, isolated, markdown, memory_status, quiet, show, write_json, write_report
from learner_updates import Setup, Size, build_model, make_episodes, own_update, trl_trainer
from torch.utils._python_dispatch import TorchDispatchMode

SETUPS = (
    Setup("TRL", "default", 8, checkpointing=True),
    Setup("TRL", "least memory", 1, checkpointing=True),
    Setup("TRL", "1 episode at a time", 1),
    Setup("TRL", "4 episodes at a time", 4),
    Setup("ours", "4,096 tokens at a time", 4096),
    Setup("ours", "1,536 tokens at a time", 1536),
)


@dataclass(frozen=True, slots=True)
class Isolated:
    """Measurements of a setup in its own process."""

    way: Setup
    seconds: float
    tokens_per_second: float
    """Of the episodes' tokens; padding doesn't count."""
    padding: float
    """Share of padding among the token positions of the forward pass."""
    peak_mb: float
    """Peak resident memory, less that of the process with model and episodes before the first update."""
    resident_mb: float
    """Its part that gradients and optimizer state take, the same in all setups."""
    largest_mb: float
    """The largest tensor."""
    grad_norm: float


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result: Any = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


def measure_isolated(setup: Setup, size: Size) -> Isolated:
    """Take two updates: the peak memory of both, the time of the second, and the largest tensor of the first."""
    quiet()
    model = build_model(size)
    episodes = make_episodes(size, model)
    largest, marks, padding = LargestTensor(), list[float](), 0.0
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_status()["VmRSS"]
    if setup.side == "ours":
        update = own_update(setup, model, episodes)
        with largest:
            norm = update()["grad_norm"]
        marks.append(time.perf_counter())
        update()
        marks.append(time.perf_counter())
    else:
        first = contextlib.ExitStack()

        def begin() -> None:
            first.close() if marks else first.enter_context(largest)
            marks.append(time.perf_counter())

        trainer, padding = trl_trainer(setup, model, episodes, 2, begin, lambda: marks.append(time.perf_counter()))
        trainer.train()
        norm = next(line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line)
    seconds, peak = marks[-1] - marks[-2], memory_status()["VmHWM"] - before
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    sizes = peak / 1e6, 3 * weights / 1e6, largest.bytes / 1e6
    return Isolated(setup, seconds, episodes.tokens / seconds, padding, *sizes, norm)


def measure_pairs(theirs: Setup, ours: Setup, size: Size, repeats: int) -> list[tuple[float, float]]:
    """Return the seconds of neighboring updates of TRL and this package in one process, without the first pair."""
    quiet()
    episodes = make_episodes(size, build_model(size))
    update = own_update(ours, build_model(size), episodes)
    marks: list[float] = []

    def end_theirs() -> None:
        marks.append(time.perf_counter())
        update()
        marks.append(time.perf_counter())

    model = build_model(size)
    trainer, _ = trl_trainer(
        theirs, model, episodes, repeats + 1, lambda: marks.append(time.perf_counter()), end_theirs
    )
    trainer.train()
    pairs = [(middle - began, end - middle) for began, middle, end in zip(*[iter(marks)] * 3, strict=True)]
    return pairs[1:]


def measure(size: Size, repeats: int) -> dict[str, Any]:
    """Measure all setups, and the fastest of each side in pairs."""
    found: list[Isolated] = []
    for setup in SETUPS:
        found.append(isolated(measure_isolated, setup, size))
        print(f"{setup.side}, {setup.name}: {found[-1].seconds:.1f} s", flush=True)
    best = {side: min((f for f in found if f.way.side == side), key=lambda f: f.seconds) for side in ("TRL", "ours")}
    pairs = isolated(measure_pairs, best["TRL"].way, best["ours"].way, size, repeats)
    ratio = Spread.of(theirs / ours for theirs, ours in pairs)
    return {
        "size": asdict(size),
        "alone": [asdict(one) for one in found],
        "pairs_s": pairs,
        "ratio": asdict(ratio),
        "trl": version("trl"),
    }


# The page.


def table(record: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each setup."""
    return [
        {
            "setup": f"{row['way']['side']}, {row['way']['name']}",
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
    """Return the comparison in sentences."""
    by_side = {side: [row for row in record["alone"] if row["way"]["side"] == side] for side in ("TRL", "ours")}
    fast = {side: min(rows, key=lambda row: row["seconds"]) for side, rows in by_side.items()}
    lean = {side: min(rows, key=lambda row: row["peak_mb"]) for side, rows in by_side.items()}
    return (
        f"In {len(record['pairs_s'])} alternating pairs, our update ({fast['ours']['way']['name']}) has "
        f"{Spread(**record['ratio'])} times the tokens/s of TRL's ({fast['TRL']['way']['name']}), the median and the "
        f"range; the single updates of the table, in processes of their own, give "
        f"{fast['TRL']['seconds'] / fast['ours']['seconds']:.1f}. Our peak memory is "
        f"{fast['ours']['peak_mb'] / fast['TRL']['peak_mb']:.2f} of TRL's for the fastest setups, and "
        f"{lean['ours']['peak_mb'] / lean['TRL']['peak_mb']:.2f} for those with the least memory. Gradients and Adam's "
        f"state are {record['alone'][0]['resident_mb']:,.0f} MB of each peak."
    )


_PAGE = """# Our update against TRL's

```sh
uv run python benchmarks/learner.py --repeats {repeats} --out learner.json
```

{episodes} ragged multi-turn episodes of {shortest} to {longest} tokens, a Qwen2 with {layers} layers of width {hidden},
a vocabulary of {vocab} and random weights, GRPO without KL, float32, one thread of a CPU. Both sides get the same
tokens, masks, log-probabilities and advantages; the equal gradient norms show that they take the same step. TRL
{trl} is its own `GRPOTrainer` with its own loop and padding, with and without gradient checkpointing, and with several
micro-batch sizes. On a CPU, its LM head computes logits at every position; on a GPU it would skip padding, but not
observations.

{table}

{conclusion}

Memory is the resident memory above that of the process before the first update. The times in the table are of one
update each, on a machine with other load; the alternating pairs are the better comparison.
"""


def page(record: dict[str, Any]) -> str:
    """Return the page `learner.md`."""
    size = {name: f"{number:,}" for name, number in record["size"].items()}
    return _PAGE.format(
        table=markdown(table(record)),
        conclusion=conclusion(record),
        repeats=len(record["pairs_s"]),
        trl=record["trl"],
        **size,
    )


def main() -> None:
    """Measure and write JSON, or write the page from it."""
    parser = arguments(__doc__, "out", "repeats", "quick", "report", out=Path("runs/learner.json"), repeats=3)
    settings = parser.parse_args()
    if settings.report is None:
        record = measure(Size(16, 200, 400, 2048, 64, 2) if settings.quick else Size(), settings.repeats)
        write_json(settings.out, record)
    else:
        record = json.loads(settings.out.read_text(encoding="utf-8"))
        write_report(settings.report, "learner", page(record))
    show("Each setup in its own process", table(record))
    print(f"\n{conclusion(record)}")


if __name__ == "__main__":
    main()
