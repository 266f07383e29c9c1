"""One term of the loss of an update: its tokens divided into mini-batches and weighted, and its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.algorithms.types import AdvantageOutput, MicroBatch, TokenBatch
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.packing import Pack
from agentgym_trainer.tokens.batch import Batch

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total


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

    def episode_order(self, ranks: Ranks) -> tuple[Tensor, int]:
        """Order the episodes of all processes that have tokens in the loss by `places`. All processes must call this.

        Returns:
            The position in that order of each completion token's episode, int64 (0 for other episodes), and the number
            of episodes in it.
        """
        loss_mask_N, episode_N = self.tokens.loss_mask_N.cpu(), self.tokens.episode_N.cpu()
        trained = episode_N[loss_mask_N].unique()
        local = [self.places[e] if self.places else (ranks.index, e) for e in trained.tolist()]
        positions = {place: position for position, place in enumerate(sorted(ranks.gather(local)))}
        position_E = torch.zeros(len(self.tokens.group_E), dtype=torch.long)
        position_E[trained] = torch.tensor([positions[place] for place in local], dtype=torch.long)
        return position_E[episode_N], len(positions)

    def split(self, part_N: Tensor, parts: int, total: Total) -> SplitTerm:
        """Divide the term into mini-batches, and weight its tokens. All processes must call this.

        Args:
            part_N: Mini-batch of each completion token; tokens that aren't in the loss are left out.
            parts: Number of mini-batches.
            total: Sums a tensor over all processes.
        """
        part_N = torch.where(self.tokens.loss_mask_N.to(part_N.device), part_N, -1)
        weight_N, critic_weight_N, shares = torch.zeros(len(part_N), device=part_N.device), None, list[Tensor]()
        for part in range(parts):
            chosen_N = part_N == part
            count = total(chosen_N.sum())
            shares.append(1 / count if count else torch.zeros_like(count, dtype=torch.float32))
            if not count:
                continue
            weight_N = weight_N + self.algorithm.weights(self.tokens, chosen_N, total)
            of_critic_N = self.algorithm.critic_weights(self.advantages, chosen_N, total)
            if of_critic_N is not None:
                critic_weight_N = of_critic_N if critic_weight_N is None else critic_weight_N + of_critic_N
        return SplitTerm(self, part_N, weight_N, critic_weight_N, shares)


@dataclass(frozen=True, slots=True)
class SplitTerm:
    """A term of the loss whose tokens are divided into mini-batches, and weighted over all processes."""

    term: LossTerm
    part_N: Tensor
    """Mini-batch of each completion token, int64; -1 for tokens that aren't in the loss."""
    weight_N: Tensor
    """Weight of each completion token in the loss of its mini-batch, float32."""
    critic_weight_N: Tensor | None
    """The same in the critic's loss; None without a critic."""
    shares: Sequence[Tensor]
    """For each mini-batch, one over its number of tokens, over all processes; 0 if it has none."""

    def micro_batch(self, pack: Pack, part: int) -> MicroBatch:
        """Select the completion tokens of a pack of one mini-batch."""
        tokens, advantages = self.term.tokens, self.term.advantages

        def select(values_N: Tensor | None) -> Any:
            return None if values_N is None else values_N[pack.index_M]

        return MicroBatch(
            episode_M=select(tokens.episode_N),
            turn_M=select(tokens.turn_N),
            rollout_logprobs_M=select(tokens.rollout_logprobs_N),
            old_logprobs_M=select(tokens.old_or_rollout_logprobs_N),
            advantages_M=select(advantages.advantages_N),
            weight_M=select(self.weight_N),
            share=self.shares[part],
            ref_logprobs_M=select(tokens.ref_logprobs_N),
            values_M=select(tokens.values_N),
            value_targets_M=select(advantages.value_targets_N),
            critic_weight_M=select(self.critic_weight_N),
        )
