"""Tests of the presets: the loss and gradients of each against the formula of its paper, and that each learns a small
environment."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from agentgym_trainer.algorithms import PRESETS, Algorithm, MicroBatch, ModelOutputs, TokenBatch
from preset_formulas import PAPERS, TwoTurnEpisode, two_groups
from token_batches import single_process_total
from torch import Tensor

pytestmark = pytest.mark.quick


def token_batch(episodes: list[TwoTurnEpisode]) -> TokenBatch:
    def flat(name: str) -> Tensor:
        return torch.tensor([value for e in episodes for value in getattr(e, name)])

    return TokenBatch(
        episode_N=torch.tensor([n for n, e in enumerate(episodes) for _ in e.old]),
        turn_N=torch.tensor([turn for e in episodes for turn in (0, 1) for _ in range(e.tokens[turn])]),
        rollout_logprobs_N=flat("old"),
        rewards_EK=torch.tensor([[0.0, e.reward] for e in episodes]),
        played_EK=torch.ones(len(episodes), 2, dtype=torch.bool),
        state_EK=torch.arange(2 * len(episodes)).view(-1, 2),
        observation_EK=torch.tensor([[0, e.second_state] for e in episodes]),
        group_E=torch.tensor([e.group for e in episodes]),
        ref_logprobs_N=flat("reference"),
        values_N=flat("before"),
    )


def compute_loss(algorithm: Algorithm, token_batch: TokenBatch, outputs: ModelOutputs) -> Tensor:
    """Return the loss of a whole batch as one micro-batch."""
    advantages = algorithm.compute_advantages(token_batch, single_process_total)
    mask_N = token_batch.episode_N >= 0
    micro_batch = MicroBatch(
        token_batch.episode_N,
        token_batch.turn_N,
        token_batch.rollout_logprobs_N,
        token_batch.old_or_rollout_logprobs_N,
        advantages.advantages_N,
        algorithm.weights(token_batch, mask_N, single_process_total),
        1 / mask_N.sum(),
        token_batch.ref_logprobs_N,
        token_batch.values_N,
        advantages.value_targets_N,
        algorithm.critic_weights(advantages, mask_N, single_process_total),
    )
    return algorithm.loss(outputs, micro_batch)[0]


@pytest.mark.parametrize("name", PRESETS)
def test_loss_and_gradients_match_the_formula_of_the_paper(name: str) -> None:
    episodes = two_groups()
    expected = PAPERS[name](episodes)
    expected.backward()
    gradients = [[0.0 if leaf.grad is None else leaf.grad.item() for e in episodes for leaf in e.logp]]
    gradients.append([0.0 if leaf.grad is None else leaf.grad.item() for e in episodes for leaf in e.value])
    logp_N = torch.tensor([logp.item() for e in episodes for logp in e.logp], dtype=torch.float64, requires_grad=True)
    value_N = torch.tensor([value.item() for e in episodes for value in e.value], dtype=torch.float64)
    outputs = ModelOutputs(logp_N, torch.ones_like(value_N), value_N.requires_grad_())
    loss = compute_loss(PRESETS[name], token_batch(episodes), outputs)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)
    for leaf, expected_gradient in zip((logp_N, value_N), gradients, strict=True):
        found = [0.0] * len(expected_gradient) if leaf.grad is None else leaf.grad.tolist()
        assert found == pytest.approx(expected_gradient, rel=1e-5, abs=1e-7)
        assert leaf is value_N or any(expected_gradient)


def test_every_preset_has_a_formula_and_the_expected_properties() -> None:
    assert set(PAPERS) == set(PRESETS)
    assert {name for name, preset in PRESETS.items() if preset.needs_critic} == {"ppo"}
    no_kl = {"ppo", "dr-grpo", "dapo", "gspo", "cispo"}
    assert {name for name, preset in PRESETS.items() if not preset.needs_reference} == no_kl
    assert {name for name, preset in PRESETS.items() if preset.unit == "episode"} == {"gspo"}
    assert {name for name, p in PRESETS.items() if p.groups.zero_variance == "resample"} == {"dapo", "cispo"}
    keep_singles = {name for name, preset in PRESETS.items() if preset.groups.single == "keep"}
    assert keep_singles == {"ppo", "reinforce++"}
    keep_flat = {name for name, preset in PRESETS.items() if preset.groups.zero_variance == "keep"}
    assert keep_flat == {*keep_singles, "reinforce++-baseline", "gigpo", "hgpo", "graphgpo"}
    assert {name for name, preset in PRESETS.items() if preset.needs_old_logprobs} == {"gspo"}


LEARNERS = {
    **PRESETS,
    "ppo, turns": replace(PRESETS["ppo"], advantages=replace(PRESETS["ppo"].advantages, level="turn")),
    "grpo, turns": replace(
        PRESETS["grpo"], advantages=replace(PRESETS["grpo"].advantages, returns="turn"), ratio="turn"
    ),
}


def rollout(logits_SA: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, TokenBatch]:
    """Sample eight groups of eight episodes of two turns.

    In the first turn action 0 is right and leads to state 1, any other action to state 2. In the second turn action 1
    is right. Returns states N, actions N and the token batch.
    """
    E = 64
    logp_SA = logits_SA.detach().log_softmax(1)

    def act(state_E: Tensor) -> Tensor:
        return torch.multinomial(logp_SA[state_E].exp(), 1, generator=random)[:, 0]

    first_E = act(torch.zeros(E, dtype=torch.long))
    second_E = act(state_E := 1 + (first_E != 0).long())
    state_EK, action_EK = torch.stack([torch.zeros_like(state_E), state_E], 1), torch.stack([first_E, second_E], 1)
    rewards_EK = torch.stack([0.25 * (first_E == 0), 0.75 * ((first_E == 0) & (second_E == 1))], 1)
    token_batch = TokenBatch(
        episode_N=torch.arange(E).repeat_interleave(2),
        turn_N=torch.arange(2).repeat(E),
        rollout_logprobs_N=logp_SA[state_EK, action_EK].flatten(),
        rewards_EK=rewards_EK,
        played_EK=torch.ones(E, 2, dtype=torch.bool),
        state_EK=state_EK,
        group_E=torch.arange(E) // 8,
        observation_EK=state_EK,
    )
    return state_EK.flatten(), action_EK.flatten(), token_batch


def trained_episodes(algorithm: Algorithm, token_batch: TokenBatch) -> Tensor:
    """Return the episodes of groups that the training loop would keep, E, bool."""
    returns_GE = token_batch.rewards_EK.sum(1).view(8, 8).tolist()
    treatments = [algorithm.groups.classify(8, zero_variance=len(set(returns)) == 1)[1] for returns in returns_GE]
    return torch.tensor([treatment == "keep" for treatment in treatments]).repeat_interleave(8)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_preset_learns_a_small_environment(name: str) -> None:
    algorithm, random = LEARNERS[name], torch.Generator().manual_seed(3)
    logits_SA, value_S = torch.zeros(3, 4, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits_SA, value_S], lr=0.15)
    scores: list[float] = []
    for _ in range(32):
        state_N, action_N, token_batch = rollout(logits_SA, random)
        scores.append(token_batch.rewards_EK.sum().item() / 64)
        kept_E = trained_episodes(algorithm, token_batch)
        if not kept_E.any():
            continue
        kept_N = kept_E[token_batch.episode_N]
        state_N, action_N = state_N[kept_N], action_N[kept_N]
        token_batch = TokenBatch(
            episode_N=torch.arange(int(kept_E.sum())).repeat_interleave(2),
            turn_N=token_batch.turn_N[kept_N],
            rollout_logprobs_N=token_batch.rollout_logprobs_N[kept_N],
            rewards_EK=token_batch.rewards_EK[kept_E],
            played_EK=token_batch.played_EK[kept_E],
            state_EK=token_batch.state_EK[kept_E],
            observation_EK=token_batch.state_EK[kept_E],
            group_E=token_batch.group_E[kept_E],
            ref_logprobs_N=torch.full((2 * int(kept_E.sum()),), 0.25).log(),
            values_N=value_S.detach()[state_N],
        )
        for _ in range(2):
            logp_NA = logits_SA.log_softmax(1)[state_N]
            logp_N = logp_NA.gather(1, action_N[:, None])[:, 0]
            loss = compute_loss(
                algorithm, token_batch, ModelOutputs(logp_N, -(logp_NA.exp() * logp_NA).sum(1), value_S[state_N])
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert statistics.fmean(scores[:3]) < 0.3
    assert statistics.fmean(scores[-5:]) > 0.9
