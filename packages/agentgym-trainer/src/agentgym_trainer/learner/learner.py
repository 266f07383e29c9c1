"""Takes updates: a batch and an algorithm in, better weights and metrics out. Knows nothing of worlds or rollouts.

Every token's weight is counted over the whole mini-batch and all processes before the first backward pass, so order,
micro-batches and number of processes can't change the gradient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.algorithms.types import AdvantageOutput, MicroBatch, ModelOutputs, TokenBatch
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.finite_checks import (
    GRADIENTS,
    NotFinite,
    Skips,
    check_weights,
    count_nonfinite,
    listed,
    pop_causes,
)
from agentgym_trainer.learner.packing import Pack, Unit, empty_pack, make_packs, split_minibatches
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.weights import Weights, weights_of
from agentgym_trainer.tokens.batch import Batch


@dataclass(frozen=True, slots=True)
class LossTerm:
    """What an update learns from, and how."""

    batch: Batch
    """Of this process; there may be nothing in it."""
    experience: TokenBatch
    """From `Learner.assess`."""
    credit: AdvantageOutput
    """From the algorithm."""
    algorithm: Algorithm | Imitation
    places: Sequence[tuple[int, int]] | None = None
    """Where each episode stands among those of all processes, ascending; None: those of one process after those of the
    other."""
    weight: float = 1.0
    """What the algorithm's loss is multiplied by."""
    name: str = ""
    """Put before the names of its metrics."""


class Learner:
    """An actor under training, with its optimizer."""

    def __init__(
        self,
        actor: PolicyModel,
        accelerator: Accelerator,
        settings: Optimizer,
        *,
        total_steps: int = 1,
        critic_lr: float | None = None,
        reference: bool = False,
    ) -> None:
        """Prepare `actor` for training.

        Args:
            actor: The policy, and the critic if there is one.
            accelerator: Places actor and optimizer, and reduces over processes.
            settings: Learning rate and the like.
            total_steps: Optimizer steps of the whole run, for a learning rate that falls.
            critic_lr: Learning rate of what only the critic has; None is the policy's.
            reference: Keep what a KL penalty is measured against: a frozen copy of the policy as it is now, or, where
                an adapter trains, the policy without it, which takes no memory.
        """
        self.accelerator = accelerator
        self.settings = settings
        _check(accelerator, actor)
        if (deepspeed := accelerator.deepspeed_plugin) is not None:
            # Its engine clips by itself, and wants a number for what it needn't know.
            known = {"gradient_clipping": settings.clip_norm, "train_micro_batch_size_per_gpu": 1}
            deepspeed.deepspeed_config.update(known)
        self.reference = self._placed(actor.frozen()) if reference and not actor.has_adapter else None
        optimizer = torch.optim.AdamW(
            _parameter_groups(actor, settings.lr, critic_lr), betas=settings.betas, weight_decay=settings.weight_decay
        )
        # accelerate's own wrapper, which checkpoints keep, would step once for every process.
        self.scheduler = _schedule(optimizer, settings, total_steps)
        self.actor, self.optimizer, _ = accelerator.prepare(actor, optimizer, self.scheduler)
        self.skips = Skips(settings.max_skips)

    @property
    def policy(self) -> Any:
        """The Hugging Face model under training, or the peft model of one."""
        return self._bare.policy

    def weights(self, version: int, *, copied: bool = False) -> Weights:
        """What an engine is to sample with: the policy's own tensors, or the adapter's where one trains.

        Shards of FSDP2 are gathered into the memory of every process's CPU; so all processes call this.

        Args:
            version: Number of updates that the policy has seen.
            copied: Whether they are copied there in any case, and don't change with the next update.

        Raises:
            NotFinite: when they hold values that aren't finite.
        """
        check_weights(self.policy.parameters(), self.accelerator)
        return weights_of(self.policy, version, copied=copied)

    @property
    def _bare(self) -> PolicyModel:
        """The actor without what distributes it."""
        return self.accelerator.unwrap_model(self.actor)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        summed: Any = self.accelerator.reduce(value, "sum")
        return summed

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probability of each said token as the policy is now, float32 [N], on the learner's device."""
        return self._read(self.actor, batch.to(self.accelerator.device))[0]

    def entropies(self, batch: Batch) -> Tensor:
        """Entropy in nats of the distribution that each said token came from, as the policy is now, float32 [N], on the
        learner's device.
        """
        return self._read(self.actor, batch.to(self.accelerator.device))[1]

    def values(self, batch: Batch) -> Tensor:
        """What the critic expects before each said token, as it is now, float32 [N], on the learner's device."""
        return self._read(self.actor, batch.to(self.accelerator.device))[2]

    @torch.no_grad()
    def compute_logprobs(self, batch: Batch, algorithm: Algorithm | Imitation) -> TokenBatch:
        """The experience on the learner's device, with what the algorithm needs to know from before the update.

        Raises:
            ValueError: when the algorithm needs a reference or a critic and there is none.
        """
        batch = batch.to(self.accelerator.device)
        figures: dict[str, Tensor | None] = {}
        if algorithm.needs_critic and self._bare.critic is None:
            raise ValueError("The algorithm needs a critic, but the learner was made with an actor that has none.")
        if algorithm.needs_old_logprobs or algorithm.needs_critic:
            logp_N, _, value_N = self._read(self.actor, batch)
            figures["old_logprobs_N"] = logp_N if algorithm.needs_old_logprobs else None
            figures["values_N"] = value_N if algorithm.needs_critic else None
        if algorithm.needs_reference:
            figures["ref_logprobs_N"] = self._read_reference(batch)
        return batch.experience.with_logprobs(**figures)

    def update(
        self,
        batch: Batch,
        experience: TokenBatch,
        advantages: AdvantageOutput,
        algorithm: Algorithm | Imitation,
        *,
        epochs: int = 1,
        minibatches: int = 1,
        share: float = 1.0,
        seed: int = 0,
        places: Sequence[tuple[int, int]] | None = None,
        auxiliary: LossTerm | None = None,
    ) -> dict[str, float]:
        """Train on a batch.

        Args:
            batch: The whole batch of this process. There may be nothing in it: other processes may have something.
                Episodes that the experience keeps out of the loss are not trained on.
            experience: From `assess`.
            credit: From the algorithm.
            algorithm: Gives weights and loss.
            epochs: Passes over the batch.
            minibatches: Optimizer steps in each pass over a full batch; as many as there are episodes, if those are
                fewer.
            share: How much of a full batch this is. A pass takes that share of the optimizer steps, at least one, so
                that a step learns from about as much as it would of a full batch. The learning rate goes on as if all
                were taken.
            seed: Deals episodes out to mini-batches. Who holds which episodes doesn't matter, only their order.
            places: Where each episode of the batch stands in that order, ascending; None: those of one process after
                those of the other.
            beside: What else each optimizer step learns from: its gradients and metrics are added. It is dealt to as
                many mini-batches.

        Returns:
            Means over the optimizer steps of the algorithm's metrics and of `loss`, `grad_norm` (before clipping),
            `fill` (share of `micro_tokens` that packs use) and `padding` (share of positions computed for nothing);
            `lr` of the last step; the number of `optimizer_steps`, and how many of them were `skipped` because
            something was not finite; those count in none of the means. Empty when nobody said anything.

        Raises:
            NotFinite: on all processes, when too many steps in a row were skipped.
        """
        lessons = [LossTerm(batch, experience, advantages, algorithm, places), *([auxiliary] if auxiliary else [])]
        lessons = [replace(lesson, batch=lesson.batch.to(self.accelerator.device)) for lesson in lessons]
        spoken = [(lesson, at_N, count) for lesson in lessons for at_N, count in [self._standing(lesson)] if count]
        wanted = max(1, min(minibatches, round(minibatches * share)))
        parts = min([wanted, *(count for *_, count in spoken[:1])])
        order, device = torch.Generator().manual_seed(seed), self.accelerator.device
        steps: list[dict[str, float]] = []
        for _ in range(epochs if spoken else 0):
            dealt = [
                (
                    lesson,
                    split_minibatches(count, parts, order)[at_N].to(device),
                    lesson.experience.loss_mask_N.to(device),
                )
                for lesson, at_N, count in spoken
            ]
            steps += [
                self._optimizer_step([(lesson, trained_N & (part_N == part)) for lesson, part_N, trained_N in dealt])
                for part in range(parts)
            ]
        for _ in range(epochs * minibatches - len(steps) if steps else 0):
            self.scheduler.step()
        names = dict.fromkeys(name for step in steps for name in step)
        means = {name: [step[name] for step in steps if name in step] for name in names}
        whole: dict[str, float] = {}
        if steps:
            whole = {"lr": steps[-1]["lr"], "optimizer_steps": len(steps), "skipped": sum(means["skipped"])}
        return {name: sum(values) / len(values) for name, values in means.items()} | whole

    def _standing(self, lesson: LossTerm) -> tuple[Tensor, int]:
        """Where the episode of each said token stands among all that say something in the loss (0 where it is out of
        that), and how many those are.
        """
        experience = lesson.experience
        trained_N, episode_N = experience.loss_mask_N.cpu(), experience.episode_N.cpu()
        spoke = episode_N[trained_N].unique()
        places, rank = lesson.places, self.accelerator.process_index
        own = [places[e] if places else (rank, e) for e in spoke.tolist()]
        spoken = {place: at for at, place in enumerate(sorted(gather_object(own)))}
        standing_E = torch.zeros(len(experience.group_E), dtype=torch.long)
        standing_E[spoke] = torch.tensor([spoken[place] for place in own], dtype=torch.long)
        return standing_E[episode_N], len(spoken)

    def _optimizer_step(self, chosen: Sequence[tuple[LossTerm, Tensor]]) -> dict[str, float]:
        """Train on the chosen tokens of each lesson, which may be none here: other processes have some."""
        self.actor.train()
        counted = [(lesson, chosen_N, self.total(chosen_N.sum())) for lesson, chosen_N in chosen]
        heard = [(lesson, chosen_N, 1 / said) for lesson, chosen_N, said in counted if said]
        totals: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.accelerator.device))
        for number, (lesson, chosen_N, share) in enumerate(heard, 1):
            algorithm = lesson.algorithm
            weight_N = algorithm.weights(lesson.experience, chosen_N, self.total)
            critic_weight_N = algorithm.critic_weights(lesson.credit, chosen_N, self.total)
            for pack, last in self._rounds(lesson.batch, chosen_N, algorithm.unit):
                part = _part(lesson, pack, share, weight_N, critic_weight_N)
                with self._accumulating(last and number == len(heard)):
                    scores = _score(self.actor, pack)
                    loss, metrics = algorithm.loss(scores, part)
                    loss = lesson.weight * loss
                    # accelerate averages gradients over processes; the weights already hold the whole sum.
                    self.accelerator.backward((loss + _nothing(scores)) * self.accelerator.num_processes)
                named = {f"{lesson.name}{name}": value for name, value in metrics.items()}
                use, sick = self._use(pack), count_nonfinite(lesson.experience.rewards_EK, part, scores, loss)
                for name, value in {"loss": loss.detach(), **named, **use, **sick}.items():
                    totals[name] += value
        means, use, causes = self._means(totals)
        return use | self._step(means, causes)

    def _step(self, metrics: dict[str, float], causes: list[str]) -> dict[str, float]:
        """Apply the gradients that have been summed up; or skip them where these causes, which are those of all
        processes, or the gradients themselves are against it. `metrics` are what the step comes to when applied.
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
        """Leave weights and optimizer as they are. With fp16, the scale of the loss comes down where that is all it
        takes; DeepSpeed's engine has taken its step with the backward pass, or has skipped it likewise.
        """
        scaler = self.accelerator.scaler
        if scaler is not None:
            scaler.update()
        elif self.accelerator.distributed_type == DistributedType.DEEPSPEED and not self.optimizer.step_was_skipped:
            raise NotFinite(f"DeepSpeed has taken a step with values that aren't finite in the {listed(causes)}.")
        self.skips.skipped(causes, curable=scaler is not None and causes == [GRADIENTS] and scaler.get_scale() > 1)

    def _clip(self) -> dict[str, float]:
        """Scale gradients down to `clip_norm`: those of the critic's own weights apart, so that they, which may be much
        larger, don't scale the policy's down with them.
        """
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            # Its engine has clipped already, to the norm in its own configuration.
            return {"grad_norm": float(self.accelerator.clip_grad_norm_([], self.settings.clip_norm) or 0.0)}
        # accelerate's own clipping would undo fp16's scale once for each call.
        self.accelerator.unscale_gradients()
        clip_norm = self.settings.clip_norm
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], clip_norm) for group in self.optimizer.param_groups]
        whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        return dict(zip(("grad_norm", "critic_grad_norm"), map(float, whole), strict=False))

    @torch.no_grad()
    def _read(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability and entropy of each said token, and what the critic expected there (0 without one)."""
        model.eval()
        said_N = torch.ones_like(batch.completion_index_N, dtype=torch.bool)
        logp_N, entropy_N, value_N = torch.zeros(3, len(said_N), device=said_N.device)
        for pack, _ in self._rounds(batch, said_N, "segment"):
            with self.accelerator.autocast():
                scores = _score(model, pack)
            logp_N[pack.index_M] = scores.logprobs_M.float()
            entropy_N[pack.index_M] = scores.entropy_M.float()
            if scores.values_M is not None:
                value_N[pack.index_M] = scores.values_M.float()
        return logp_N, entropy_N, value_N

    def _read_reference(self, batch: Batch) -> Tensor:
        if self.reference is not None:
            return self._read(self.reference, batch)[0]
        if not self._bare.has_adapter:
            raise ValueError("The algorithm has a KL penalty, but the learner was made without a reference model.")
        with self._bare.without_adapter():
            return self._read(self.actor, batch)[0]

    def _rounds(self, batch: Batch, chosen_N: Tensor, unit: Unit) -> Iterator[tuple[Pack, bool]]:
        """Micro-batches and whether it is the last, as many on every process: they work in step, so a process that is
        through goes on with nothing.
        """
        packs = make_packs(batch, chosen_N, capacity=self.settings.micro_tokens, unit=unit)
        rounds = max(self._counts(len(packs)))
        for n in range(rounds):
            yield packs[n] if n < len(packs) else empty_pack(chosen_N.device), n == rounds - 1

    def _accumulating(self, last: bool) -> AbstractContextManager[None]:
        """DDP exchanges gradients with the last micro-batch only; FSDP with each, since it keeps no more than its share
        of them. DeepSpeed takes its step when told that gradients are exchanged.
        """
        self.accelerator.sync_gradients = last
        sharded = self.accelerator.distributed_type == DistributedType.FSDP
        return nullcontext() if last or sharded else self.accelerator.no_sync(self.actor)

    def _use(self, pack: Pack) -> dict[str, Tensor]:
        """What a pack is filled with. An idle one is padding."""
        positions, tokens = len(pack.ids_T), sum(pack.lengths) if len(pack.index_M) else 0
        counts = {"positions": positions, "tokens": tokens, "packs": min(1, tokens)}
        filled = min(1.0, tokens / self.settings.micro_tokens)
        return {name: torch.tensor(count, dtype=torch.float64) for name, count in {**counts, "filled": filled}.items()}

    def _means(self, totals: dict[str, Tensor]) -> tuple[dict[str, float], dict[str, float], list[str]]:
        """Metrics from what was summed up over micro-batches; what micro-batches were filled with; and what of all that
        isn't finite.
        """
        summed = self.total(torch.stack([value.double() for value in totals.values()])).tolist()
        metrics = dict(zip(totals, summed, strict=True))
        causes = pop_causes(metrics)
        positions, tokens, packs, filled = (metrics.pop(name) for name in ("positions", "tokens", "packs", "filled"))
        return metrics, {"fill": filled / packs, "padding": 1 - tokens / positions}, causes

    def _counts(self, count: int) -> list[int]:
        """What every process counts."""
        counts: Any = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return counts.tolist()

    def _placed(self, reference: PolicyModel) -> Any:
        """A frozen model where it is used; under FSDP2 each process keeps a share of it."""
        if self.accelerator.is_fsdp2:
            return fsdp2_prepare_model(self.accelerator, reference)
        return reference.to(self.accelerator.device)


def _check(accelerator: Accelerator, actor: PolicyModel) -> None:
    """Refuse what would be done otherwise than asked for."""
    deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    if accelerator.mixed_precision == "fp16" and accelerator.scaler is None and not deepspeed:
        raise ValueError("accelerate ignores fp16 on this device; choose the precision bf16 or no.")
    if deepspeed and actor.critic is not None:
        raise ValueError(
            "DeepSpeed clips all gradients by one norm, and a critic's would scale the policy's down; "
            "use DDP or FSDP2, or an algorithm without a critic."
        )


def _parameter_groups(actor: PolicyModel, lr: float, critic_lr: float | None) -> list[dict[str, Any]]:
    """What the policy has, and what only the critic has."""
    groups = [{"params": [p for p in actor.policy.parameters() if p.requires_grad], "lr": lr}]
    if actor.critic is not None:
        groups.append({"params": list(actor.critic.parameters()), "lr": lr if critic_lr is None else critic_lr})
    return groups


def _schedule(optimizer: torch.optim.Optimizer, settings: Optimizer, total_steps: int) -> LambdaLR:
    """A schedule of transformers, without its first and last step: there the learning rate of a warm-up, or of one that
    falls, is 0, and an update would be for nothing.
    """
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    if settings.schedule == "constant":
        return get_constant_schedule_with_warmup(optimizer, settings.warmup, last_epoch=0)
    falling = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[settings.schedule]
    return falling(optimizer, settings.warmup, total_steps + 1, last_epoch=0)


def _score(model: Any, pack: Pack) -> ModelOutputs:
    return model(pack.ids_T, pack.position_T, pack.lengths, pack.before_M, pack.target_M)


def _nothing(scores: ModelOutputs) -> Tensor | float:
    """0, hanging on the critic: DDP wants a gradient for every weight, also where the algorithm has no critic."""
    return 0.0 if scores.values_M is None else scores.values_M[:0].sum()


def _part(lesson: LossTerm, pack: Pack, share: Tensor, weight_N: Tensor, critic_weight_N: Tensor | None) -> MicroBatch:
    """The said tokens of a pack."""
    experience, credit = lesson.experience, lesson.credit

    def those(figure_N: Tensor | None) -> Any:
        return None if figure_N is None else figure_N[pack.index_M]

    return MicroBatch(
        episode_M=those(experience.episode_N),
        turn_M=those(experience.turn_N),
        rollout_logprobs_M=those(experience.rollout_logprobs_N),
        old_logprobs_M=those(experience.old_or_rollout_logprobs_N),
        advantages_M=those(credit.advantages_N),
        weight_M=those(weight_N),
        share=share,
        ref_logprobs_M=those(experience.ref_logprobs_N),
        values_M=those(experience.values_N),
        value_targets_M=those(credit.value_targets_N),
        critic_weight_M=those(critic_weight_N),
    )
