"""What is imitated beside acting: of all demonstrations, those whose turn it is at a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from agentgym_envs import Episode

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import Trajectory, Trimming, trajectory


class Demonstrations:
    """Episodes to imitate. Which of them a step has comes from the seed and the step alone."""

    def __init__(
        self, episodes: Sequence[Episode], chat: Chat, *, batch: int, longest: int, seed: int, ranks: Ranks
    ) -> None:
        """Deal out `batch` of `episodes` at each step; each process, which has all of them, takes its share.

        Of a context of more than `longest` tokens only the turns that end within them are imitated.
        """
        self._episodes = episodes
        self._chat = chat
        self._batch = batch
        self._longest = longest
        self._seed = seed
        self._ranks = ranks

    def of_step(self, step: int) -> list[tuple[tuple[int, int], Trajectory]]:
        """Those of a step that are this process's share, each with its place among all of the step."""
        chosen = walk(len(self._episodes), start=step * self._batch, count=self._batch, seed=self._seed)
        own = self._ranks.share([*enumerate(chosen)])
        return [((place, 0), self._line(self._episodes[i])) for place, i in own]

    def trimming(self) -> Trimming:
        """What of all of them lies within the budget. It encodes every episode once."""
        counted = Trimming(self._longest)
        for episode in self._episodes:
            for segment in trajectory(encode(self._chat, episode)).segments:
                counted.trim(segment)
        return counted

    def _line(self, episode: Episode) -> Trajectory:
        whole = trajectory(encode(self._chat, episode))
        return replace(whole, segments=tuple(segment.within(self._longest) for segment in whole.segments))


def walk(items: int, *, start: int, count: int, seed: int) -> list[int]:
    """Stretch of an endless walk over `items`, from 0: all of them in some order, then all in another, and so on."""
    laps = range(start // items, (start + count - 1) // items + 1)
    orders = [np.random.default_rng([seed, lap]).permutation(items).tolist() for lap in laps]
    begin = start - laps[0] * items
    return [item for order in orders for item in order][begin : begin + count]
