"""A simulator of rollouts: the time that an engine and many environments take for given trajectories.

An engine repeats forward passes over all replies in progress. The time of a pass grows with the number of replies, the
prefilled tokens and the lengths of the contexts. After a reply, its trajectory waits for its environment and then for
the engine again. The simulator depends on neither hardware nor models; `scale_check.py` compares it with real rollouts.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply, its new prompt tokens, and the environment's response to it."""

    prefill: int
    """New prompt tokens that no cache has."""
    completion: int
    """Tokens of the reply."""
    latency: float
    """Seconds until the environment has responded."""
    shared: int = 0
    """New prompt tokens that the cache has from another trajectory."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Time of a forward pass of an engine, in seconds."""

    base: float
    reply: float
    """Per reply in progress."""
    prefill: float
    """Per prefilled token."""
    context: float = 0.0
    """Per token of context that a reply attends to."""
    prefill_base: float = 0.0
    """Once, if anything is prefilled."""
    max_replies: int = 1 << 30
    """Maximum number of replies in progress; others wait."""

    def seconds(self, counts: Counts) -> float:
        """Return the time of passes with these counts."""
        return (
            self.base * counts.passes
            + self.reply * counts.replies
            + self.prefill * counts.prefill
            + self.context * counts.context
            + self.prefill_base * counts.prefill_passes
        )


class Counts(NamedTuple):
    """The number of passes, and sums over them."""

    passes: float = 0.0
    replies: float = 0.0
    prefill: float = 0.0
    """Prefilled tokens."""
    context: float = 0.0
    """Tokens attended to."""
    prefill_passes: float = 0.0
    """Passes in which anything was prefilled."""

    def plus(self, other: Counts) -> Counts:
        """Return the sum."""
        return Counts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Rollout:
    """Result of a simulation."""

    seconds: float
    busy: float
    """Seconds in which the engine computed."""
    completion: int
    """Completion tokens."""
    counts: Counts


def simulate(trajectories: Sequence[Sequence[Turn]], engine: PassCost) -> Rollout:
    """Play all trajectories concurrently on one engine; they only wait for their environments and a free place."""
    arriving = [(0.0, i, 0) for i in range(len(trajectories))]
    waiting, ending = deque[tuple[int, int]](), list[tuple[int, int, int]]()
    contexts = [0] * len(trajectories)
    now = busy = attended = 0.0
    passes, counts = 0, Counts()
    while arriving or waiting or ending:
        while arriving and arriving[0][0] <= now:
            waiting.append(heapq.heappop(arriving)[1:])
        prefill = 0
        while waiting and len(ending) < engine.max_replies:
            i, t = waiting.popleft()
            turn = trajectories[i][t]
            prefill += turn.prefill
            contexts[i] += turn.shared + turn.prefill
            attended += contexts[i]
            heapq.heappush(ending, (passes + turn.completion, i, t))
        if not ending:
            now = arriving[0][0]
            continue
        live = len(ending)
        # Passes only differ in the growing contexts until a reply ends or another one arrives.
        one = engine.seconds(Counts(1, live, prefill, attended, prefill > 0))
        next_one = engine.seconds(Counts(1, live, 0, attended, 0))
        count = ending[0][0] - passes
        if arriving and live < engine.max_replies and arriving[0][0] < now + one + next_one * (count - 1):
            count = max(1, min(count, 1 + math.ceil((arriving[0][0] - now - one) / next_one)))
        context = attended * count + live * count * (count - 1) / 2
        merged = Counts(count, live * count, prefill, context, prefill > 0)
        spent = engine.seconds(merged)
        counts, passes, now, busy = counts.plus(merged), passes + count, now + spent, busy + spent
        attended += live * count
        while ending and ending[0][0] <= passes:
            _, i, t = heapq.heappop(ending)
            contexts[i] += trajectories[i][t].completion
            attended -= contexts[i]
            if t + 1 < len(trajectories[i]):
                heapq.heappush(arriving, (now + trajectories[i][t].latency, i, t + 1))
    completion = sum(turn.completion for trajectory in trajectories for turn in trajectory)
    return Rollout(now, busy, completion, counts)


def simulate_lock_step(trajectories: Sequence[Sequence[Turn]], engine: PassCost) -> Rollout:
    """Play turn by turn: each waits for the longest reply and the slowest environment, and prefills all contexts."""
    now = busy = 0.0
    completion, counts = 0, Counts()
    for t in range(max(map(len, trajectories))):
        live = [trajectory for trajectory in trajectories if len(trajectory) > t]
        turn = simulate([[Turn(_context(some, t), some[t].completion, 0)] for some in live], engine)
        completion, busy, counts = completion + turn.completion, busy + turn.busy, counts.plus(turn.counts)
        # The response to the last turn isn't waited for.
        now += turn.seconds + max((some[t].latency for some in live if len(some) > t + 1), default=0.0)
    return Rollout(now, busy, completion, counts)


def _context(trajectory: Sequence[Turn], t: int) -> int:
    """Return the tokens before the reply of turn t."""
    prompts = sum(turn.shared + turn.prefill for turn in trajectory[: t + 1])
    return prompts + sum(turn.completion for turn in trajectory[:t])
