"""The rollout log of a training step: its episodes, and for some groups every token with its advantage.

The log describes the data of the next update and doesn't change it. It consists of JSON lines with tokens as text, so
that readers need neither the model nor its tokenizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_envs import Episode
from torch import Tensor

from agentgym_trainer.config import RLConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.groups import EpisodeGroup, GroupOutcome
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.batch import Batch, make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Segment, Trajectory, own_turns, trajectory

SCHEMA = "agentgym.tokens/2"
_DIGITS = 4

Place = tuple[int, int]
"""Number of a group in its step, and index of an episode in the group."""


class RolloutLogger:
    """Saves the rollouts of a run in its folder. All processes must call it; the main process writes."""

    def __init__(self, config: RLConfig, folder: RunFolder, learner: Learner, chat: Chat, ranks: Ranks) -> None:
        """Create the logger without writing anything."""
        self._config = config
        self._folder = folder
        self._learner = learner
        self._chat = chat
        self._ranks = ranks

    def is_due(self, step: int) -> bool:
        """Whether the rollouts of this step are logged."""
        every = self._config.rollouts.every
        return every > 0 and (step == self._config.steps or step % every == 0)

    def record(
        self,
        step: int,
        own: Sequence[EpisodeGroup],
        groups: Sequence[GroupOutcome],
        advantages: Mapping[Place, Sequence[float]],
    ) -> None:
        """Save the rollouts of a step.

        Args:
            step: Number of the update that trains on them.
            own: The groups that this process played.
            groups: The outcomes of the groups of all processes.
            advantages: One advantage per completion token, for each episode of this process that is trained on.
        """
        lines = [((group.number, e.sample), e.to_json()) for group in own for e in group.episodes]
        tokens = self._tokens(own, select_groups(groups, self._config.rollouts.tokens), advantages)
        lines, tokens = (
            sorted(self._ranks.gather_to_main(lines)),
            sorted(self._ranks.gather_to_main(tokens), key=lambda line: line[0]),
        )
        if self._ranks.is_main:
            at = {place: number for number, (place, _) in enumerate(lines)}
            self._folder.save_rollouts(
                step,
                [line for _, line in lines],
                [json.dumps({"schema": SCHEMA, "episode": at[place], **line}) for place, line in tokens],
            )

    def _tokens(
        self, own: Sequence[EpisodeGroup], shown: Sequence[int], advantages: Mapping[Place, Sequence[float]]
    ) -> list[tuple[Place, dict[str, Any]]]:
        """Return a line for each episode of this process that didn't fail and is in one of the groups to show."""
        if not shown:
            return []
        episodes = [(g.number, e) for g in own if g.number in shown for e in g.episodes if not e.failed]
        trajectories = [trajectory(episode) for _, episode in episodes]
        batch = make_batch(trajectories)
        entropies = split_by_episode(self._learner.entropies(batch), batch)
        return [
            ((number, e.sample), self._line(number, e, path, advantages.get((number, e.sample)), entropy))
            for (number, e), path, entropy in zip(episodes, trajectories, entropies, strict=True)
        ]

    def _line(
        self,
        group: int,
        episode: Episode,
        path: Trajectory,
        advantage: Sequence[float] | None,
        entropy: Sequence[float],
    ) -> dict[str, Any]:
        advantages, entropies = None if advantage is None else iter(advantage), iter(entropy)
        turns = own_turns(episode)
        return {
            "task_id": episode.task_id,
            "sample": episode.sample,
            "group": group,
            "trained": advantage is not None,
            "segments": [self._segment(segment, turns, advantages, entropies) for segment in path.segments],
        }

    def _segment(
        self, segment: Segment, turns: Sequence[int], advantages: Iterator[float] | None, entropies: Iterator[float]
    ) -> dict[str, Any]:
        mask = segment.loss_mask

        def expanded(values: Iterator[float] | None) -> list[float | None]:
            return [_rounded(next(values)) if values and in_loss else None for in_loss in mask]

        return {
            "tokens": self._chat.token_texts(segment.ids),
            "loss_mask": [int(in_loss) for in_loss in mask],
            "turn": [turns[turn] if turn >= 0 else turn for turn in segment.turns],
            "logprobs": [
                _rounded(value) if in_loss else None for value, in_loss in zip(segment.logprobs, mask, strict=True)
            ],
            "advantages": expanded(advantages),
            "entropies": expanded(entropies),
        }


def select_groups(groups: Sequence[GroupOutcome], count: int) -> list[int]:
    """Return the numbers of the groups whose tokens are logged: groups that train first, then by number."""
    return [group.number for group in sorted(groups, key=lambda g: (g.treatment != "keep", g.number))[:count]]


def split_by_episode(values_N: Tensor, batch: Batch) -> list[list[float]]:
    """Split one value per completion token into one list per episode of the batch."""
    lengths_E = batch.tokens.episode_N.bincount(minlength=len(batch.tokens.group_E))
    return [part.tolist() for part in values_N.cpu().split(lengths_E.tolist())]


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
