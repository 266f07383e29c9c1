"""GRPO against a slow twin: the textbook in plain Python, token by token."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from agentgym_envs import Sample
from agentgym_trainer.algorithms import GRPO, Imitation
from agentgym_trainer.batch import make_batch
from agentgym_trainer.trajectory import trajectory
from hypothesis import given
from hypothesis import strategies as st
from miniature import episode
from torch import Tensor


def slow_advantages(returns: list[float], groups: list[int], *, scale: bool) -> list[float]:
    """(return - mean) / (std + 1e-6) within the group; 0 where the group teaches nothing."""
    result: list[float] = []
    for own, group in zip(returns, groups, strict=True):
        among = [r for r, g in zip(returns, groups, strict=True) if g == group]
        if len(among) < 2 or max(among) - min(among) == 0:
            result.append(0.0)
            continue
        centred = own - statistics.fmean(among)
        result.append(centred / (statistics.stdev(among) + 1e-6) if scale else centred)
    return result


@dataclass
class Token:
    episode: int
    said: bool
    logp: float
    sampled: float
    reference: float
    advantage: float


def slow_loss(tokens: list[Token], knobs: GRPO) -> float:
    """Equation 3, one token at a time."""
    said = [token for token in tokens if token.said]
    losses: dict[int, list[float]] = {}
    for token in said:
        ratio = math.exp(token.logp - token.sampled)
        clipped = min(max(ratio, 1 - knobs.clip_low), 1 + knobs.clip_high)
        loss = -min(ratio * token.advantage, clipped * token.advantage)
        apart = token.reference - token.logp
        loss += knobs.kl * (math.exp(apart) - apart - 1)
        losses.setdefault(token.episode, []).append(loss)
    if knobs.aggregation == "sequence":
        return statistics.fmean(statistics.fmean(of_one) for of_one in losses.values())
    return statistics.fmean(loss for of_one in losses.values() for loss in of_one)


numbers = st.integers(-16, 16).map(lambda n: n / 8)
knobs = st.builds(
    GRPO,
    clip_low=st.sampled_from([0.0, 0.1, 0.2]),
    clip_high=st.sampled_from([0.2, 0.28]),
    kl=st.sampled_from([0.0, 1e-3, 0.5]),
    aggregation=st.sampled_from(["token", "sequence"]),
)
tokens = st.builds(
    Token,
    episode=st.integers(0, 3),
    said=st.booleans(),
    logp=numbers.map(lambda n: n - 3),
    sampled=numbers.map(lambda n: n - 3),
    reference=numbers.map(lambda n: n - 3),
    advantage=numbers,
)


def _fast(rows: list[list[Token]], algorithm: GRPO) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Loss and metrics as the learner asks for them, in float64, and the log-probabilities to differentiate by."""

    def column(name: str, kind: Any = torch.float64) -> Tensor:
        return torch.tensor([[getattr(token, name) for token in row] for row in rows], dtype=kind)

    logp_BT = column("logp").requires_grad_()
    weight_BT = algorithm.weights(column("said", torch.bool), column("episode", torch.long)).double()
    reference = column("reference") if algorithm.kl else None
    loss, metrics = algorithm.loss(
        logp_BT, column("sampled"), reference, column("advantage"), weight_BT / weight_BT.sum()
    )
    return loss, metrics, logp_BT


@st.composite
def grids(draw: st.DrawFn) -> list[list[Token]]:
    width, height = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rows = [[draw(tokens) for _ in range(width)] for _ in range(height)]
    rows[0][0].said = True
    return rows


@given(grids(), knobs)
def test_the_loss_is_the_slow_twins(rows: list[list[Token]], algorithm: GRPO) -> None:
    loss, metrics, _ = _fast(rows, algorithm)
    every = [token for row in rows for token in row]
    assert loss.item() == pytest.approx(slow_loss(every, algorithm), abs=1e-6)
    assert ("kl_reference" in metrics) == bool(algorithm.kl)


@given(grids(), knobs)
def test_the_gradient_is_the_textbooks(rows: list[list[Token]], algorithm: GRPO) -> None:
    loss, _, logp_BT = _fast(rows, algorithm)
    loss.backward()
    leaves = [[torch.tensor(t.logp, dtype=torch.float64, requires_grad=True) for t in row] for row in rows]
    said: dict[int, list[Tensor]] = {}
    for row, logps in zip(rows, leaves, strict=True):
        for token, logp in zip(row, logps, strict=True):
            if token.said:
                ratio = torch.exp(logp - token.sampled)
                bound = torch.clamp(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
                gain = torch.minimum(ratio * token.advantage, bound * token.advantage)
                apart = token.reference - logp
                said.setdefault(token.episode, []).append(algorithm.kl * (apart.exp() - apart - 1) - gain)
    if algorithm.aggregation == "sequence":
        expected = torch.stack([torch.stack(of_one).mean() for of_one in said.values()]).mean()
    else:
        expected = torch.stack([loss for of_one in said.values() for loss in of_one]).mean()
    expected.backward()
    assert logp_BT.grad is not None
    for b, logps in enumerate(leaves):
        for t, leaf in enumerate(logps):
            assert logp_BT.grad[b, t].item() == pytest.approx(0.0 if leaf.grad is None else leaf.grad.item(), abs=1e-6)


@given(grids(), knobs)
def test_tokens_that_were_not_said_change_nothing(rows: list[list[Token]], algorithm: GRPO) -> None:
    before, _, _ = _fast(rows, algorithm)
    for row in rows:
        for token in row:
            if not token.said:
                token.logp, token.sampled, token.reference, token.advantage = 900.0, -900.0, 50.0, 1e9
    after, metrics, logp_BT = _fast(rows, algorithm)
    after.backward()
    assert before.item() == after.item()
    assert logp_BT.grad is not None
    assert logp_BT.grad.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


@st.composite
def played(draw: st.DrawFn, *, values: Any = numbers) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards EK, played EK and group E of a few episodes."""
    episodes, turns = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    lengths = torch.tensor([draw(st.integers(1, turns)) for _ in range(episodes)])
    played_EK = torch.arange(turns) < lengths[:, None]
    rewards_EK = torch.tensor([[draw(values) for _ in range(turns)] for _ in range(episodes)]) * played_EK
    return rewards_EK, played_EK, torch.tensor([draw(st.integers(0, 2)) for _ in range(episodes)])


@given(played(), st.booleans())
def test_advantages_are_the_slow_twins_on_every_turn_that_was_played(
    batch: tuple[Tensor, Tensor, Tensor], scale: bool
) -> None:
    rewards_EK, played_EK, group_E = batch
    returns = rewards_EK.double().sum(1).tolist()
    expected = slow_advantages(returns, group_E.tolist(), scale=scale)
    credit = GRPO(scale_by_std=scale).credit(*batch)
    for e, row in enumerate(credit.advantage_EK.tolist()):
        for k, found in enumerate(row):
            assert found == pytest.approx(expected[e] if played_EK[e, k] else 0.0, abs=1e-6, rel=1e-6)


@given(played(), st.sampled_from([-3.0, 0.5, 100.0]))
def test_the_same_bonus_for_a_whole_group_changes_nothing(batch: tuple[Tensor, Tensor, Tensor], bonus: float) -> None:
    rewards_EK, played_EK, group_E = batch
    before = GRPO().credit(*batch)
    richer_EK = rewards_EK.clone()
    richer_EK[:, 0] += bonus * (group_E + 1)
    after = GRPO().credit(richer_EK, played_EK, group_E)
    torch.testing.assert_close(before.advantage_EK, after.advantage_EK, atol=1e-4, rtol=0)
    assert torch.equal(before.trains_E, after.trains_E)


@given(played(), st.randoms(use_true_random=False))
def test_the_order_of_episodes_changes_nothing(batch: tuple[Tensor, Tensor, Tensor], random: Any) -> None:
    order = list(range(len(batch[2])))
    random.shuffle(order)
    plain, shuffled = GRPO().credit(*batch), GRPO().credit(*(tensor[order] for tensor in batch))
    torch.testing.assert_close(plain.advantage_EK[order], shuffled.advantage_EK, atol=1e-6, rtol=0)
    assert torch.equal(plain.trains_E[order], shuffled.trains_E)
    assert (plain.lonely, plain.flat) == (shuffled.lonely, shuffled.flat)


@given(played(values=st.sampled_from([0.0, 1.0, 0.1])))
def test_groups_that_teach_nothing_are_counted_and_left_out(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards_EK, _, group_E = batch
    returns: dict[int, list[float]] = {}
    for group, reward in zip(group_E.tolist(), rewards_EK.double().sum(1).tolist(), strict=True):
        returns.setdefault(group, []).append(round(reward, 9))
    lonely = {group for group, among in returns.items() if len(among) == 1}
    flat = {group for group, among in returns.items() if len(among) > 1 and len(set(among)) == 1}
    drop, keep = GRPO().credit(*batch), GRPO(flat_groups="keep").credit(*batch)
    for credit in (drop, keep):
        assert (credit.lonely, credit.flat) == (len(lonely), len(flat))
    assert drop.trains_E.tolist() == [group not in lonely | flat for group in group_E.tolist()]
    assert keep.trains_E.all()
    assert torch.equal(drop.advantage_EK, keep.advantage_EK)
    assert not keep.advantage_EK[~drop.trains_E].any()


def test_a_terminal_reward_reaches_the_last_said_token_though_the_episode_ends_in_an_observation() -> None:
    def two_turns(reward: float) -> Any:
        samples = [Sample((1, 2), (3, 4), (-1.0,) * 2), Sample((5, 6, 7), (8, 9), (-1.0,) * 2, fresh=False)]
        return trajectory(episode(samples, [0.0, reward]))

    for layout in ("pad", "pack"):
        batch = make_batch([two_turns(1.0), two_turns(0.0)], pad_id=0, layout=layout)
        credit = GRPO().credit(batch.rewards_EK, batch.played_EK, batch.group_E)
        advantage_BT = batch.per_token(credit.advantage_EK)
        won = batch.said_BT & (batch.episode_BT == 0)
        assert won.sum() == 4
        torch.testing.assert_close(advantage_BT[won], torch.full((4,), 0.5**0.5), atol=1e-4, rtol=0)
        assert (advantage_BT[batch.said_BT & (batch.episode_BT == 1)] < 0).all()
        assert not advantage_BT[~batch.said_BT].any()
        last = batch.ids_BT == 9
        assert advantage_BT[last].abs().min() > 0.7


@given(played(), st.floats(-5, 5, width=32))
def test_what_stands_at_tokens_that_were_not_said_or_turns_that_were_not_played_reaches_no_token(
    batch: tuple[Tensor, Tensor, Tensor], noise: float
) -> None:
    rewards_EK, played_EK, _ = batch
    credit = GRPO().credit(*batch)
    assert not credit.advantage_EK[~played_EK].any()
    trajectories = [
        trajectory(
            episode(
                [Sample((1, 2), (3,), (-1.0,), fresh=k == 0) for k in range(int(turns.sum()))],
                rewards_EK[e, : int(turns.sum())].tolist(),
            )
        )
        for e, turns in enumerate(played_EK)
    ]
    tensors = make_batch(trajectories, pad_id=0)
    K = tensors.rewards_EK.shape[1]
    noisy_EK = torch.where(played_EK, credit.advantage_EK, torch.full_like(credit.advantage_EK, noise))
    assert torch.equal(tensors.per_token(credit.advantage_EK[:, :K]), tensors.per_token(noisy_EK[:, :K]))


def test_imitation_is_the_mean_negative_log_likelihood_of_what_was_said() -> None:
    said_BT = torch.tensor([[False, True, True], [False, False, True]])
    logp_BT = torch.tensor([[-9.0, -1.0, -2.0], [-9.0, -9.0, -6.0]], requires_grad=True)
    weight_BT = Imitation().weights(said_BT, torch.zeros(2, 3, dtype=torch.long))
    loss, metrics = Imitation().loss(logp_BT, torch.zeros(2, 3), None, torch.zeros(2, 3), weight_BT / weight_BT.sum())
    assert loss.item() == metrics["nll"].item() == 3.0
    loss.backward()
    assert logp_BT.grad is not None
    assert (logp_BT.grad == -said_BT.float() / 3).all()
