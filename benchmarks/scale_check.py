"""Compare the simulator of `simulator.py` with rollouts of the transformers engine on this machine.

    uv run python benchmarks/scale_check.py --out scale.json

The cost of a forward pass is fitted to some rollouts by least squares. The simulator then predicts others, with other
numbers and lengths of trajectories, and environments that take time to respond: with one coroutine per trajectory, and
in lock-step. The engine really computes, but nothing waits for an environment: the event loop adds the CPU time and the
time that would have been waited, so other load on the machine doesn't matter.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from agentgym_trainer.engines.base import Engine, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.scratch import build_model
from harness import arguments, show, write_json
from rollout_models import MODEL
from scipy.optimize import nnls
from simulator import Counts, PassCost, Turn, simulate, simulate_lock_step

FIT_SIZES, CHECK_SIZES = (2, 8, 32), (4, 16, 64)
"""Numbers of concurrent trajectories."""
RESPONSE_TIMES = {"0": 0.0, "50 ms": 0.05, "0.5 s": 0.5}
_PROMPT, _OBSERVATION = 120, 24
"""Tokens."""


@dataclass(frozen=True, slots=True)
class Check:
    """A rollout and its simulation."""

    trajectories: int
    response_time: str
    scheduling: str
    measured: float
    """Seconds."""
    simulated: float


def fit(engine: Engine) -> PassCost:
    """Return the cost of a pass that fits the times of some rollouts best, with the same weight for short and long."""
    rows, times = list[Counts](), list[float]()
    no_cost = PassCost(base=1e-9, reply=0, prefill=0)  # with a response time of 0, counts don't depend on the cost
    for n in FIT_SIZES * 2:
        drawn = draw(n, 0.0, np.random.default_rng([n, len(rows)]))
        for play, simulator in ((play_async, simulate), (play_lock_step, simulate_lock_step)):
            times.append(seconds(play(engine, drawn, np.random.default_rng(n))))
            rows.append(simulator(drawn, no_cost).counts)
    found: list[float] = nnls(np.array(rows) / np.array(times)[:, None], np.ones(len(times)))[0].tolist()
    return PassCost(base=found[0], reply=found[1], prefill=found[2], context=found[3], prefill_base=found[4])


def draw(count: int, response_time: float, rng: np.random.Generator) -> list[list[Turn]]:
    """Draw trajectories of 4 to 8 turns, with replies and response times of different lengths."""
    drawn: list[list[Turn]] = []
    for _ in range(count):
        turns = int(rng.integers(4, 9))
        completion = 1 + rng.geometric(1 / 20, turns).clip(max=95)
        prefill = [_PROMPT, *[_OBSERVATION] * (turns - 1)]
        latency = response_time * rng.lognormal(0, 1, turns)
        drawn.append([Turn(*turn) for turn in zip(prefill, completion.tolist(), latency.tolist(), strict=True)])
    return drawn


def draw_context(number: int, length: int, rng: np.random.Generator) -> list[int]:
    """Draw token ids; different numbers have no common prefix."""
    return [number % MODEL.vocab, *rng.integers(MODEL.vocab, size=length - 1).tolist()]


async def _reply(engine: Engine, context: Sequence[int], tokens: int) -> tuple[int, ...]:
    return (await engine.generate(context, SamplingParams(max_tokens=tokens, seed=len(context)))).ids


async def play_async(engine: Engine, trajectories: Sequence[Sequence[Turn]], rng: np.random.Generator) -> None:
    """Play the trajectories, one coroutine each."""
    await engine.sleep()
    prompts = [draw_context(i, _PROMPT, rng) for i in range(len(trajectories))]

    async def follow(context: list[int], trajectory: Sequence[Turn]) -> None:
        for t, turn in enumerate(trajectory):
            context += rng.integers(MODEL.vocab, size=turn.prefill).tolist() if t else ()
            context += await _reply(engine, context, turn.completion)
            if t + 1 < len(trajectory):
                await asyncio.sleep(turn.latency)

    await asyncio.gather(*map(follow, prompts, trajectories))


async def play_lock_step(engine: Engine, trajectories: Sequence[Sequence[Turn]], rng: np.random.Generator) -> None:
    """Play the trajectories turn by turn, and prefill every context completely."""
    for t in range(max(map(len, trajectories))):
        await engine.sleep()
        live = [trajectory for trajectory in trajectories if len(trajectory) > t]
        lengths = [sum(turn.prefill + turn.completion for turn in some[:t]) + some[t].prefill for some in live]
        contexts = [draw_context(0, length, rng) for length in lengths]
        replies = (_reply(engine, c, some[t].completion) for c, some in zip(contexts, live, strict=True))
        await asyncio.gather(*replies)
        await asyncio.sleep(max((some[t].latency for some in live if len(some) > t + 1), default=0.0))


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is CPU time plus the timeouts of its waits, which return immediately."""

    def __init__(self) -> None:
        super().__init__(selector := _SkippingSelector())
        self._waits = selector

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return time.process_time() + self._waits.skipped


class _SkippingSelector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.skipped += max(0.0, timeout or 0.0)
        return super().select(0)


def seconds(coroutine: Coroutine[Any, Any, None]) -> float:
    """Return the virtual time that a coroutine takes."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        began = runner.get_loop().time()
        runner.run(coroutine)
        return runner.get_loop().time() - began


def check(engine: Engine, cost: PassCost) -> list[Check]:
    """Compare all sizes, response times and schedules."""
    found: list[Check] = []
    for n in CHECK_SIZES:
        for name, response_time in RESPONSE_TIMES.items():
            drawn = draw(n, response_time, np.random.default_rng(n))
            for scheduling, play, simulator in (
                ("asynchronous", play_async, simulate),
                ("lock-step", play_lock_step, simulate_lock_step),
            ):
                measured = seconds(play(engine, drawn, np.random.default_rng(n)))
                found.append(Check(n, name, scheduling, measured, simulator(drawn, cost).seconds))
                print(found[-1], flush=True)
    return found


def table(found: Sequence[Check]) -> list[dict[str, str]]:
    """Return the rows of the table in docs/scale.md."""
    return [
        {
            "trajectories": str(row.trajectories),
            "response time": row.response_time,
            "scheduling": row.scheduling,
            "measured s": f"{row.measured:.2f}",
            "simulated s": f"{row.simulated:.2f}",
            "error": f"{row.simulated / row.measured - 1:+.0%}",
        }
        for row in found
    ]


def main() -> None:
    """Fit, measure and compare."""
    settings = arguments(__doc__, "out").parse_args()
    torch.set_num_threads(1)
    model = build_model(MODEL, vocab=MODEL.vocab, end_id=0, pad_id=0, seed=0)
    engine = transformers_engine(model, end_id=MODEL.vocab)  # no token ends a reply: their lengths are given
    cost = fit(engine)
    found = check(engine, cost)
    micro = (f"{name} {1e6 * value:.2f}" for name, value in asdict(cost).items() if name != "max_replies")
    print("\nA pass in microseconds:", ", ".join(micro))
    show("Seconds of rollouts", table(found))
    write_json(settings.out, {"pass": cost, "checks": found})


if __name__ == "__main__":
    main()
