"""Simulated rollouts: how long an engine and many worlds need for given trajectories. Knows no machines and no models.

An engine makes one pass after another over all replies under way, whose time grows with their number, with the tokens
that are read and with the contexts that are attended to. A trajectory whose reply is done goes to its world and comes
back when that has answered. `scale_check.py` compares with what a machine really does.
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
    """A reply and what comes before and after it."""

    read: int
    """Tokens to be read before it, which no cache has."""
    said: int
    """Tokens of the reply."""
    world: float
    """Seconds until the world has answered it."""
    shared: int = 0
    """Tokens before it that needn't be read, since another trajectory's cache has them."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass of an engine takes, in seconds: a part for itself and one for each of what it holds."""

    itself: float
    reply: float
    """Under way in it."""
    read: float
    """Token read before a reply."""
    context: float = 0.0
    """Token attended to by a reply."""
    joining: float = 0.0
    """Once more for itself, when anything is read in it."""
    replies: int = 1 << 30
    """Most at once; others wait."""

    def seconds(self, counts: Counts) -> float:
        """Of passes that come to so much."""
        return (
            self.itself * counts.passes
            + self.reply * counts.replies
            + self.read * counts.read
            + self.context * counts.context
            + self.joining * counts.joining
        )


class Counts(NamedTuple):
    """What passes come to: their number, and replies, tokens read and tokens attended to in all of them together."""

    passes: float = 0.0
    replies: float = 0.0
    read: float = 0.0
    context: float = 0.0
    joining: float = 0.0
    """Passes in which anything was read."""

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Rolled:
    """What simulated rollouts come to."""

    seconds: float
    busy: float
    """Seconds in which the engine was at work."""
    said: int
    counts: Counts

    @property
    def rate(self) -> float:
        """Tokens said per second."""
        return self.said / self.seconds


def simulate(trajectories: Sequence[Sequence[Turn]], engine: Pass) -> Rolled:
    """Play all of them at once on one engine, none waiting for another but for a place in it."""
    arriving = [(0.0, i, 0) for i in range(len(trajectories))]
    waiting, ending = deque[tuple[int, int]](), list[tuple[int, int, int]]()
    contexts = [0] * len(trajectories)
    now = busy = attended = 0.0
    passes, counts = 0, Counts()
    while arriving or waiting or ending:
        while arriving and arriving[0][0] <= now:
            waiting.append(heapq.heappop(arriving)[1:])
        read = 0
        while waiting and len(ending) < engine.replies:
            i, t = waiting.popleft()
            turn = trajectories[i][t]
            read += turn.read
            contexts[i] += turn.shared + turn.read
            attended += contexts[i]
            heapq.heappush(ending, (passes + turn.said, i, t))
        if not ending:
            now = arriving[0][0]
            continue
        live = len(ending)
        # Passes are alike, but for contexts that grow, until a reply ends or another one comes.
        one = engine.seconds(Counts(1, live, read, attended, read > 0))
        again = engine.seconds(Counts(1, live, 0, attended, 0))
        count = ending[0][0] - passes
        if arriving and live < engine.replies and arriving[0][0] < now + one + again * (count - 1):
            count = max(1, min(count, 1 + math.ceil((arriving[0][0] - now - one) / again)))
        these = Counts(count, live * count, read, attended * count + live * count * (count - 1) / 2, read > 0)
        spent = engine.seconds(these)
        counts, passes, now, busy = counts.plus(these), passes + count, now + spent, busy + spent
        attended += live * count
        while ending and ending[0][0] <= passes:
            _, i, t = heapq.heappop(ending)
            contexts[i] += trajectories[i][t].said
            attended -= contexts[i]
            if t + 1 < len(trajectories[i]):
                heapq.heappush(arriving, (now + trajectories[i][t].world, i, t + 1))
    said = sum(turn.said for trajectory in trajectories for turn in trajectory)
    return Rolled(now, busy, said, counts)


def simulate_lock_step(trajectories: Sequence[Sequence[Turn]], engine: Pass) -> Rolled:
    """Play them turn by turn, all waiting for the longest reply and the slowest world; contexts are read anew."""
    now = busy = 0.0
    said, counts = 0, Counts()
    for t in range(max(map(len, trajectories))):
        live = [trajectory for trajectory in trajectories if len(trajectory) > t]
        turn = simulate([[Turn(_length(some, t), some[t].said, 0)] for some in live], engine)
        said, busy, counts = said + turn.said, busy + turn.busy, counts.plus(turn.counts)
        # Nobody waits for what the world says after the last turn.
        now += turn.seconds + max((some[t].world for some in live if len(some) > t + 1), default=0.0)
    return Rolled(now, busy, said, counts)


def _length(trajectory: Sequence[Turn], t: int) -> int:
    """Tokens before the reply of turn t."""
    return sum(turn.shared + turn.read for turn in trajectory[: t + 1]) + sum(turn.said for turn in trajectory[:t])
