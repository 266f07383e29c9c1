from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accelerate import Accelerator
from agentgym_eval.util.errors import RunStopped
from agentgym_trainer.algorithms import (
    DAPO,
    GRPO,
    GSPO,
    KL,
    PPO,
    RLOO,
    Aggregation,
    Algorithm,
    Correction,
    GiGPO,
    Imitation,
    ReinforcePP,
)
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_learner import make_learner, make_trajectories, update_on

PLAIN = replace(DAPO, aggregation=Aggregation("token"))
EVERYDAY = {"sequence mean and KL", "whole episodes", "critic's head"}
CASES: dict[str, tuple[Algorithm | Imitation, Any]] = {
    "token mean": (PLAIN, None),
    "sequence mean and KL": (replace(GRPO, aggregation=Aggregation("sequence"), kl=KL("loss", "k3", 0.1)), None),
    "whole episodes": (replace(GSPO, correction=Correction("sequence"), entropy=0.01), None),
    "global normalisation": (ReinforcePP, None),
    "step groups": (GiGPO, None),
    "critic's head": (PPO, "head"),
    "separate critic": (PPO, "separate"),
    "imitation": (Imitation(), None),
}
"""Algorithms that exercise different parts of the learner, with the kind of critic."""


def _weights(student: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in student.actor.parameters()])


def _gradients(student: Learner) -> list[Tensor]:
    """Return a list that each optimizer step extends by its gradients, after clipping."""
    gradients: list[Tensor] = []
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: gradients.extend(p.grad.clone() for g in optimizer.param_groups for p in g["params"])
    )
    return gradients


@pytest.mark.parametrize("case", [c if c in EVERYDAY else pytest.param(c, marks=pytest.mark.long) for c in CASES])
def test_order_and_micro_batches_do_not_change_updates(new_model: Callable[..., Any], case: str) -> None:
    algorithm, critic = CASES[case]
    results: list[tuple[dict[str, float], Tensor]] = []
    trajectories = make_trajectories(11, 8)
    for order, micro in ((trajectories, 10_000), (trajectories, 64), (trajectories[::-1], 1)):
        student = make_learner(
            new_model(), critic=critic, reference=algorithm.needs_reference, micro_tokens=micro, lr=1e-3, warmup=100
        )
        metrics = update_on(student, order, algorithm)
        del metrics["fill"]
        results.append((metrics, _weights(student)))
    metrics, weights = results[0]
    assert metrics["grad_norm"] > 0
    for other_metrics, other_weights in results[1:]:
        assert other_metrics == pytest.approx(metrics, abs=1e-5, rel=1e-4)
        torch.testing.assert_close(other_weights, weights, atol=1e-5, rtol=0)


@pytest.mark.long
@settings(max_examples=24)
@given(seed=st.integers(0, 1000), micro=st.integers(1, 200), case=st.sampled_from(sorted(CASES)))
def test_gradients_do_not_depend_on_micro_batches(
    new_model: Callable[..., Any], seed: int, micro: int, case: str
) -> None:
    algorithm, critic = CASES[case]
    gradients: list[list[Tensor]] = []
    for tokens in (10_000, micro):
        student = make_learner(
            new_model(), critic=critic, reference=algorithm.needs_reference, micro_tokens=tokens, clip_norm=1e6
        )
        gradients.append(_gradients(student))
        update_on(student, make_trajectories(seed, 5), algorithm)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def _textbook_losses(model: Any, trajectory: Trajectory, advantage: float) -> list[Tensor]:
    """Return the clipped surrogate loss of each completion token."""
    losses: list[Tensor] = []
    for segment in trajectory.segments:
        logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0], -1)
        for t, in_loss in enumerate(segment.loss_mask):
            if in_loss:
                ratio = torch.exp(logp[t - 1, segment.ids[t]] - segment.logprobs[t])
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
    return losses


def test_update_equals_torch_adamw_on_the_textbook_loss(new_model: Callable[..., Any]) -> None:
    trajectories = make_trajectories(2, 4, groups=1)
    student = make_learner(new_model(), clip_norm=0.5, lr=1e-3)
    update_on(student, trajectories, PLAIN)
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    returns = torch.tensor([sum(t.rewards) for t in trajectories], dtype=torch.float64)
    advantages = ((returns - returns.mean()) / (returns.std() + 1e-6)).tolist()
    losses = [
        loss
        for t, advantage in zip(trajectories, advantages, strict=True)
        for loss in _textbook_losses(model, t, advantage)
    ]
    torch.stack(losses).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(_weights(student), expected, atol=1e-5, rtol=0)


def _count_steps(student: Learner) -> list[None]:
    steps: list[None] = []
    student.optimizer.optimizer.register_step_post_hook(lambda *_: steps.append(None))
    return steps


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_every_epoch_has_a_step_per_minibatch(new_model: Callable[..., Any], epochs: int, minibatches: int) -> None:
    student, once = make_learner(new_model(), lr=1e-3), make_learner(new_model(), lr=1e-3)
    steps = _count_steps(student)
    update_on(student, make_trajectories(4), Imitation(), epochs=epochs, minibatches=minibatches)
    update_on(once, make_trajectories(4), Imitation())
    assert len(steps) == epochs * minibatches
    assert torch.equal(_weights(student), _weights(once)) == (epochs * minibatches == 1)


@pytest.mark.parametrize("micro", [1, 10_000])
def test_each_completion_token_is_in_one_minibatch_per_epoch(new_model: Callable[..., Any], micro: int) -> None:
    student = make_learner(new_model(), micro_tokens=micro)
    targets: list[int] = []
    student.actor.register_forward_hook(lambda _, inputs, __: targets.extend(inputs[4].tolist()))
    trajectories = make_trajectories(4, 7)
    update_on(student, trajectories, Imitation(), epochs=2, minibatches=3)
    segments = [segment for t in trajectories for segment in t.segments]
    ids = [i for s in segments for i, in_loss in zip(s.ids, s.loss_mask, strict=True) if in_loss]
    assert sorted(targets) == sorted(ids * 2)


def test_number_of_steps_is_limited_by_the_number_of_episodes(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model())
    steps = _count_steps(student)
    assert update_on(student, make_trajectories(0, 3), Imitation(), minibatches=8)
    assert len(steps) == 3


@pytest.mark.parametrize(("share", "steps"), [(1.0, 8), (1.7, 8), (0.8, 6), (0.5, 4), (0.1, 2), (0.0, 2)])
def test_partial_batch_takes_fewer_steps_on_the_same_lr_schedule(
    new_model: Callable[..., Any], share: float, steps: int
) -> None:
    student = make_learner(new_model(), schedule="linear", total_steps=16)
    taken_steps = _count_steps(student)
    metrics = update_on(student, make_trajectories(0, 8), Imitation(), epochs=2, minibatches=4, share=share)
    assert len(taken_steps) == metrics["optimizer_steps"] == steps
    assert student.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * (1 - 9 / 17))


def test_batch_without_completion_tokens_changes_nothing(new_model: Callable[..., Any]) -> None:
    without_completions = [
        replace(t, segments=tuple(replace(s, loss_mask=(False,) * len(s.ids)) for s in t.segments))
        for t in make_trajectories(0, 3)
    ]
    for trajectories in ([], without_completions):
        student = make_learner(new_model(), reference=True)
        before = _weights(student).clone()
        assert update_on(student, trajectories, GRPO) == {}
        assert torch.equal(_weights(student), before)


def test_kl_penalty_applies_to_groups_without_signal(new_model: Callable[..., Any]) -> None:
    trajectories = [replace(t, rewards=(0.0,) * len(t.rewards)) for t in make_trajectories(0, 4)]
    algorithm = replace(GRPO, kl=KL("loss", "k3", 0.5))
    student = make_learner(new_model(), reference=True, lr=1e-3)
    assert update_on(student, trajectories, algorithm)["ref_kl"] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        for parameter in student.actor.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    ref_kl = [update_on(student, trajectories, algorithm)["ref_kl"] for _ in range(12)]
    assert ref_kl[0] > 0.01
    assert ref_kl[-1] < 0.7 * ref_kl[0]


def test_missing_reference_or_critic_raises_a_helpful_error(new_model: Callable[..., Any]) -> None:
    batch, student = make_batch(make_trajectories(0)), make_learner(new_model())
    with pytest.raises(ValueError, match="has a KL penalty, but the learner was made without a reference model"):
        student.compute_logprobs(batch, replace(GRPO, kl=KL("loss", "k3", 0.1)))
    with pytest.raises(ValueError, match="needs a critic, but the learner was made with an actor that has none"):
        student.compute_logprobs(batch, PPO)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_compute_logprobs_uses_learner_reference_and_critic(new_model: Callable[..., Any], temperature: float) -> None:
    algorithm = replace(PPO, correction=Correction("token"), kl=KL("reward", "k1", 0.1))
    student = make_learner(new_model(), critic="head", reference=True, temperature=temperature)
    with torch.no_grad():
        student.policy.lm_head.weight.mul_(1.5)
        student.actor.critic.linear.bias.fill_(0.25)
    trajectories = make_trajectories(8)
    token_batch = student.compute_logprobs(make_batch(trajectories), algorithm)
    models = {"old_logprobs_N": student.policy.eval(), "ref_logprobs_N": new_model().eval()}
    for name, model in models.items():
        expected: list[float] = []
        for segment in (s for t in trajectories for s in t.segments):
            with torch.no_grad():
                logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0] / temperature, -1)
            expected += [float(logp[t - 1, segment.ids[t]]) for t, in_loss in enumerate(segment.loss_mask) if in_loss]
        assert getattr(token_batch, name).tolist() == pytest.approx(expected, abs=1e-4)
    assert token_batch.values_N is not None
    assert torch.equal(token_batch.values_N, torch.full_like(token_batch.values_N, 0.25))
    assert token_batch.old_or_rollout_logprobs_N is token_batch.old_logprobs_N


@pytest.mark.parametrize("algorithm", [PLAIN, RLOO, Imitation()], ids=["nothing", "reference", "imitation"])
def test_compute_logprobs_skips_unneeded_forward_passes(
    new_model: Callable[..., Any], algorithm: Algorithm | Imitation
) -> None:
    student = make_learner(new_model(), reference=True)
    student.actor.register_forward_pre_hook(lambda *_: pytest.fail("the actor was called"))
    token_batch = student.compute_logprobs(make_batch(make_trajectories(0)), algorithm)
    assert (token_batch.ref_logprobs_N is not None) == algorithm.needs_reference
    assert token_batch.old_logprobs_N is token_batch.values_N is None


@pytest.mark.parametrize("critic", [None, "head", "separate"])
def test_gradients_of_policy_and_critic_are_clipped_separately(new_model: Callable[..., Any], critic: Any) -> None:
    trajectories = make_trajectories(0)
    # Returns in the thousands make the critic's gradients far larger than the policy's.
    high_returns = [replace(t, rewards=tuple(1000 * reward for reward in t.rewards)) for t in trajectories]
    student = make_learner(new_model(), critic=critic, clip_norm=0.25)
    norms: list[list[float]] = []
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(
            [float(torch.stack([p.grad.norm() for p in group["params"]]).norm()) for group in optimizer.param_groups]
        )
    )
    metrics = update_on(student, high_returns, PPO if critic else PLAIN)
    assert metrics["grad_norm"] > 0.25
    assert norms == [[pytest.approx(0.25, rel=1e-3)] * (2 if critic else 1)]
    assert ("critic_grad_norm" in metrics) == bool(critic)
    if critic == "separate":
        assert metrics["critic_grad_norm"] > 100 * metrics["grad_norm"]


def test_critic_has_its_own_learning_rate(new_model: Callable[..., Any]) -> None:
    largest_changes: dict[float, tuple[Tensor, Tensor]] = {}
    for critic_lr in (1e-6, 1e-2):
        student = make_learner(new_model(), critic="separate", lr=1e-3, critic_lr=critic_lr)
        initial = {name: value.clone() for name, value in student.actor.state_dict().items()}
        update_on(student, make_trajectories(0), PPO)
        changes = {name: (value - initial[name]).abs().max() for name, value in student.actor.state_dict().items()}
        largest_changes[critic_lr] = (
            torch.stack([value for name, value in changes.items() if name.startswith("policy")]).max(),
            torch.stack([value for name, value in changes.items() if name.startswith("critic")]).max(),
        )
    # Adam's first step has the size of the learning rate.
    assert largest_changes[1e-6][0] == largest_changes[1e-2][0] == pytest.approx(1e-3, rel=1e-2)
    assert largest_changes[1e-6][1] == pytest.approx(1e-6, rel=0.1)
    assert largest_changes[1e-2][1] == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.9045085, 0.6545085, 0.3454915, 0.0954915]),
    ],
)
def test_learning_rate_schedules_have_no_step_at_zero(
    new_model: Callable[..., Any], schedule: Any, factors: list[float]
) -> None:
    student = make_learner(new_model(), lr=0.01, warmup=4, schedule=schedule, total_steps=8)
    rates = [update_on(student, make_trajectories(0, 2), Imitation())["lr"] for _ in range(8)]
    assert rates == pytest.approx([0.01 * factor for factor in factors])


def test_bfloat16_update_is_close_to_float32(
    new_model: Callable[..., Any], accelerator_of: Callable[[str], Any]
) -> None:
    metrics: dict[str, dict[str, float]] = {}
    gradient: dict[str, Tensor] = {}
    for precision in ("no", "bf16"):
        student = make_learner(
            new_model(init=1.0), critic="head", accelerator=accelerator_of(precision), reference=True
        )
        grads = _gradients(student)
        metrics[precision] = update_on(student, make_trajectories(0), replace(PPO, kl=KL("loss", "k3", 0.1)))
        gradient[precision] = torch.cat([grad.flatten() for grad in grads])
        assert {p.dtype for p in student.actor.parameters()} == {grad.dtype for grad in grads} == {torch.float32}
    assert metrics["bf16"] == pytest.approx(metrics["no"], rel=0.05, abs=0.02)
    assert metrics["bf16"]["loss"] != metrics["no"]["loss"]
    assert torch.cosine_similarity(gradient["bf16"], gradient["no"], dim=0) > 0.99


def test_unsupported_float16_is_rejected(new_model: Callable[..., Any], accelerator_of: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="ignores fp16 on this device; choose the precision bf16 or no"):
        make_learner(new_model(), accelerator=accelerator_of("fp16"))


def _with_scaler(accelerator: Accelerator, scale: float) -> Accelerator:
    """Set up fp16 on a CPU as accelerate does on a GPU."""
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return accelerator


def test_float16_gradients_are_unscaled_before_clipping(
    new_model: Callable[..., Any], accelerator_of: Callable[[str], Any]
) -> None:
    gradient: dict[str, Tensor] = {}
    for precision in ("no", "fp16"):
        accelerator = accelerator_of(precision)
        if precision == "fp16":
            _with_scaler(accelerator, 1024.0)
        student = make_learner(new_model(init=1.0), critic="separate", accelerator=accelerator, clip_norm=0.25)
        grads = _gradients(student)
        metrics = update_on(student, make_trajectories(0), PPO)
        gradient[precision] = torch.cat([grad.flatten() for grad in grads])
    assert metrics["skipped"] == 0
    torch.testing.assert_close(gradient["fp16"], gradient["no"], atol=2e-3, rtol=0)
    assert torch.cosine_similarity(gradient["fp16"], gradient["no"], dim=0) > 0.99


def test_step_with_float16_overflow_is_skipped(
    new_model: Callable[..., Any], accelerator_of: Callable[[str], Any]
) -> None:
    accelerator = _with_scaler(accelerator_of("fp16"), 2.0**120)
    student = make_learner(new_model(init=1.0), critic="separate", accelerator=accelerator, warmup=10)
    before = _weights(student).clone()
    metrics = update_on(student, make_trajectories(0), PPO)
    assert metrics["skipped"] == 1
    assert "grad_norm" not in metrics
    assert torch.equal(_weights(student), before)
    assert student.accelerator.scaler.get_scale() == 2.0**119
    assert update_on(student, make_trajectories(0), PPO)["lr"] == metrics["lr"]


@pytest.mark.parametrize("updating", [False, True])
def test_too_little_memory_is_explained(new_model: Callable[..., Any], updating: bool) -> None:
    learner, trajectories = make_learner(new_model(), micro_tokens=48), make_trajectories(1)
    error = torch.OutOfMemoryError("CUDA out of memory.\nIt tried to allocate 2 GiB.")
    learner.policy.model.register_forward_pre_hook(Mock(side_effect=error))
    with pytest.raises(RunStopped, match=r"A micro-batch of up to 48 tokens .* lower --optimizer.micro-tokens"):
        if updating:
            update_on(learner, trajectories, Imitation())
        else:
            learner.logprobs(make_batch(trajectories))
