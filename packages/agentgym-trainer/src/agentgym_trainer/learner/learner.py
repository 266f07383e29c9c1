"""The learner updates a policy from batches with an algorithm. It does not depend on environments or rollouts.

The weights of tokens are computed over the whole mini-batch and all processes before the first backward pass, so the
gradient doesn't depend on the order, on micro-batches or on the number of processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.algorithms.types import AdvantageOutput, ModelOutputs, TokenBatch
from agentgym_trainer.config import Optimizer
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.balance import balance
from agentgym_trainer.learner.finite_checks import GRADIENTS, Skips, check_weights, count_nonfinite, pop_causes
from agentgym_trainer.learner.loss_term import LossTerm, SplitTerm
from agentgym_trainer.learner.memory_errors import explained_memory
from agentgym_trainer.learner.optimizer import OffloadedMoments, check_precision, make_schedule, parameter_groups
from agentgym_trainer.learner.packing import Pack, Unit, empty_pack, make_packs, split_minibatches
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.weights import Weights, weights_of
from agentgym_trainer.tokens.batch import Batch


class Learner:
    """A policy, and its critic if it has one, under training, with the optimizer."""

    def __init__(
        self,
        actor: PolicyModel,
        accelerator: Accelerator,
        settings: Optimizer,
        *,
        total_steps: int = 1,
        critic_lr: float | None = None,
        reference: PolicyModel | None = None,
        teacher: PolicyModel | None = None,
    ) -> None:
        """Prepare `actor` for training.

        Args:
            actor: The policy, and the critic if there is one.
            accelerator: Places actor and optimizer, and reduces over processes.
            settings: Optimizer settings, such as the learning rate.
            total_steps: Optimizer steps of the whole run, for a decaying learning rate.
            critic_lr: Learning rate of the critic's own weights; None is the policy's.
            reference: Frozen reference model for KL penalties. None without penalties, or if an adapter trains: the
                policy without the adapter is then the reference, which takes no memory.
            teacher: Frozen teacher of on-policy distillation.
        """
        self.accelerator = accelerator
        self.settings = settings
        check_precision(accelerator)
        if accelerator.is_fsdp2:
            actor.allocate()
        self.reference = None if reference is None else self._placed(reference)
        self.teacher = None if teacher is None else self._placed(teacher)
        optimizer = torch.optim.AdamW(
            parameter_groups(actor, settings.lr, critic_lr), betas=settings.betas, weight_decay=settings.weight_decay,
            fused=accelerator.device.type == "cuda",
        )  # fmt: skip
        # Not accelerate's wrapper of it, which checkpoints save: that would step once for every process.
        self.scheduler = make_schedule(optimizer, settings, total_steps)
        self.actor, self.optimizer, _ = accelerator.prepare(actor, optimizer, self.scheduler)
        self._moments = OffloadedMoments(optimizer) if settings.offload else None
        self.skips = Skips(settings.max_skips)
        self._ranks = Ranks()

    @property
    def policy(self) -> Any:
        """The Hugging Face model under training, or the peft model of one."""
        return self._bare.policy

    def weights(self, version: int, *, lasting: bool = True) -> Weights:
        """Return the weights for an engine: the policy's tensors, or only the adapter's if one trains.

        FSDP2 shards are gathered while an engine loads them, in the data type of the computation. All processes must
        call this, and make the passes together if there are shards or the weights don't last.

        Args:
            version: Number of updates that produced the weights.
            lasting: Whether no update is taken before the next load.

        Raises:
            NotFinite: The weights hold non-finite values.
        """
        check_weights(self.policy.parameters(), self.accelerator)
        weights = weights_of(self.policy, version, lasting=lasting, precision=self.accelerator.mixed_precision)
        together = not lasting and self.accelerator.num_processes > 1  # they keep one copy per machine
        return replace(weights, collective=weights.collective or together)

    @property
    def _bare(self) -> PolicyModel:
        """The actor without distributed wrappers."""
        return self.accelerator.unwrap_model(self.actor)

    def total(self, value: Tensor) -> Tensor:
        """Sum a tensor over all processes."""
        summed: Any = self.accelerator.reduce(value, "sum")
        return summed

    def logprobs(self, batch: Batch) -> Tensor:
        """Compute the log-probabilities of completion tokens under the current policy, float32 [N], on the device."""
        return self._score_batch(self.actor, batch.to(self.accelerator.device))[0]

    def teacher_logprobs(self, batch: Batch) -> Tensor:
        """Compute the log-probabilities of completion tokens under the teacher, float32 [N], on the learner's device.

        Raises:
            ValueError: The learner was made without a teacher.
        """
        if self.teacher is None:
            raise ValueError("There is no teacher to score tokens with: the learner was made without one.")
        return self._score_batch(self.teacher, batch.to(self.accelerator.device))[0]

    def entropies(self, batch: Batch) -> Tensor:
        """Compute the entropies in nats of the distributions that the current policy gives for completion tokens,
        float32 [N], on the learner's device.
        """
        return self._score_batch(self.actor, batch.to(self.accelerator.device))[1]

    def values(self, batch: Batch) -> Tensor:
        """Compute the critic's current values before each completion token, float32 [N], on the learner's device."""
        return self._score_batch(self.actor, batch.to(self.accelerator.device))[2]

    @torch.no_grad()
    def compute_logprobs(self, batch: Batch, algorithm: Algorithm | Imitation) -> TokenBatch:
        """Return the batch's `TokenBatch` on the learner's device, with the old and reference log-probabilities and the
        critic values that the algorithm needs from before the update.

        Raises:
            ValueError: The algorithm needs a reference or a critic, and there is none.
        """
        batch = batch.to(self.accelerator.device)
        computed: dict[str, Tensor | None] = {}
        if algorithm.needs_critic and self._bare.critic is None:
            raise ValueError("The algorithm needs a critic, but the learner was made with an actor that has none.")
        if algorithm.needs_old_logprobs or algorithm.needs_critic:
            logp_N, _, value_N = self._score_batch(self.actor, batch)
            computed["old_logprobs_N"] = logp_N if algorithm.needs_old_logprobs else None
            computed["values_N"] = value_N if algorithm.needs_critic else None
        if algorithm.needs_reference:
            computed["ref_logprobs_N"] = self._reference_logprobs(batch)
        return batch.tokens.with_logprobs(**computed)

    def update(
        self,
        batch: Batch,
        tokens: TokenBatch,
        advantages: AdvantageOutput,
        algorithm: Algorithm | Imitation,
        *,
        epochs: int = 1,
        minibatches: int = 1,
        share: float = 1.0,
        seed: int = 0,
        places: Sequence[tuple[int, int]] | None = None,
        auxiliary: Sequence[LossTerm] = (),
    ) -> dict[str, float]:
        """Train on a batch.

        Args:
            batch: The whole batch of this process. It may be empty, if only other processes have episodes. Episodes
                that `tokens` keeps out of the loss are not trained on, and others may be trained on by other processes.
            tokens: From `compute_logprobs`.
            advantages: From the algorithm.
            algorithm: Computes weights and loss.
            epochs: Passes over the batch.
            minibatches: Optimizer steps per pass over a full batch; at most the number of episodes.
            share: Size of this batch relative to a full batch. A pass takes that share of the optimizer steps, at least
                one, so that a step trains on about as much as it would with a full batch. The learning-rate schedule
                advances as if all steps were taken.
            seed: Seed of the assignment of episodes to mini-batches, which depends only on the order of episodes, not
                on which process holds them.
            places: Sort key of each episode in that order, ascending; None orders them by process.
            auxiliary: More loss terms for each optimizer step: their gradients and metrics are added. Each is split
                into as many mini-batches.

        Returns:
            Means over the optimizer steps of the algorithm's metrics and of `loss`, `grad_norm` (before clipping),
            `fill` (share of `micro_tokens` that packs use), `padding` (share of positions that are padding) and
            `shared` (share of the segments' tokens that are computed with those of another segment); with several
            processes, `imbalance` (tokens of the process with the most, relative to the mean) and `imbalance_dealt`
            (the same before episodes moved between processes, see `balance`); `lr` of the last step; the number of
            `optimizer_steps`, and how many of them were `skipped` because something was not finite; skipped steps are
            excluded from the other means. Empty if there are no completion tokens.

        Raises:
            NotFinite: On all processes, if too many steps in a row were skipped.
            RunStopped: The device has too little memory.
        """
        terms = [LossTerm(batch, tokens, advantages, algorithm, places), *auxiliary]
        terms = [replace(term, batch=term.batch.to(self.accelerator.device)) for term in terms]
        ordered = [(term, *term.episode_order(self._ranks)) for term in terms]
        non_empty = [(term, position_N, count) for term, position_N, count in ordered if count]
        wanted = max(1, min(minibatches, round(minibatches * share)))
        parts = min([wanted, *(count for *_, count in non_empty[:1])])
        order, device = torch.Generator().manual_seed(seed), self.accelerator.device
        steps: list[dict[str, float]] = []
        offloaded = self._moments.on_device() if self._moments else nullcontext()
        with explained_memory(self.settings.micro_tokens), offloaded:
            for _ in range(epochs if non_empty else 0):
                splits = [
                    term.split(split_minibatches(count, parts, order)[position_N].to(device), parts, self.total)
                    for term, position_N, count in non_empty
                ]
                splits, imbalance = self._balanced(splits)
                steps += [self._optimizer_step(splits, part) | imbalance for part in range(parts)]
        for _ in range(epochs * minibatches - len(steps) if steps else 0):
            self.scheduler.step()
        names = dict.fromkeys(name for step in steps for name in step)
        metrics = {name: [step[name] for step in steps if name in step] for name in names}
        totals: dict[str, float] = {}
        if steps:
            totals = {"lr": steps[-1]["lr"], "optimizer_steps": len(steps), "skipped": sum(metrics["skipped"])}
        return {name: sum(values) / len(values) for name, values in metrics.items()} | totals

    def _balanced(self, splits: Sequence[SplitTerm]) -> tuple[list[SplitTerm], dict[str, float]]:
        """Balance the tokens of each term over processes; also return how unequal those of the first one are, if there
        are several processes.
        """
        pairs = [balance(split, self._ranks, micro_tokens=self.settings.micro_tokens) for split in splits]
        several, imbalance = self._ranks.count > 1, pairs[0][1]
        named = {"imbalance": imbalance.balanced, "imbalance_dealt": imbalance.dealt} if several else {}
        return [split for split, _ in pairs], named

    def _optimizer_step(self, splits: Sequence[SplitTerm], part: int) -> dict[str, float]:
        """Train on one mini-batch of each term; this process may have none of its tokens."""
        self.actor.train()
        non_empty = [split for split in splits if split.shares[part]]
        totals: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.accelerator.device))
        for number, split in enumerate(non_empty, 1):
            term = split.term
            for pack, last in self._rounds(term.batch, split.part_N == part, term.algorithm.unit):
                micro_batch = split.micro_batch(pack, part)
                with self._accumulating(last and number == len(non_empty)):
                    outputs = _score(self.actor, pack)
                    loss, metrics = term.algorithm.loss(outputs, micro_batch)
                    loss = term.weight * loss
                    # accelerate averages gradients over processes, but the weights are for their sum.
                    self.accelerator.backward((loss + _zero(outputs)) * self.accelerator.num_processes)
                named = {f"{term.name}{name}": value for name, value in metrics.items()}
                use = self._use(pack)
                nonfinite = count_nonfinite(term.tokens.rewards_EK, micro_batch, outputs, loss)
                for name, value in {"loss": loss.detach(), **named, **use, **nonfinite}.items():
                    totals[name] += value
        means, use, causes = self._means(totals)
        return use | self._step(means, causes)

    def _step(self, metrics: dict[str, float], causes: list[str]) -> dict[str, float]:
        """Apply the accumulated gradients, or skip the step if there are `causes`, which are those of all processes, or
        the gradients aren't finite. `metrics` are returned if the step is applied.
        """
        rate = self.optimizer.param_groups[0]["lr"]
        norms = self._clip()
        if not all(map(math.isfinite, norms.values())):
            causes = [*causes, GRADIENTS]
        if causes:
            self._skip(causes)
        else:
            self.optimizer.step()
            self.scheduler.step()
            self.skips.applied()
        self.optimizer.zero_grad()
        return {"lr": rate, "skipped": float(bool(causes)), **({} if causes else metrics | norms)}

    def _skip(self, causes: list[str]) -> None:
        """Skip the step: weights and optimizer state stay unchanged. With fp16 the loss scale is reduced, which may be
        enough.
        """
        scaler = self.accelerator.scaler
        if scaler is not None:
            scaler.update()
        self.skips.skipped(causes, curable=scaler is not None and causes == [GRADIENTS] and scaler.get_scale() > 1)

    def _clip(self) -> dict[str, float]:
        """Clip gradients to `clip_norm`. The critic's own weights are clipped separately, since their gradients may be
        much larger and would scale the policy's down.
        """
        # accelerate's own clipping would unscale fp16 gradients once per call.
        self.accelerator.unscale_gradients()
        clip_norm = self.settings.clip_norm
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], clip_norm) for group in self.optimizer.param_groups]
        full = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        return dict(zip(("grad_norm", "critic_grad_norm"), map(float, full), strict=False))

    @torch.no_grad()
    def _score_batch(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and critic value (0 without a critic) of each completion token."""
        model.eval()
        all_N = torch.ones_like(batch.completion_index_N, dtype=torch.bool)
        logp_N, entropy_N, value_N = torch.zeros(3, len(all_N), device=all_N.device)
        for pack, _ in self._rounds(batch, all_N, "segment"):
            # As in `update`: FSDP2 casts inputs and weights by itself, and accelerate's other wrappers use autocast.
            cast = nullcontext() if self.accelerator.is_fsdp2 else self.accelerator.autocast()
            with explained_memory(self.settings.micro_tokens), cast:
                outputs = _score(model, pack)
            logp_N[pack.index_M] = outputs.logprobs_M.float()
            entropy_N[pack.index_M] = outputs.entropy_M.float()
            if outputs.values_M is not None:
                value_N[pack.index_M] = outputs.values_M.float()
        return logp_N, entropy_N, value_N

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        if self.reference is not None:
            return self._score_batch(self.reference, batch)[0]
        if not self._bare.has_adapter:
            raise ValueError("The algorithm has a KL penalty, but the learner was made without a reference model.")
        with self._bare.without_adapter():
            return self._score_batch(self.actor, batch)[0]

    def _rounds(self, batch: Batch, chosen_N: Tensor, unit: Unit) -> Iterator[tuple[Pack, bool]]:
        """Yield micro-batches, and whether each is the last. All processes run in lockstep, so a process with fewer
        micro-batches yields empty ones.
        """
        packs = make_packs(batch, chosen_N, capacity=self.settings.micro_tokens, unit=unit)
        rounds = max(self._counts(len(packs)))
        for n in range(rounds):
            yield packs[n] if n < len(packs) else empty_pack(chosen_N.device), n == rounds - 1

    def _accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Control gradient synchronization: DDP synchronizes with the last micro-batch only, FSDP with each, since it
        stores only its shard of gradients.
        """
        self.accelerator.sync_gradients = last
        sharded = self.accelerator.distributed_type == DistributedType.FSDP
        return nullcontext() if last or sharded else self.accelerator.no_sync(self.actor)

    def _use(self, pack: Pack) -> dict[str, Tensor]:
        """Count positions, distinct tokens and segments' tokens of a pack. An empty pack is padding."""
        positions, full = len(pack.ids_T), len(pack.index_M) > 0
        counts = {
            "positions": positions,
            "distinct": positions if full else 0,
            "tokens": sum(pack.lengths) if full else 0,
            "packs": int(full),
            "filled": min(1.0, positions / self.settings.micro_tokens) if full else 0,
        }
        return {name: torch.tensor(count, dtype=torch.float64) for name, count in counts.items()}

    def _means(self, totals: dict[str, Tensor]) -> tuple[dict[str, float], dict[str, float], list[str]]:
        """Turn sums over micro-batches into metrics, statistics of how full micro-batches are, and causes to skip."""
        summed = self.total(torch.stack([value.double() for value in totals.values()])).tolist()
        metrics = dict(zip(totals, summed, strict=True))
        causes = pop_causes(metrics)
        counts = [metrics.pop(name) for name in ("positions", "distinct", "tokens", "packs", "filled")]
        positions, distinct, tokens, packs, filled = counts
        use = {"fill": filled / packs, "padding": 1 - distinct / positions, "shared": 1 - distinct / tokens}
        return metrics, use, causes

    def _counts(self, count: int) -> list[int]:
        """Gather a count from every process."""
        counts: Any = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return counts.tolist()

    def _placed(self, model: PolicyModel) -> Any:
        """Move a frozen model to the device; FSDP2 shards it over the processes."""
        if self.accelerator.is_fsdp2:
            model.allocate()
            return fsdp2_prepare_model(self.accelerator, model)
        return model.to(self.accelerator.device)


def _score(model: Any, pack: Pack) -> ModelOutputs:
    return model(pack.ids_T, pack.position_T, pack.lengths, pack.before_M, pack.target_M, pack.place_F)


def _zero(outputs: ModelOutputs) -> Tensor | float:
    """Return 0 as a function of the critic: DDP needs a gradient for every weight, even without a critic loss."""
    return 0.0 if outputs.values_M is None else outputs.values_M[:0].sum()
