"""Takes updates: a batch and an algorithm in, better weights and metrics out. Knows nothing of worlds or rollouts.

Every token's weight is divided by the sum over the whole mini-batch and all processes before the first backward pass,
so layout, order, micro-batches and number of processes can't change the gradient.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.batch import Batch
from agentgym_trainer.config import Optimizer


class Learner:
    """A model under training, with its optimizer."""

    def __init__(
        self,
        model: Any,
        accelerator: Accelerator,
        settings: Optimizer,
        *,
        temperature: float = 1.0,
        reference: bool = False,
    ) -> None:
        """Prepare `model` for training.

        Args:
            model: A Hugging Face causal language model.
            accelerator: Places model and optimizer, and reduces over processes.
            settings: Learning rate and the like.
            temperature: The one that replies are sampled with; log-probabilities are taken at it.
            reference: Keep a frozen copy of the model as it is now, for a KL penalty.
        """
        self.accelerator = accelerator
        self.settings = settings
        self.temperature = temperature
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_share_of_lr, settings))
        self.reference = copy.deepcopy(model).requires_grad_(False).to(accelerator.device) if reference else None
        self.model, self.optimizer, _ = accelerator.prepare(model, optimizer, schedule)
        # accelerate's own wrapper, which checkpoints keep, would step once for every process.
        self.scheduler = schedule

    def update(
        self,
        batch: Batch,
        algorithm: Algorithm | Imitation,
        *,
        advantage_EK: Tensor | None = None,
        trains_E: Tensor | None = None,
        epochs: int = 1,
        minibatches: int = 1,
        seed: int = 0,
    ) -> dict[str, float]:
        """Train on a batch.

        Args:
            batch: The whole batch of this process.
            algorithm: Gives weights and loss.
            advantage_EK: Advantage of each turn; 0 everywhere when None.
            trains_E: Which episodes take part; all when None.
            epochs: Passes over the batch.
            minibatches: Optimizer steps in each pass.
            seed: Deals episodes out to mini-batches.

        Returns:
            The algorithm's metrics and `grad_norm`, means over the optimizer steps; empty when nothing takes part.
        """
        batch = batch.to(self.accelerator.device)
        advantage_BT = batch.per_token(
            torch.zeros_like(batch.rewards_EK) if advantage_EK is None else advantage_EK.to(batch.rewards_EK.device)
        )
        trains_E = torch.ones_like(batch.group_E, dtype=torch.bool) if trains_E is None else trains_E
        said_BT = batch.said_BT & trains_E.to(batch.group_E.device)[batch.episode_BT]
        episodes = batch.episode_BT[said_BT].unique()
        most = self._largest(len(episodes))
        if not most:
            return {}
        reference_BT = self._reference_logprobs(batch, said_BT) if algorithm.kl else None
        order = torch.Generator().manual_seed(seed)
        # No mini-batch may be empty everywhere.
        parts = min(minibatches, most)
        totals: defaultdict[str, float] = defaultdict(float)
        for _ in range(epochs):
            shuffled = episodes[torch.randperm(len(episodes), generator=order).to(episodes.device)]
            for part in shuffled.tensor_split(parts):
                chosen_BT = said_BT & torch.isin(batch.episode_BT, part)
                metrics = self._optimizer_step(batch, algorithm, chosen_BT, advantage_BT, reference_BT)
                for name, value in metrics.items():
                    totals[name] += value / (epochs * parts)
        return dict(totals)

    def logprobs(self, model: Any, batch: Batch, said_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each said token given what stands before it, and the entropy there: BT, else 0."""
        logits = model(
            input_ids=batch.ids_BT,
            position_ids=batch.position_BT,
            attention_mask=batch.attention_mask(),
            use_cache=False,
        ).logits
        # The first token of a row has nothing before it and is never said.
        wanted_BT = said_BT[:, 1:]
        logp_NV = torch.log_softmax(logits[:, :-1][wanted_BT].float() / self.temperature, -1)
        logp_N = logp_NV.gather(1, batch.ids_BT[:, 1:][wanted_BT][:, None])[:, 0]
        with torch.no_grad():
            entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
        logp_BT = logp_N.new_zeros(said_BT.shape)
        entropy_BT = logp_N.new_zeros(said_BT.shape)
        where = (torch.nn.functional.pad(wanted_BT, (1, 0))).nonzero(as_tuple=True)
        return logp_BT.index_put(where, logp_N), entropy_BT.index_put(where, entropy_N)

    def _optimizer_step(
        self,
        batch: Batch,
        algorithm: Algorithm | Imitation,
        said_BT: Tensor,
        advantage_BT: Tensor,
        reference_BT: Tensor | None,
    ) -> dict[str, float]:
        """Train on the tokens in `said_BT`, which may be none: other processes may have some."""
        self.model.train()
        weight_BT = algorithm.weights(said_BT, batch.episode_BT)
        weight_BT = weight_BT / self._sum(weight_BT.sum())
        totals: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=weight_BT.device))
        for rows, counts in self._rounds(batch, said_BT):
            these = batch.rows(rows)
            width = these.ids_BT.shape[1]
            weight = weight_BT[rows, :width] * counts
            logp_BT, entropy_BT = self.logprobs(self.model, these, said_BT[rows, :width])
            reference = None if reference_BT is None else reference_BT[rows, :width]
            loss, metrics = algorithm.loss(logp_BT, these.logp_BT, reference, advantage_BT[rows, :width], weight)
            # accelerate averages gradients over processes; the weights already hold the whole sum.
            self.accelerator.backward(loss * self.accelerator.num_processes)
            for name, value in {"loss": loss.detach(), "entropy": (weight * entropy_BT).sum(), **metrics}.items():
                totals[name] += value
        norm: Any = self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return {**{name: self._sum(value).item() for name, value in totals.items()}, "grad_norm": float(norm)}

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch, said_BT: Tensor) -> Tensor:
        if self.reference is None:
            raise ValueError("The algorithm has a KL penalty, but the learner was made without a reference model.")
        self.reference.eval()
        logp_BT = torch.zeros(said_BT.shape, device=said_BT.device)
        for rows in self._micro_batches(batch, said_BT):
            these = batch.rows(rows)
            width = these.ids_BT.shape[1]
            logp_BT[rows, :width] = self.logprobs(self.reference, these, said_BT[rows, :width])[0]
        return logp_BT

    def _rounds(self, batch: Batch, said_BT: Tensor) -> Iterator[tuple[Tensor, bool]]:
        """Micro-batches and whether they count, as many on every process: gradients are summed in step, so a process
        that is through goes on with one row for nothing.
        """
        own = list(self._micro_batches(batch, said_BT))
        for n in range(self._largest(len(own))):
            yield (own[n], True) if n < len(own) else (torch.zeros(1, dtype=torch.long, device=said_BT.device), False)

    def _micro_batches(self, batch: Batch, said_BT: Tensor) -> Iterator[Tensor]:
        """The rows with said tokens, those of like length together, at most `micro_tokens` positions at a time."""
        length_B = (batch.segment_BT >= 0).sum(1)
        longest_first = length_B.argsort(descending=True, stable=True)
        chosen: list[int] = []
        for row in longest_first[said_BT.any(1)[longest_first]].tolist():
            longest = int(length_B[chosen[0]]) if chosen else 0
            if chosen and longest * (len(chosen) + 1) > self.settings.micro_tokens:
                yield torch.tensor(chosen, device=said_BT.device)
                chosen = []
            chosen.append(row)
        if chosen:
            yield torch.tensor(chosen, device=said_BT.device)

    def _largest(self, count: int) -> int:
        """Over all processes."""
        counts: Any = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return int(counts.max())

    def _sum(self, value: Tensor) -> Tensor:
        """Over all processes."""
        total: Any = self.accelerator.reduce(value, "sum")
        return total


def _share_of_lr(settings: Optimizer, step: int) -> float:
    rising = min(1.0, (step + 1) / max(1, settings.warmup))
    return rising * max(0.0, 1 - step / settings.decay) if settings.decay else rising
