"""One term of the loss of an update, and its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.algorithms.types import AdvantageOutput, MicroBatch, TokenBatch
from agentgym_trainer.learner.packing import Pack
from agentgym_trainer.tokens.batch import Batch


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One term of the loss of an update: a batch and the algorithm to train on it."""

    batch: Batch
    """This process's batch; it may be empty."""
    tokens: TokenBatch
    """From `Learner.compute_logprobs`."""
    advantages: AdvantageOutput
    """From the algorithm."""
    algorithm: Algorithm | Imitation
    places: Sequence[tuple[int, int]] | None = None
    """Sort key of each episode among those of all processes, ascending; None orders them by process."""
    weight: float = 1.0
    """Coefficient of the algorithm's loss."""
    name: str = ""
    """Prefix of the names of its metrics."""

    def micro_batch(self, pack: Pack, share: Tensor, weight_N: Tensor, critic_weight_N: Tensor | None) -> MicroBatch:
        """Select the completion tokens of a pack.

        Args:
            pack: Positions of the batch.
            share: One over the number of tokens in the mini-batch, over all processes.
            weight_N: Weight of each completion token in the loss.
            critic_weight_N: The same in the critic's loss; None without a critic.
        """
        tokens, advantages = self.tokens, self.advantages

        def select(values_N: Tensor | None) -> Any:
            return None if values_N is None else values_N[pack.index_M]

        return MicroBatch(
            episode_M=select(tokens.episode_N),
            turn_M=select(tokens.turn_N),
            rollout_logprobs_M=select(tokens.rollout_logprobs_N),
            old_logprobs_M=select(tokens.old_or_rollout_logprobs_N),
            advantages_M=select(advantages.advantages_N),
            weight_M=select(weight_N),
            share=share,
            ref_logprobs_M=select(tokens.ref_logprobs_N),
            values_M=select(tokens.values_N),
            value_targets_M=select(advantages.value_targets_N),
            critic_weight_M=select(critic_weight_N),
        )
