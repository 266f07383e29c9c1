"""The losses of the presets as their papers have them, for two groups of four episodes of two turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
