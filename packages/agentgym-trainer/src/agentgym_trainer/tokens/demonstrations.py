"""The demonstrations of the SFT term in RL updates: which ones each step trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from agentgym_envs import Episode

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.labels import label_trajectory
from agentgym_trainer.tokens.trajectory import ContextLimit, Trajectory, Trimming, trajectory


class Demonstrations:
    """Demonstration episodes. The selection for a step depends only on the seed and the step."""

    def __init__(
        self, episodes: Sequence[Episode], chat: Chat, *, batch: int, limit: ContextLimit, seed: int, ranks: Ranks
    ) -> None:
        """Select `batch` of `episodes` at each step. Every process holds all episodes and takes its share.

        Of contexts with more tokens than `limit`, only the turns that end within it are used.
        """
        self._episodes = episodes
        self._chat = chat
        self._batch = batch
        self._limit = limit
        self._seed = seed
        self._ranks = ranks

    def of_step(self, step: int) -> list[tuple[tuple[int, int], Trajectory]]:
        """Return this process's share of a step's demonstrations, each with its position in the whole step."""
        chosen = walk(len(self._episodes), start=step * self._batch, count=self._batch, seed=self._seed)
        share = self._ranks.share([*enumerate(chosen)])
        return [((place, 0), self._trajectory(self._episodes[i])) for place, i in share]

    def trimming(self) -> Trimming:
        """Return statistics on what exceeds the token limit, over all demonstrations. Encodes every episode once."""
        statistics = Trimming(self._limit)
        for episode in self._episodes:
            for segment in demonstration(self._chat, episode).segments:
                statistics.trim(segment)
        return statistics

    def _trajectory(self, episode: Episode) -> Trajectory:
        whole = demonstration(self._chat, episode)
        return replace(whole, segments=tuple(segment.within(self._limit.tokens) for segment in whole.segments))


def demonstration(chat: Chat, episode: Episode) -> Trajectory:
    """Return the trajectory of an episode that no local model played: its contexts, and one for each label.

    Raises:
        ValueError: The episode's agent would not have produced such turns.
    """
    encoded = encode(chat, episode)
    whole = trajectory(encoded)
    return replace(whole, segments=whole.segments + label_trajectory(encoded, chat).segments)


def walk(items: int, *, start: int, count: int, seed: int) -> list[int]:
    """Return a slice of an endless sequence over range(items): all in random order, then all in another, and so on."""
    passes = range(start // items, (start + count - 1) // items + 1)
    orders = [np.random.default_rng([seed, number]).permutation(items).tolist() for number in passes]
    begin = start - passes[0] * items
    return [item for order in orders for item in order][begin : begin + count]
