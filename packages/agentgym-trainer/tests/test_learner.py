from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes
from accelerate import Accelerator
from agentgym_trainer.algorithms import GRPO, Imitation
from agentgym_trainer.batch import make_batch
from agentgym_trainer.learner import Learner
from agentgym_trainer.trajectory import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from miniature import learner, some_trajectories

SCRIPT = two_processes.__file__
ALGORITHMS = [GRPO(), GRPO(aggregation="sequence", kl=0.1, flat_groups="keep"), Imitation()]


def _update(
    model: Any,
    made: list[Trajectory],
    algorithm: GRPO | Imitation,
    *,
    layout: Any = "pad",
    how: dict[str, Any] | None = None,
    **optimizer: Any,
) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics of one update, and all weights after it."""
    batch = make_batch(made, pad_id=0, layout=layout)
    student = learner(model, reference=bool(algorithm.kl), **optimizer)
    credit = algorithm.credit(batch.rewards_EK, batch.played_EK, batch.group_E) if isinstance(algorithm, GRPO) else None
    metrics = student.update(
        batch,
        algorithm,
        advantage_EK=credit.advantage_EK if credit else None,
        trains_E=credit.trains_E if credit else None,
        **how or {},
    )
    return metrics, _weights(student)


def _weights(student: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in student.model.parameters()])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["token", "sequence", "imitation"])
def test_layout_order_and_micro_batches_change_neither_loss_nor_weights(
    new_model: Callable[..., Any], algorithm: GRPO | Imitation
) -> None:
    made = some_trajectories(11, 8)
    # Adam divides by the gradient's own size, which would magnify rounding: a large epsilon is not on offer, so the
    # gradient is compared by a step along it.
    results = [
        _update(new_model(), order, algorithm, layout=layout, micro_tokens=micro, lr=1e-3, warmup=100)
        for order, layout, micro in itertools.product((made, made[::-1]), ("pad", "pack"), (1, 64, 10_000))
    ]
    metrics, weights = results[0]
    assert metrics["grad_norm"] > 0
    for other, moved in results[1:]:
        assert other == pytest.approx(metrics, abs=1e-5, rel=1e-4)
        torch.testing.assert_close(moved, weights, atol=1e-5, rtol=0)


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), micro=st.integers(1, 200))
def test_gradients_do_not_depend_on_layout_or_micro_batches(
    new_model: Callable[..., Any], seed: int, micro: int
) -> None:
    def gradients(layout: Any, micro_tokens: int) -> list[torch.Tensor]:
        student = learner(new_model(), micro_tokens=micro_tokens)
        seen: list[torch.Tensor] = []
        student.optimizer.optimizer.register_step_pre_hook(
            lambda optimizer, *_: seen.extend(p.grad.clone() for g in optimizer.param_groups for p in g["params"])
        )
        batch = make_batch(some_trajectories(seed, 5), pad_id=0, layout=layout)
        credit = GRPO().credit(batch.rewards_EK, batch.played_EK, batch.group_E)
        student.update(batch, GRPO(), advantage_EK=credit.advantage_EK, trains_E=credit.trains_E)
        return seen

    for one, other in zip(gradients("pad", 10_000), gradients("pack", micro), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_an_update_is_torchs_own_adamw_on_the_textbook_loss(new_model: Callable[..., Any]) -> None:
    made = some_trajectories(2, 4, groups=1)
    algorithm = GRPO()
    _, weights = _update(new_model(), made, algorithm, clip_norm=0.5, lr=1e-3)
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    returns = torch.tensor([sum(t.rewards) for t in made], dtype=torch.float64)
    advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
    losses: list[torch.Tensor] = []
    for trajectory, advantage in zip(made, advantages.tolist(), strict=True):
        for segment in trajectory.segments:
            logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0], -1)
            for t, said in enumerate(segment.said):
                if said:
                    ratio = torch.exp(logp[t - 1, segment.ids[t]] - segment.logprobs[t])
                    losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    torch.stack(losses).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)


def _steps(student: Learner) -> list[None]:
    taken: list[None] = []
    student.optimizer.optimizer.register_step_post_hook(lambda *_: taken.append(None))
    return taken


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_every_epoch_takes_every_minibatch(new_model: Callable[..., Any], epochs: int, minibatches: int) -> None:
    student = learner(new_model(), lr=1e-3)
    steps = _steps(student)
    student.update(
        make_batch(some_trajectories(4), pad_id=0), Imitation(), epochs=epochs, minibatches=minibatches
    )  # fmt: skip
    assert len(steps) == epochs * minibatches
    _, once = _update(new_model(), some_trajectories(4), Imitation(), lr=1e-3)
    assert torch.equal(_weights(student), once) == (epochs * minibatches == 1)


def test_the_layout_does_not_change_which_episodes_share_a_minibatch(new_model: Callable[..., Any]) -> None:
    both: list[torch.Tensor] = []
    for layout in ("pad", "pack"):
        student = learner(new_model(), lr=1e-3)
        batch = make_batch(some_trajectories(4, 7), pad_id=0, layout=layout, row_tokens=64)
        student.update(batch, Imitation(), epochs=2, minibatches=3)
        both.append(_weights(student))
    torch.testing.assert_close(both[0], both[1], atol=1e-5, rtol=0)


def test_each_row_is_in_one_minibatch_of_an_epoch(new_model: Callable[..., Any]) -> None:
    student = learner(new_model())
    seen: list[int] = []
    logprobs = student.logprobs
    student.logprobs = lambda model, batch, said: (
        seen.extend(batch.ids_BT[:, 0].tolist()) or logprobs(model, batch, said)
    )  # type: ignore[method-assign]
    made = some_trajectories(4, 7)
    student.update(make_batch(made, pad_id=0), Imitation(), epochs=2, minibatches=3)
    assert sorted(seen) == sorted([segment.ids[0] for t in made for segment in t.segments] * 2)


def test_more_minibatches_than_episodes_are_as_many_steps_as_there_are_episodes(new_model: Callable[..., Any]) -> None:
    student = learner(new_model())
    steps = _steps(student)
    metrics = student.update(make_batch(some_trajectories(4, 2), pad_id=0), Imitation(), epochs=2, minibatches=16)
    assert len(steps) == 4
    assert metrics["nll"] > 3
    assert _weights(student).isfinite().all()


def test_nothing_trains_when_all_groups_are_flat(new_model: Callable[..., Any]) -> None:
    made = [replace(t, rewards=(1.0,)) for t in some_trajectories(0, 4) if len(t.segments) == 1]
    made = [replace(t, segments=tuple(replace(s, turns=(0,) * len(s.ids)) for s in t.segments)) for t in made]
    metrics, weights = _update(new_model(), made, GRPO(kl=0.1), how={"epochs": 2})
    assert metrics == {}
    assert torch.equal(weights, torch.cat([p.detach().flatten() for p in new_model().parameters()]))


def test_kept_flat_groups_are_held_to_the_reference(new_model: Callable[..., Any]) -> None:
    made = [replace(t, rewards=(0.0,) * len(t.rewards)) for t in some_trajectories(0, 4)]
    algorithm = GRPO(kl=0.5, flat_groups="keep")
    metrics, _ = _update(new_model(), made, algorithm)
    assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    batch = make_batch(made, pad_id=0)
    student = learner(new_model(), reference=True, lr=1e-3)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    away = [student.update(batch, algorithm)["kl_reference"] for _ in range(12)]
    assert away[0] > 0.01
    assert away[-1] < 0.7 * away[0]


def test_a_penalty_without_a_reference_is_refused(new_model: Callable[..., Any]) -> None:
    student = learner(new_model())
    with pytest.raises(ValueError, match="has a KL penalty, but the learner was made without a reference model"):
        student.update(make_batch(some_trajectories(0), pad_id=0), GRPO(kl=0.1))


def test_the_gradient_is_scaled_down_to_clip_norm(new_model: Callable[..., Any]) -> None:
    norms: list[float] = []
    student = learner(new_model(), clip_norm=0.25)
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(
            float(torch.stack([p.grad.norm() for g in optimizer.param_groups for p in g["params"]]).norm())
        )
    )
    metrics = student.update(make_batch(some_trajectories(0), pad_id=0), Imitation())
    assert metrics["grad_norm"] > 0.25
    assert norms == [pytest.approx(0.25, rel=1e-3)]


def test_the_learning_rate_rises_over_warmup_and_stays(new_model: Callable[..., Any]) -> None:
    student = learner(new_model(), lr=0.01, warmup=4)
    rates: list[float] = []
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    batch = make_batch(some_trajectories(0, 2), pad_id=0)
    for _ in range(6):
        student.update(batch, Imitation())
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_and_entropy_are_those_at_the_sampling_temperature(model: Any, temperature: float) -> None:
    made = some_trajectories(8)
    batch = make_batch(made, pad_id=0, layout="pack")
    logp_BT, entropy_BT = learner(model, temperature=temperature).logprobs(model, batch, batch.said_BT)
    found = sorted(zip(logp_BT[batch.said_BT].tolist(), entropy_BT[batch.said_BT].tolist(), strict=True))
    expected: list[tuple[float, float]] = []
    for segment in (s for t in made for s in t.segments):
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0] / temperature, -1)
        for t, said in enumerate(segment.said):
            if said:
                at = logp[t - 1]
                expected.append((float(at[segment.ids[t]]), float(-(at.exp() * at).sum())))
    for one, other in zip(found, sorted(expected), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert not logp_BT[~batch.said_BT].any()
    assert not entropy_BT[~batch.said_BT].any()


def test_two_processes_give_the_update_of_one(tmp_path: Path) -> None:
    out = tmp_path / "updates.pt"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", SCRIPT, out],
        check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    together = torch.load(out)
    assert together.pop("processes") == 2
    assert together.keys() == two_processes.SHARE.keys()
    for case, (metrics, weights) in together.items():
        alone, expected = two_processes.train(case, 0, Accelerator(cpu=True))
        assert metrics == pytest.approx(alone, abs=1e-5, rel=1e-4)
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)
