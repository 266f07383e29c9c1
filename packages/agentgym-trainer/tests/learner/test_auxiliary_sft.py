"""Imitation beside acting: what is imitated at a step, and what an update makes of both."""

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
from agentgym_trainer.tokens.trajectory import Trajectory, trajectory
from coin_world import Coin
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_learner import beside, learner, some_trajectories, teach

PLAIN = replace(DAPO, aggregation=Aggregation("token"))


def weights(student: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in student.actor.parameters()])


def gradients(student: Learner) -> list[Tensor]:
    """Filled at each optimizer step with all gradients, end to end."""
    seen: list[Tensor] = []
    student.optimizer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append(torch.cat([p.grad.flatten() for p in optimizer.param_groups[0]["params"]]))
    )
    return seen


def said_logps(model: Any, made: Sequence[Trajectory]) -> list[list[Tensor]]:
    """By episode, the log-probability of each said token, one forward pass for each segment."""
    found: list[list[Tensor]] = []
    for segments in (t.segments for t in made):
        found.append([])
        for segment in segments:
            logp = torch.log_softmax(model(torch.tensor([segment.ids])).logits[0], -1)
            found[-1] += [logp[t - 1, segment.ids[t]] for t, said in enumerate(segment.loss_mask) if said]
    return found


def test_an_updates_gradient_is_that_of_the_sum_of_both_textbook_losses(new_model: Callable[..., Any]) -> None:
    acted, shown, weight = some_trajectories(2, 4, groups=1), some_trajectories(3, 3), 0.7
    student = learner(new_model(), clip_norm=1e9)
    found = gradients(student)
    metrics = teach(student, acted, PLAIN, auxiliary=beside(student, shown, weight))
    model = new_model().train()
    sampled = [
        [lp for s in t.segments for lp, said in zip(s.logprobs, s.loss_mask, strict=True) if said] for t in acted
    ]
    returns = torch.tensor([sum(t.rewards) for t in acted], dtype=torch.float64)
    advantages = ((returns - returns.mean()) / (returns.std() + 1e-6)).tolist()
    losses: list[Tensor] = []
    for logps, before, advantage in zip(said_logps(model, acted), sampled, advantages, strict=True):
        ratios = [torch.exp(logp - old) for logp, old in zip(logps, before, strict=True)]
        losses += [-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) for ratio in ratios]
    nll = -torch.stack([logp for logps in said_logps(model, shown) for logp in logps]).mean()
    loss = torch.stack(losses).mean() + weight * nll
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-4)
    assert metrics["sft/nll"] == pytest.approx(nll.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_order_and_micro_batches_change_neither_metrics_nor_weights(new_model: Callable[..., Any]) -> None:
    acted, shown = some_trajectories(2, 4), some_trajectories(3, 5)
    algorithm = replace(GRPO, kl=KL("loss", "k3", 0.1))
    results: list[tuple[dict[str, float], Tensor]] = []
    for backwards, micro in ((1, 10_000), (-1, 40)):
        student = learner(new_model(), lr=1e-3, micro_tokens=micro, reference=True)
        places = [(i, 0) for i in range(5)][::backwards]
        lesson = beside(student, shown[::backwards], places=places)
        metrics = teach(student, acted, algorithm, auxiliary=lesson, epochs=2, minibatches=2)
        results.append(({n: v for n, v in metrics.items() if n not in ("fill", "padding")}, weights(student)))
    (metrics, moved), (other, others) = results
    assert other == pytest.approx(metrics, abs=1e-5, rel=1e-4)
    torch.testing.assert_close(others, moved, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shown", [5, 2])
def test_each_demonstration_is_in_one_minibatch_of_an_epoch(new_model: Callable[..., Any], shown: int) -> None:
    student, acted, demonstrations = learner(new_model()), some_trajectories(2, 6), some_trajectories(3, shown)
    targets: list[int] = []
    student.actor.register_forward_hook(lambda _, inputs, __: targets.extend(inputs[4].tolist()))
    teach(student, acted, PLAIN, auxiliary=beside(student, demonstrations), epochs=2, minibatches=3)
    said = [
        token
        for t in (*acted, *demonstrations)
        for s in t.segments
        for token, said in zip(s.ids, s.loss_mask, strict=True)
        if said
    ]
    assert sorted(targets) == sorted(said * 2)


def test_where_no_episode_trains_there_still_is_something_to_imitate(new_model: Callable[..., Any]) -> None:
    student, alone = learner(new_model(), lr=1e-3), learner(new_model(), lr=1e-3)
    metrics = teach(student, [], PLAIN, auxiliary=beside(student, some_trajectories(3, 5), weight=1.0))
    expected = teach(alone, some_trajectories(3, 5), Imitation())
    assert torch.equal(weights(student), weights(alone))
    assert (metrics["sft/nll"], metrics["loss"]) == (expected["nll"], expected["loss"])
    assert "nll" not in metrics
    assert "ratio" not in metrics


def test_the_term_counts_by_its_weight(new_model: Callable[..., Any]) -> None:
    seen: list[Tensor] = []
    for weight in (0.0, 1.0, 3.0):
        student = learner(new_model(), clip_norm=1e9)
        found = gradients(student)
        teach(student, some_trajectories(2, 4), PLAIN, auxiliary=beside(student, some_trajectories(3, 3), weight))
        seen += found
    once, thrice = seen[1] - seen[0], seen[2] - seen[0]
    assert once.norm() > 0.01
    torch.testing.assert_close(thrice, 3 * once, atol=1e-5, rtol=1e-4)


@settings(max_examples=40)
@given(items=st.integers(1, 9), cuts=st.lists(st.integers(0, 40), min_size=2, unique=True), seed=st.integers(0, 9))
def test_all_are_imitated_once_before_any_is_again_however_far_the_steps_go(
    items: int, cuts: list[int], seed: int
) -> None:
    cuts = sorted(cuts)
    whole = walk(items, start=cuts[0], count=cuts[-1] - cuts[0], seed=seed)
    assert whole == [i for a, b in pairwise(cuts) for i in walk(items, start=a, count=b - a, seed=seed)]
    laps = walk(items, start=0, count=3 * items, seed=seed)
    assert all(sorted(laps[lap * items : (lap + 1) * items]) == [*range(items)] for lap in range(3))


def test_of_what_is_too_long_the_turns_that_fit_are_imitated(chat: Chat) -> None:
    (shown,) = play_many(Bare(Coin()), Oracle(), [EpisodeSpec("coin/train/1", seed=0)])
    (whole,) = trajectory(encode(chat, shown)).segments
    ends = [i + 1 for i, token in enumerate(whole.ids) if token == chat.end_id and whole.loss_mask[i]]
    for longest, end in ((ends[-1], ends[-1]), (ends[-1] - 1, ends[-2]), (ends[0] - 1, 0)):
        some = Demonstrations([shown], chat, batch=2, longest=longest, seed=0, ranks=Ranks()).of_step(0)
        assert [place for place, _ in some] == [(0, 0), (1, 0)]
        assert [[segment.ids for segment in line.segments] for _, line in some] == [[whole.ids[:end]]] * 2
        trimming = Demonstrations([shown], chat, batch=2, longest=longest, seed=0, ranks=Ranks()).trimming()
        assert (trimming.contexts, trimming.dropped) == (1, end == 0)
        assert (trimming.said, trimming.lost) == (sum(whole.loss_mask), sum(whole.loss_mask[end:]))


def test_steps_go_on_where_the_last_one_ended(chat: Chat) -> None:
    shown = list(play_many(Bare(Coin()), Oracle(), [EpisodeSpec(f"coin/train/{i}", seed=0) for i in range(4)]))
    dealt = Demonstrations(shown, chat, batch=2, longest=999, seed=0, ranks=Ranks())
    assert {line.group for step in (0, 1) for _, line in dealt.of_step(step)} == {e.task_id for e in shown}


def test_the_seed_orders_what_is_imitated() -> None:
    one, other = (walk(50, start=0, count=50, seed=seed) for seed in (0, 1))
    assert one != other
    assert walk(50, start=50, count=50, seed=0) != one
