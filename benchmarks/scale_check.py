"""The simulator of `simulator.py` against what the transformers engine really does on this machine.

    uv run python benchmarks/scale_check.py --out scale.json

What a pass takes is found from some rollouts, by least squares; with that the simulator says how long others take, with
more and fewer trajectories, of other lengths, and with worlds that don't answer at once: one coroutine per trajectory,
and lock-step. The engine really computes; worlds are times only, and no time passes while all wait for them: an event
loop counts what was computed and what would have been waited for, so that it doesn't matter who else is at work here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_trainer.engines.base import Engine, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.scratch import build_model
from rich.console import Console
from rich.table import Table
from simulator import Counts, Pass, Turn, simulate, simulate_lock_step  # the file beside this one
from talkers import SIZE

VOCAB = SIZE.vocab
FITTED, CHECKED = (2, 8, 32), (4, 16, 64)
"""Trajectories at once."""
LATENCIES = {"at once": 0.0, "50 ms": 0.05, "0.5 s": 0.5}


@dataclass(frozen=True, slots=True)
class Check:
    """Rollouts as they were, and as they were said to be."""

    trajectories: int
    worlds: str
    way: str
    measured: float
    """Seconds."""
    simulated: float


def contexts(count: int, length: int, rng: np.random.Generator) -> list[list[int]]:
    """Token ids of which no two begin alike."""
    return [[i % VOCAB, *rng.integers(VOCAB, size=length - 1).tolist()] for i in range(count)]


async def _ask(engine: Engine, context: Sequence[int], said: int) -> tuple[int, ...]:
    return (await engine.generate(context, SamplingParams(max_tokens=said, seed=len(context)))).ids


def fit(engine: Engine) -> Pass:
    """What a pass of the engine takes: what makes the times of some rollouts come out best, short and long alike."""
    rows, times = list[Counts](), list[float]()
    nothing = Pass(itself=1e-9, reply=0, read=0)  # with worlds that answer at once the counts don't hang on times
    for n in FITTED * 2:
        drawn = draw(n, 0.0, np.random.default_rng([n, len(rows)]))
        for play, simulated in ((really, simulate), (really_in_lock_step, simulate_lock_step)):
            times.append(seconds(play(engine, drawn, np.random.default_rng(n))))
            rows.append(simulated(drawn, nothing).counts)
    found = _least_squares(np.array(rows) / np.array(times)[:, None], np.ones(len(times)))
    return Pass(itself=found[0], reply=found[1], read=found[2], context=found[3], joining=found[4])


def _least_squares(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> list[float]:
    """Coefficients of which none is below 0: whichever would be, is 0."""
    kept = list(range(a.shape[1]))
    while True:
        found = np.linalg.lstsq(a[:, kept], b, rcond=None)[0]
        if found.min() >= 0:
            return [float(found[kept.index(i)]) if i in kept else 0.0 for i in range(a.shape[1])]
        kept.pop(int(found.argmin()))


def draw(count: int, latency: float, rng: np.random.Generator) -> list[list[Turn]]:
    """Trajectories of 4 to 8 turns, ragged in all they have."""
    drawn: list[list[Turn]] = []
    for _ in range(count):
        turns = int(rng.integers(4, 9))
        said = 1 + rng.geometric(1 / 20, turns).clip(max=95)
        read = np.array([120, *[24] * (turns - 1)])
        world = latency * rng.lognormal(0, 1, turns)
        drawn.append([Turn(*turn) for turn in zip(read.tolist(), said.tolist(), world.tolist(), strict=True)])
    return drawn


async def really(engine: Engine, trajectories: Sequence[Sequence[Turn]], rng: np.random.Generator) -> None:
    """Play them, one coroutine each."""
    await engine.sleep()
    starts = contexts(len(trajectories), 120, rng)

    async def follow(context: list[int], trajectory: Sequence[Turn]) -> None:
        for t, turn in enumerate(trajectory):
            context += rng.integers(VOCAB, size=turn.read).tolist() if t else ()
            context += await _ask(engine, context, turn.said)
            if t + 1 < len(trajectory):
                await asyncio.sleep(turn.world)

    await asyncio.gather(*map(follow, starts, trajectories))


async def really_in_lock_step(engine: Engine, trajectories: Sequence[Sequence[Turn]], rng: np.random.Generator) -> None:
    """Play them turn by turn, every context read anew."""
    for t in range(max(map(len, trajectories))):
        await engine.sleep()
        live = [trajectory for trajectory in trajectories if len(trajectory) > t]
        lengths = [sum(turn.read + turn.said for turn in some[:t]) + some[t].read for some in live]
        asked = [contexts(1, length, rng)[0] for length in lengths]
        await asyncio.gather(*(_ask(engine, c, some[t].said) for c, some in zip(asked, live, strict=True)))
        await asyncio.sleep(max((some[t].world for some in live if len(some) > t + 1), default=0.0))


class Undisturbed(asyncio.SelectorEventLoop):
    """A loop whose clock shows processor time, and which doesn't wait but puts its clock forward: what takes so long in
    it is what would take so long on a machine where nobody else is at work.
    """

    def __init__(self) -> None:
        super().__init__(selector := _Impatient())
        self._waits = selector

    def time(self) -> float:
        """Seconds computed and waited for."""
        return time.process_time() + self._waits.skipped


class _Impatient(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.skipped += max(0.0, timeout or 0.0)
        return super().select(0)


def seconds(coroutine: Coroutine[Any, Any, None]) -> float:
    """That it takes, undisturbed."""
    with asyncio.Runner(loop_factory=Undisturbed) as runner:
        began = runner.get_loop().time()
        runner.run(coroutine)
        return runner.get_loop().time() - began


def check(engine: Engine, one: Pass, console: Console) -> list[Check]:
    """All sizes, worlds and ways."""
    found: list[Check] = []
    for n in CHECKED:
        for name, latency in LATENCIES.items():
            drawn = draw(n, latency, np.random.default_rng(n))
            for way, play, simulated in (
                ("ours", really, simulate(drawn, one)),
                ("lock-step", really_in_lock_step, simulate_lock_step(drawn, one)),
            ):
                measured = seconds(play(engine, drawn, np.random.default_rng(n)))
                found.append(Check(n, name, way, measured, simulated.seconds))
                console.print(found[-1], highlight=False)
    return found


def show(one: Pass, found: Sequence[Check], console: Console) -> None:
    """The tables."""
    micro = {name: f"{1e6 * share:.2f}" for name, share in asdict(one).items() if name != "replies"}
    console.print("A pass in microseconds:", ", ".join(f"{name} {share}" for name, share in micro.items()))
    table = Table(title="Seconds of rollouts", title_justify="left")
    for name in ("trajectories", "worlds", "way", "measured", "simulated", "off by"):
        table.add_column(name, justify="left" if name in ("worlds", "way") else "right")
    for row in found:
        times = f"{row.measured:.2f}", f"{row.simulated:.2f}", f"{row.simulated / row.measured - 1:+.0%}"
        table.add_row(str(row.trajectories), row.worlds, row.way, *times)
    console.print(table)


def main() -> None:
    """Fit, measure, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    # No token ends a reply: their lengths are set.
    engine = transformers_engine(build_model(SIZE, vocab=VOCAB, end_id=0, pad_id=0, seed=0), end_id=VOCAB)
    one = fit(engine)
    found = check(engine, one, console)
    show(one, found, console)
    if asked.out is not None:
        record = {"pass": asdict(one), "checks": [asdict(row) for row in found]}
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
