"""Tests of the presets: the loss and gradients of each against the formula of its paper, and that each learns a small
environment."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from agentgym_trainer.algorithms import PRESETS, Algorithm, MicroBatch, ModelOutputs, TokenBatch
from token_batches import single_process_total
from torch import Tensor

pytestmark = pytest.mark.quick


@dataclass
class TwoTurnEpisode:
    """An episode of two turns with a reward at its end; log-probabilities of its completion tokens are scalars."""

    group: int
    reward: float
    tokens: tuple[int, int]
    """Numbers of completion tokens in the first and in the second turn."""
    second_state: int
    """The state that the second turn begins in; the first begins in state 0."""
    logp: list[Tensor]
    old: list[float]
    reference: list[float]
    value: list[Tensor]
    before: list[float]

    @property
    def ratios(self) -> list[Tensor]:
        return [torch.exp(logp - old) for logp, old in zip(self.logp, self.old, strict=True)]


def two_groups() -> list[TwoTurnEpisode]:
    """Return two groups of four episodes."""
    generator = torch.Generator().manual_seed(7)

    def numbers(count: int, center: float, std: float) -> list[float]:
        return (center + std * torch.randn(count, generator=generator, dtype=torch.float64)).float().tolist()

    def leaves(values: Sequence[float]) -> list[Tensor]:
        return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]

    episodes = []
    for e, reward in enumerate([1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 0.25, 0.0]):
        tokens = (1 + e % 3, 1 + e % 2)
        old, before = numbers(sum(tokens), -2, 0.5), numbers(sum(tokens), 0.4, 0.3)
        logp = [o + d for o, d in zip(old, numbers(sum(tokens), 0, 0.3), strict=True)]
        value = [b + d for b, d in zip(before, numbers(sum(tokens), 0, 0.3), strict=True)]
        reference = numbers(sum(tokens), -2, 0.5)
        episodes.append(
            TwoTurnEpisode(e // 4, reward, tokens, 1 + e % 2, leaves(logp), old, reference, leaves(value), before)
        )
    return episodes


def groupwise(
    values: Sequence[float], groups: Sequence[object], relative: Callable[[float, list[float]], float]
) -> list:
    """Return `relative(value, values of its group)` for each value; its group includes the value itself."""
    return [
        relative(value, [v for v, g in zip(values, groups, strict=True) if g == group])
        for value, group in zip(values, groups, strict=True)
    ]


def standardized(value: float, group: list[float]) -> float:
    std = statistics.stdev(group) if len(group) > 1 else 0.0
    return (value - statistics.fmean(group)) / std if std else 0.0


def centred(value: float, group: list[float]) -> float:
    return value - statistics.fmean(group)


def leave_one_out(value: float, group: list[float]) -> float:
    return value - (sum(group) - value) / (len(group) - 1)


def clipped(ratio: Tensor, advantage: float, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def mean(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).mean()


def by_episode(episodes: list[TwoTurnEpisode], relative: Callable[[float, list[float]], float]) -> list[float]:
    return groupwise([e.reward for e in episodes], [e.group for e in episodes], relative)


def surrogate(episodes: list[TwoTurnEpisode], advantages: Sequence[Sequence[float]], high: float = 0.2) -> Tensor:
    """Return PPO's surrogate loss, the mean over all tokens with per-token advantages."""
    return -mean(
        [
            clipped(ratio, advantage, high=high)
            for e, episode_advantages in zip(episodes, advantages, strict=True)
            for ratio, advantage in zip(e.ratios, episode_advantages, strict=True)
        ]
    )


def per_token(episodes: list[TwoTurnEpisode], advantages: Sequence[float]) -> list[list[float]]:
    return [[advantage] * len(e.old) for e, advantage in zip(episodes, advantages, strict=True)]


def kl_penalty(episodes: list[TwoTurnEpisode], estimator: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the estimated KL as a mean over all tokens; `estimator` takes log(p/q)."""
    return mean([estimator(p - q) for e in episodes for p, q in zip(e.logp, e.reference, strict=True)])


def k3(log_ratio: Tensor) -> Tensor:
    return torch.exp(-log_ratio) - 1 + log_ratio


def whitened(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    values = [value for row in rows for value in row]
    mean_value, std = statistics.fmean(values), statistics.pstdev(values)
    return [[(value - mean_value) / std for value in row] for row in rows]


def ppo(episodes: list[TwoTurnEpisode]) -> Tensor:
    advantages = whitened([[e.reward - v for v in e.before] for e in episodes])
    errors = []
    for e in episodes:
        for value, before in zip(e.value, e.before, strict=True):
            clipped_value = before + (value - before).clamp(-0.2, 0.2)
            errors.append(torch.maximum((value - e.reward) ** 2, (clipped_value - e.reward) ** 2))
    return surrogate(episodes, advantages) + 0.5 * mean(errors)


def grpo(episodes: list[TwoTurnEpisode]) -> Tensor:
    return surrogate(episodes, per_token(episodes, by_episode(episodes, standardized))) + 1e-3 * kl_penalty(
        episodes, k3
    )


def dr_grpo(episodes: list[TwoTurnEpisode]) -> Tensor:
    sums = [
        torch.stack([clipped(ratio, advantage) for ratio in e.ratios]).sum()
        for e, advantage in zip(episodes, by_episode(episodes, centred), strict=True)
    ]
    return -mean(sums) / 1024


def dapo(episodes: list[TwoTurnEpisode]) -> Tensor:
    return surrogate(episodes, per_token(episodes, by_episode(episodes, standardized)), high=0.28)


def rloo(episodes: list[TwoTurnEpisode]) -> Tensor:
    penalized_returns = [
        e.reward - 1e-3 * sum(p - q for p, q in zip(e.old, e.reference, strict=True)) for e in episodes
    ]
    return surrogate(
        episodes, per_token(episodes, groupwise(penalized_returns, [e.group for e in episodes], leave_one_out))
    )


def reinforce_pp(episodes: list[TwoTurnEpisode]) -> Tensor:
    returns_to_go = []
    for e in episodes:
        log_ratios = [p - q for p, q in zip(e.old, e.reference, strict=True)]
        returns_to_go.append([e.reward - 1e-3 * sum(log_ratios[t:]) for t in range(len(log_ratios))])
    return surrogate(episodes, whitened(returns_to_go))


def reinforce_pp_baseline(episodes: list[TwoTurnEpisode]) -> Tensor:
    advantages = whitened(per_token(episodes, by_episode(episodes, centred)))
    return surrogate(episodes, advantages) + 1e-3 * kl_penalty(episodes, lambda log_ratio: log_ratio**2 / 2)


def gspo(episodes: list[TwoTurnEpisode]) -> Tensor:
    gains = []
    for e, advantage in zip(episodes, by_episode(episodes, standardized), strict=True):
        ratio = torch.exp(mean([logp - old for logp, old in zip(e.logp, e.old, strict=True)]))
        gains.append(clipped(ratio, advantage, 3e-4, 4e-4))
    return -mean(gains)


def cispo(episodes: list[TwoTurnEpisode]) -> Tensor:
    return -mean(
        [
            min(ratio.item(), 5.0) * advantage * logp
            for e, advantage in zip(episodes, by_episode(episodes, standardized), strict=True)
            for ratio, logp in zip(e.ratios, e.logp, strict=True)
        ]
    )


def per_turn(episodes: list[TwoTurnEpisode], advantages: Sequence[float], episode_weight: float) -> list[list[float]]:
    """Return per-token advantages from those of first and second turns, and `episode_weight` times the episodes'."""
    return [
        [episode_weight * whole + first] * e.tokens[0] + [episode_weight * whole + second] * e.tokens[1]
        for e, whole, first, second in zip(
            episodes, by_episode(episodes, standardized), advantages[::2], advantages[1::2], strict=True
        )
    ]


def by_state(episodes: list[TwoTurnEpisode], values: Sequence[float]) -> list[float]:
    """Standardize the values of first and second turns within the states that they begin in."""
    return groupwise(values, [(e.group, state) for e in episodes for state in (0, e.second_state)], standardized)


def gigpo(episodes: list[TwoTurnEpisode]) -> Tensor:
    step_advantages = by_state(episodes, [value for e in episodes for value in (0.95 * e.reward, e.reward)])
    return surrogate(episodes, per_turn(episodes, step_advantages, 1)) + 0.01 * kl_penalty(episodes, k3)


def hgpo(episodes: list[TwoTurnEpisode]) -> Tensor:
    """All second turns have the same history, so both levels have the same groups."""
    step_advantages = by_state(episodes, [value for e in episodes for value in (0.95 * e.reward, e.reward)])
    return surrogate(episodes, per_turn(episodes, step_advantages, 0)) + 0.01 * kl_penalty(episodes, k3)


def graphgpo(episodes: list[TwoTurnEpisode]) -> Tensor:
    """In both groups an episode succeeds, so that the first state is 2 turns from the goal and nowhere is at 3."""
    solved = {(e.group, e.second_state) for e in episodes if e.reward >= 1}
    distances = [
        distance
        for e in episodes
        for distance in (1 if (e.group, e.second_state) in solved else 3, 0 if e.reward >= 1 else 3)
    ]
    step_advantages = by_state(episodes, [0.1 ** (distance + 1) for distance in distances])
    return surrogate(episodes, per_turn(episodes, step_advantages, 1)) + 0.01 * kl_penalty(episodes, k3)


PAPERS: dict[str, Callable[[list[TwoTurnEpisode]], Tensor]] = {
    "ppo": ppo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "dapo": dapo,
    "rloo": rloo,
    "reinforce++": reinforce_pp,
    "reinforce++-baseline": reinforce_pp_baseline,
    "gspo": gspo,
    "cispo": cispo,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "graphgpo": graphgpo,
}


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
    assert not any(preset.needs_old_logprobs for preset in PRESETS.values())


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
