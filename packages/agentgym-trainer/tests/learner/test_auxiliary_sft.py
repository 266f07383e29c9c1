"""Tests of the auxiliary SFT loss: the demonstrations of each step, and updates with both losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from agentgym_envs import EpisodeSpec, play_many
from agentgym_envs.agents.formats import Bare
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.algorithms import DAPO, GRPO, KL, Aggregation, Imitation
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import Demonstrations, walk
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import ContextLimit, Trajectory, trajectory
from coin_world import Coin
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_learner import auxiliary_loss, make_learner, make_trajectories, update_on

PLAIN = replace(DAPO, aggregation=Aggregation("token"))


def weights(student: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in student.actor.parameters()])


def gradients(student: Learner) -> list[Tensor]:
    """Return a list to which each optimizer step appends its flattened gradients."""
    steps: list[Tensor] = []
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: steps.append(torch.cat([p.grad.flatten() for p in optimizer.param_groups[0]["params"]]))
    )
    return steps


def completion_logps(model: Any, trajectories: Sequence[Trajectory]) -> list[list[Tensor]]:
    """Return the log-probabilities of each episode's completion tokens, with one forward pass per segment."""
    logps: list[list[Tensor]] = []
    for segments in (t.segments for t in trajectories):
        logps.append([])
        for segment in segments:
            logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0], -1)
            logps[-1] += [logp[t - 1, segment.ids[t]] for t, in_loss in enumerate(segment.loss_mask) if in_loss]
    return logps


def test_update_gradient_is_that_of_the_summed_textbook_losses(new_model: Callable[..., Any]) -> None:
    rollouts, demonstrations, weight = make_trajectories(2, 4, groups=1), make_trajectories(3, 3), 0.7
    student = make_learner(new_model(), clip_norm=1e9)
    steps = gradients(student)
    metrics = update_on(student, rollouts, PLAIN, auxiliary=[auxiliary_loss(student, demonstrations, weight)])
    model = new_model().train()
    rollout_logps = [
        [lp for s in t.segments for lp, in_loss in zip(s.logprobs, s.loss_mask, strict=True) if in_loss]
        for t in rollouts
    ]
    returns = torch.tensor([sum(t.rewards) for t in rollouts], dtype=torch.float64)
    advantages = ((returns - returns.mean()) / (returns.std() + 1e-6)).tolist()
    losses: list[Tensor] = []
    for logps, old_logps, advantage in zip(completion_logps(model, rollouts), rollout_logps, advantages, strict=True):
        ratios = [torch.exp(logp - old) for logp, old in zip(logps, old_logps, strict=True)]
        losses += [-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) for ratio in ratios]
    nll = -torch.stack([logp for logps in completion_logps(model, demonstrations) for logp in logps]).mean()
    loss = torch.stack(losses).mean() + weight * nll
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(steps[0], expected, atol=1e-5, rtol=1e-4)
    assert metrics["sft/nll"] == pytest.approx(nll.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_order_and_micro_batches_do_not_change_updates(new_model: Callable[..., Any]) -> None:
    rollouts, demonstrations = make_trajectories(2, 4), make_trajectories(3, 5)
    algorithm = replace(GRPO, kl=KL("loss", "k3", 0.1))
    results: list[tuple[dict[str, float], Tensor]] = []
    for direction, micro in ((1, 10_000), (-1, 40)):
        student = make_learner(new_model(), lr=1e-3, micro_tokens=micro, reference=True)
        places = [(i, 0) for i in range(5)][::direction]
        auxiliary = [auxiliary_loss(student, demonstrations[::direction], places=places)]
        metrics = update_on(student, rollouts, algorithm, auxiliary=auxiliary, epochs=2, minibatches=2)
        results.append(({n: v for n, v in metrics.items() if n not in ("fill", "padding")}, weights(student)))
    (metrics, updated), (other_metrics, other_updated) = results
    assert other_metrics == pytest.approx(metrics, abs=1e-5, rel=1e-4)
    torch.testing.assert_close(other_updated, updated, atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [5, 2])
def test_each_demonstration_is_in_one_minibatch_per_epoch(new_model: Callable[..., Any], count: int) -> None:
    student, rollouts, demonstrations = make_learner(new_model()), make_trajectories(2, 6), make_trajectories(3, count)
    targets: list[int] = []
    student.actor.register_forward_hook(lambda _, inputs, __: targets.extend(inputs[4].tolist()))
    update_on(student, rollouts, PLAIN, auxiliary=[auxiliary_loss(student, demonstrations)], epochs=2, minibatches=3)
    completion_ids = [
        token
        for t in (*rollouts, *demonstrations)
        for s in t.segments
        for token, in_loss in zip(s.ids, s.loss_mask, strict=True)
        if in_loss
    ]
    assert sorted(targets) == sorted(completion_ids * 2)


def test_update_without_rollouts_equals_plain_sft(new_model: Callable[..., Any]) -> None:
    student, imitator = make_learner(new_model(), lr=1e-3), make_learner(new_model(), lr=1e-3)
    metrics = update_on(student, [], PLAIN, auxiliary=[auxiliary_loss(student, make_trajectories(3, 5), weight=1.0)])
    expected = update_on(imitator, make_trajectories(3, 5), Imitation())
    assert torch.equal(weights(student), weights(imitator))
    assert (metrics["sft/nll"], metrics["loss"]) == (expected["nll"], expected["loss"])
    assert "nll" not in metrics
    assert "ratio" not in metrics


def test_auxiliary_gradient_is_proportional_to_its_weight(new_model: Callable[..., Any]) -> None:
    by_weight: list[Tensor] = []
    for weight in (0.0, 1.0, 3.0):
        student = make_learner(new_model(), clip_norm=1e9)
        steps = gradients(student)
        update_on(
            student,
            make_trajectories(2, 4),
            PLAIN,
            auxiliary=[auxiliary_loss(student, make_trajectories(3, 3), weight)],
        )
        by_weight += steps
    single, triple = by_weight[1] - by_weight[0], by_weight[2] - by_weight[0]
    assert single.norm() > 0.01
    torch.testing.assert_close(triple, 3 * single, atol=1e-5, rtol=1e-4)


@settings(max_examples=40)
@given(items=st.integers(1, 9), cuts=st.lists(st.integers(0, 40), min_size=2, unique=True), seed=st.integers(0, 9))
def test_each_lap_imitates_every_demonstration_once(items: int, cuts: list[int], seed: int) -> None:
    cuts = sorted(cuts)
    order = walk(items, start=cuts[0], count=cuts[-1] - cuts[0], seed=seed)
    assert order == [i for a, b in pairwise(cuts) for i in walk(items, start=a, count=b - a, seed=seed)]
    laps = walk(items, start=0, count=3 * items, seed=seed)
    assert all(sorted(laps[lap * items : (lap + 1) * items]) == [*range(items)] for lap in range(3))


def test_long_demonstrations_are_trimmed_to_whole_turns(chat: Chat) -> None:
    (demonstration,) = play_many(Bare(Coin()), Oracle(), [EpisodeSpec("coin/train/1", seed=0)])
    (full,) = trajectory(encode(chat, demonstration)).segments
    ends = [i + 1 for i, token in enumerate(full.ids) if token == chat.end_id and full.loss_mask[i]]
    for longest, end in ((ends[-1], ends[-1]), (ends[-1] - 1, ends[-2]), (ends[0] - 1, 0)):
        limit = ContextLimit(longest)
        demonstrations = Demonstrations([demonstration], chat, batch=2, limit=limit, seed=0, ranks=Ranks())
        drawn = demonstrations.of_step(0)
        assert [place for place, _ in drawn] == [(0, 0), (1, 0)]
        assert [[segment.ids for segment in item.segments] for _, item in drawn] == [[full.ids[:end]]] * 2
        trimming = demonstrations.trimming()
        assert (trimming.contexts, trimming.dropped) == (1, end == 0)
        assert (trimming.total, trimming.lost) == (sum(full.loss_mask), sum(full.loss_mask[end:]))


def test_steps_continue_where_the_previous_one_ended(chat: Chat) -> None:
    episodes = list(play_many(Bare(Coin()), Oracle(), [EpisodeSpec(f"coin/train/{i}", seed=0) for i in range(4)]))
    demonstrations = Demonstrations(episodes, chat, batch=2, limit=ContextLimit(999), seed=0, ranks=Ranks())
    assert {item.group for step in (0, 1) for _, item in demonstrations.of_step(step)} == {e.task_id for e in episodes}


def test_order_of_demonstrations_depends_on_the_seed() -> None:
    one, other = (walk(50, start=0, count=50, seed=seed) for seed in (0, 1))
    assert one != other
    assert walk(50, start=50, count=50, seed=0) != one
