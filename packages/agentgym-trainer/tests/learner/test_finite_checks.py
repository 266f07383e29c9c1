"""Tests that steps with non-finite values are skipped, and that non-finite weights are neither saved nor synced."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.algorithms import GRPO, PPO, Algorithm, Imitation
from agentgym_trainer.config import Optimizer, SFTConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.learner.finite_checks import NotFinite, check_weights, without_nonfinite
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.trackers import flat
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from torch import Tensor
from toy_learner import make_learner, make_trajectories, update_on

PLAIN = replace(GRPO, kl=replace(GRPO.kl, where="off"))
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def _weights(student: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in student.actor.parameters()])


def _update(
    student: Learner, algorithm: Algorithm | Imitation = PLAIN, *, seed: int = 0, **options: Any
) -> dict[str, float]:
    return update_on(student, make_trajectories(seed), algorithm, **options)


def _poison_once(student: Learner, bad: float, call: int = 0) -> None:
    """Set one gradient element to `bad` in the given optimizer step."""
    clip, calls = student._clip, iter(range(1000))

    def poisoned() -> dict[str, float]:
        if next(calls) == call:
            parameter = next(p for p in student.actor.parameters() if p.grad is not None)
            assert parameter.grad is not None
            parameter.grad.view(-1)[0] = bad
        return clip()

    student._clip = poisoned  # pyright: ignore[reportAttributeAccessIssue]


@BAD
def test_nonfinite_gradient_skips_the_step_without_side_effects(bad: float, new_model: Callable[..., Any]) -> None:
    student, twin = (make_learner(new_model(init=1.0), warmup=4) for _ in range(2))
    _poison_once(student, bad)
    before = _weights(student)
    metrics = _update(student)
    assert torch.equal(_weights(student), before)
    counts = ("lr", "optimizer_steps", "fill", "padding", "shared")
    assert metrics == {"skipped": 1, **{name: metrics[name] for name in counts}}
    assert student.skips.causes == ("gradients",)
    # Later updates are as if the skipped step had never happened: optimizer, schedule and all.
    assert _update(student, seed=1) == _update(twin, seed=1)
    assert torch.equal(_weights(student), _weights(twin))
    assert all(map(torch.equal, *(map(_moment, _states(each_learner)) for each_learner in (student, twin))))


def _states(student: Learner) -> list[dict[str, Any]]:
    return list(student.optimizer.state.values())


def _moment(state: dict[str, Any]) -> Tensor:
    return state["exp_avg"]


def test_metrics_are_means_over_the_steps_that_were_taken(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model(init=1.0))
    _poison_once(student, math.nan, call=1)
    before = _weights(student)
    metrics = _update(student, minibatches=2, epochs=2)
    assert metrics["skipped"] == 1
    assert all(map(math.isfinite, metrics.values()))
    assert metrics["grad_norm"] > 0
    assert not torch.equal(_weights(student), before)
    assert _weights(student).isfinite().all()


def _update_with_bad_value(student: Learner, name: str, bad: float, algorithm: Algorithm) -> dict[str, float]:
    """Update with one element of the named input tensor set to `bad`."""
    batch = make_batch(make_trajectories(0))
    token_batch = student.compute_logprobs(batch, algorithm)
    advantages = algorithm.compute_advantages(token_batch, student.total)
    owner = advantages if name == "advantages_N" else token_batch
    getattr(owner, name)[1] = bad
    return student.update(batch, token_batch, advantages, algorithm)


@BAD
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("rewards_EK", "rewards"),
        ("advantages_N", "advantages"),
        ("rollout_logprobs_N", "log-probabilities of the engine"),
        ("old_logprobs_N", "log-probabilities before the update"),
        ("ref_logprobs_N", "log-probabilities of the reference"),
    ],
)
def test_nonfinite_inputs_skip_the_update_and_are_named(
    name: str, cause: str, bad: float, new_model: Callable[..., Any]
) -> None:
    student = make_learner(new_model(init=1.0), reference=True)
    algorithm = replace(GRPO, correction=replace(GRPO.correction, level="token"))
    before = _weights(student)
    assert _update_with_bad_value(student, name, bad, algorithm)["skipped"] == 1
    assert cause in student.skips.causes
    assert torch.equal(_weights(student), before)


def test_nonfinite_logits_skip_the_step(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model(init=1.0))
    batch = make_batch(make_trajectories(0))
    token_batch = student.compute_logprobs(batch, PLAIN)
    advantages = PLAIN.compute_advantages(token_batch, student.total)
    hook = student.policy.model.norm.register_forward_hook(lambda *args: args[2] * math.inf)
    before = _weights(student)
    assert student.update(batch, token_batch, advantages, PLAIN)["skipped"] == 1
    hook.remove()
    assert student.skips.causes[0] == "log-probabilities"
    assert torch.equal(_weights(student), before)


def test_infinite_loss_with_finite_gradients_skips_the_step(
    new_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    student, loss = make_learner(new_model(init=1.0)), Imitation.loss

    def infinite(self: Imitation, *args: Any) -> Any:
        value, metrics = loss(self, *args)
        return value + math.inf, metrics

    monkeypatch.setattr(Imitation, "loss", infinite)
    before = _weights(student)
    assert _update(student, Imitation())["skipped"] == 1
    assert student.skips.causes == ("loss",)
    assert torch.equal(_weights(student), before)


def test_max_skips_counts_only_consecutive_skips(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model(init=1.0), max_skips=3)
    for _ in range(2):
        for _ in range(2):
            assert _update_with_bad_value(student, "advantages_N", math.nan, PLAIN)["skipped"] == 1
        assert _update(student)["skipped"] == 0
    for _ in range(2):
        _update_with_bad_value(student, "advantages_N", math.nan, PLAIN)
    with pytest.raises(NotFinite) as error:
        _update_with_bad_value(student, "advantages_N", math.nan, PLAIN)
    assert str(error.value) == (
        "3 optimizer steps in a row were skipped (optimizer.max_skips), because there were values that aren't finite "
        "in the advantages, the loss and the gradients."
    )
    with pytest.raises(ValueError, match="max_skips must be at least 1, not 0"):
        Optimizer(max_skips=0)


def test_nonfinite_critic_gradient_skips_the_step(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model(init=1.0), critic="head")
    batch = make_batch(make_trajectories(0))
    token_batch = student.compute_logprobs(batch, PPO)
    advantages = PPO.compute_advantages(token_batch, student.total)
    assert advantages.value_targets_N is not None
    advantages.value_targets_N[0] = math.nan
    before = _weights(student)
    assert student.update(batch, token_batch, advantages, PPO)["skipped"] == 1
    assert torch.equal(_weights(student), before)


# Weights.


@BAD
def test_nonfinite_weights_are_neither_saved_nor_exported(
    bad: float, new_model: Callable[..., Any], chat: Chat, tmp_path: Path
) -> None:
    student = make_learner(new_model(init=1.0))
    checkpoints = Checkpoints(tmp_path, keep=2, say=print)
    with pytest.raises(NotFinite, match=r"^x No checkpoint was written before that"), checkpoints.naming_last():
        raise NotFinite("x")
    healthy = checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), 1))
    with torch.no_grad():
        student.policy.model.norm.weight[3] = bad
    for action in (
        lambda: student.weights(2),
        lambda: checkpoints.save(student, chat.tokenizer, TrainingState(Stage(3), 2)),
    ):
        with pytest.raises(NotFinite, match=r"1 of the .* weight tensors hold values that aren't finite"):
            action()
    assert [path.name for path in tmp_path.iterdir()] == [healthy.name]
    with pytest.raises(NotFinite, match=f"The last healthy checkpoint is {healthy}"), checkpoints.naming_last():
        student.weights(2)


def test_weights_of_all_dtypes_are_checked(new_model: Callable[..., Any]) -> None:
    accelerator = make_learner(new_model()).accelerator
    finite = [torch.zeros(0), torch.ones(2, dtype=torch.int8), torch.tensor([65504.0], dtype=torch.float16)]
    check_weights([*finite, torch.full((3, 3), -3e38)], accelerator)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        with pytest.raises(NotFinite, match=r"1 of the 2 weight tensors"):
            check_weights([*finite, torch.tensor([[1.0, 2.0], [math.nan, 3.0]], dtype=dtype)], accelerator)


# Metrics.


def test_metrics_and_trackers_never_contain_nan(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", SFTConfig(), "sft-textcraft")
    logged: list[Any] = []
    folder.listener = logged.append
    folder.log({"step": 1, "loss": math.nan, "worlds": {"a": {"score": -math.inf}}, "ks": [1.0, math.inf], "n": 3})
    (line,) = folder.metrics.read_text().splitlines()

    def refuse(token: str) -> None:
        raise AssertionError(token)

    expected = {"step": 1, "loss": None, "worlds": {"a": {"score": None}}, "ks": [1.0, None], "n": 3}
    assert json.loads(line, parse_constant=refuse) == expected
    assert logged == [expected]
    assert flat(logged[0]) == {"step": 1, "ks": 2, "n": 3}
    assert without_nonfinite((1, True, "nan")) == [1, True, "nan"]
