"""What a training step leaves to be looked at: its episodes, and of some groups every token with what it was worth.

A record is made of what the update is about to learn from, and changes nothing in it. Knows no viewer: it leaves files
of JSON lines, in which tokens stand as text, so that who reads them needs neither the model nor its tokenizer.
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
from agentgym_trainer.tokens.trajectory import Segment, Trajectory, trajectory

SCHEMA = "agentgym.tokens/1"
_DIGITS = 4

Place = tuple[int, int]
"""Number of a group in its step, and the place of an episode in the group."""


class RolloutLogger:
    """Keeps the rollouts of a run in its folder. All processes of the run record together; the first one writes."""

    def __init__(self, config: RLConfig, folder: RunFolder, learner: Learner, chat: Chat, ranks: Ranks) -> None:
        """Record nothing yet."""
        self._config = config
        self._folder = folder
        self._learner = learner
        self._chat = chat
        self._ranks = ranks

    def is_due(self, step: int) -> bool:
        """Whether the rollouts of this step are to be kept."""
        every = self._config.rollouts.every
        return every > 0 and (step == self._config.steps or step % every == 0)

    def record(
        self,
        step: int,
        own: Sequence[EpisodeGroup],
        groups: Sequence[GroupOutcome],
        advantages: Mapping[Place, Sequence[float]],
    ) -> None:
        """Keep the rollouts of a step.

        Args:
            step: Number of the update that is to learn from them.
            own: The groups that this process played.
            groups: What came of those of all processes.
            advantages: Of each said token of each episode of this process that the update learns from.
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
        """A line for each episode of this process that is in one of the groups shown and didn't fail."""
        if not shown:
            return []
        episodes = [(g.number, e) for g in own if g.number in shown for e in g.episodes if not e.failed]
        lined_up = [trajectory(episode) for _, episode in episodes]
        batch = make_batch(lined_up)
        entropies = split_by_episode(self._learner.entropies(batch), batch)
        return [
            ((number, e.sample), self._line(number, e, path, advantages.get((number, e.sample)), entropy))
            for (number, e), path, entropy in zip(episodes, lined_up, entropies, strict=True)
        ]

    def _line(
        self, group: int, episode: Episode, path: Trajectory, credit: Sequence[float] | None, entropy: Sequence[float]
    ) -> dict[str, Any]:
        credits, entropies = None if credit is None else iter(credit), iter(entropy)
        return {
            "task_id": episode.task_id,
            "sample": episode.sample,
            "group": group,
            "trained": credit is not None,
            "segments": [self._segment(segment, credits, entropies) for segment in path.segments],
        }

    def _segment(self, segment: Segment, credits: Iterator[float] | None, entropies: Iterator[float]) -> dict[str, Any]:
        said = segment.loss_mask

        def known(values: Iterator[float] | None) -> list[float | None]:
            return [_rounded(next(values)) if values and spoken else None for spoken in said]

        return {
            "tokens": self._chat.token_texts(segment.ids),
            "loss_mask": [int(spoken) for spoken in said],
            "turn": segment.turns,
            "logprobs": [
                _rounded(value) if spoken else None for value, spoken in zip(segment.logprobs, said, strict=True)
            ],
            "advantages": known(credits),
            "entropies": known(entropies),
        }


def select_groups(groups: Sequence[GroupOutcome], count: int) -> list[int]:
    """The numbers of the groups of a step whose tokens are kept: the first of those that train, then of the others."""
    return [group.number for group in sorted(groups, key=lambda g: (g.treatment != "keep", g.number))[:count]]


def split_by_episode(figure_N: Tensor, batch: Batch) -> list[list[float]]:
    """A figure of each said token, for each episode of the batch apart."""
    spoken = batch.experience.episode_N.bincount(minlength=len(batch.experience.group_E))
    return [part.tolist() for part in figure_N.cpu().split(spoken.tolist())]


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
