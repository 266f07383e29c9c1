"""Simulated rollouts: how long an engine and many worlds need for given trajectories. Knows no machines and no models.

An engine makes one pass after another over all replies under way, whose time grows with their number, with the tokens
that are read and with the contexts that are attended to. A trajectory whose reply is done goes to its world and comes
back when that has answered. `scale_check.py` compares with what a machine really does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


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
    replies: int = 1 << 30
    """Most at once; others wait."""

    def seconds(self, replies: int, context: float, read: int = 0) -> float:
        """Of a pass with so many replies, tokens attended to by all of them together, and tokens read."""
        return self.itself + self.reply * replies + self.read * read + self.context * context


@dataclass(frozen=True, slots=True)
class Rolled:
    """What simulated rollouts come to."""

    seconds: float
    busy: float
    """Seconds in which the engine was at work."""
    said: int

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
    passes = 0
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
        # Passes are alike, but for contexts that grow, until a reply ends or another one comes.
        one = engine.seconds(len(ending), attended, read)
        again = engine.seconds(len(ending), attended)
        count = ending[0][0] - passes
        if arriving and len(ending) < engine.replies and arriving[0][0] < now + one + again * (count - 1):
            count = max(1, min(count, 1 + int((arriving[0][0] - now - one) / again + 1)))
        growth = engine.context * len(ending) * count * (count - 1) / 2
        spent = one + again * (count - 1) + growth
        passes, now, busy, attended = passes + count, now + spent, busy + spent, attended + len(ending) * count
        while ending and ending[0][0] <= passes:
            _, i, t = heapq.heappop(ending)
            contexts[i] += trajectories[i][t].said
            attended -= contexts[i]
            if t + 1 < len(trajectories[i]):
                heapq.heappush(arriving, (now + trajectories[i][t].world, i, t + 1))
    said = sum(turn.said for trajectory in trajectories for turn in trajectory)
    return Rolled(now, busy, said)


def simulate_lock_step(trajectories: Sequence[Sequence[Turn]], engine: Pass) -> Rolled:
    """Play them turn by turn, all waiting for the longest reply and the slowest world; contexts are read anew."""
    now = busy = 0.0
    said = 0
    for t in range(max(map(len, trajectories))):
        live = [trajectory for trajectory in trajectories if len(trajectory) > t]
        turn = simulate([[Turn(_length(some, t), some[t].said, 0)] for some in live], engine)
        said, busy = said + turn.said, busy + turn.busy
        # Nobody waits for what the world says after the last turn.
        now += turn.seconds + max((some[t].world for some in live if len(some) > t + 1), default=0.0)
    return Rolled(now, busy, said)


def _length(trajectory: Sequence[Turn], t: int) -> int:
    """Tokens before the reply of turn t."""
    return sum(turn.shared + turn.read for turn in trajectory[: t + 1]) + sum(turn.said for turn in trajectory[:t])
