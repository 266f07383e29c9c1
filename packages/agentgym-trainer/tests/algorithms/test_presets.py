"""The presets against their papers: each formula written out from rewards to gradient, and a world that each learns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from agentgym_trainer.algorithms import PRESETS, Algorithm, MicroBatch, ModelOutputs, TokenBatch
from token_batches import alone
from torch import Tensor

pytestmark = pytest.mark.quick


@dataclass
class Played:
    """An episode of two turns, rewarded at its end; log-probabilities of its said tokens as scalars."""

    group: int
    reward: float
    tokens: tuple[int, int]
    """Said in the first and in the second turn."""
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


def some() -> list[Played]:
    """Two groups of four."""
    drawn = torch.Generator().manual_seed(7)

    def numbers(count: int, middle: float, width: float) -> list[float]:
        return (middle + width * torch.randn(count, generator=drawn, dtype=torch.float64)).float().tolist()

    def leaves(values: Sequence[float]) -> list[Tensor]:
        return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]

    made = []
    for e, reward in enumerate([1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 0.25, 0.0]):
        tokens = (1 + e % 3, 1 + e % 2)
        old, before = numbers(sum(tokens), -2, 0.5), numbers(sum(tokens), 0.4, 0.3)
        logp = [o + d for o, d in zip(old, numbers(sum(tokens), 0, 0.3), strict=True)]
        value = [b + d for b, d in zip(before, numbers(sum(tokens), 0, 0.3), strict=True)]
        reference = numbers(sum(tokens), -2, 0.5)
        made.append(Played(e // 4, reward, tokens, 1 + e % 2, leaves(logp), old, reference, leaves(value), before))
    return made


def groupwise(values: Sequence[float], groups: Sequence[object], how: Callable[[float, list[float]], float]) -> list:
    """How each value compares with all of its group, itself among them."""
    return [
        how(own, [v for v, g in zip(values, groups, strict=True) if g == group])
        for own, group in zip(values, groups, strict=True)
    ]


def standard(own: float, group: list[float]) -> float:
    spread = statistics.stdev(group) if len(group) > 1 else 0.0
    return (own - statistics.fmean(group)) / spread if spread else 0.0


def centred(own: float, group: list[float]) -> float:
    return own - statistics.fmean(group)


def left_out(own: float, group: list[float]) -> float:
    return own - (sum(group) - own) / (len(group) - 1)


def clipped(ratio: Tensor, advantage: float, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def mean(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).mean()


def by_episode(episodes: list[Played], how: Callable[[float, list[float]], float]) -> list[float]:
    return groupwise([e.reward for e in episodes], [e.group for e in episodes], how)


def surrogate(episodes: list[Played], advantages: Sequence[Sequence[float]], high: float = 0.2) -> Tensor:
    """PPO's over all tokens, each with its own advantage."""
    return -mean(
        [
            clipped(ratio, advantage, high=high)
            for e, own in zip(episodes, advantages, strict=True)
            for ratio, advantage in zip(e.ratios, own, strict=True)
        ]
    )


def spread_out(episodes: list[Played], advantages: Sequence[float]) -> list[list[float]]:
    return [[advantage] * len(e.old) for e, advantage in zip(episodes, advantages, strict=True)]


def penalties(episodes: list[Played], estimate: Callable[[Tensor], Tensor]) -> Tensor:
    """The estimated KL, given log p/q, over all tokens."""
    return mean([estimate(p - q) for e in episodes for p, q in zip(e.logp, e.reference, strict=True)])


def k3(apart: Tensor) -> Tensor:
    return torch.exp(-apart) - 1 + apart


def whitened(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    every = [value for row in rows for value in row]
    middle, spread = statistics.fmean(every), statistics.pstdev(every)
    return [[(value - middle) / spread for value in row] for row in rows]


def ppo(episodes: list[Played]) -> Tensor:
    advantages = whitened([[e.reward - v for v in e.before] for e in episodes])
    errors = []
    for e in episodes:
        for value, before in zip(e.value, e.before, strict=True):
            held = before + (value - before).clamp(-0.2, 0.2)
            errors.append(torch.maximum((value - e.reward) ** 2, (held - e.reward) ** 2))
    return surrogate(episodes, advantages) + 0.5 * mean(errors)


def grpo(episodes: list[Played]) -> Tensor:
    return surrogate(episodes, spread_out(episodes, by_episode(episodes, standard))) + 1e-3 * penalties(episodes, k3)


def dr_grpo(episodes: list[Played]) -> Tensor:
    sums = [
        torch.stack([clipped(ratio, advantage) for ratio in e.ratios]).sum()
        for e, advantage in zip(episodes, by_episode(episodes, centred), strict=True)
    ]
    return -mean(sums) / 1024


def dapo(episodes: list[Played]) -> Tensor:
    return surrogate(episodes, spread_out(episodes, by_episode(episodes, standard)), high=0.28)


def rloo(episodes: list[Played]) -> Tensor:
    paid = [e.reward - 1e-3 * sum(p - q for p, q in zip(e.old, e.reference, strict=True)) for e in episodes]
    return surrogate(episodes, spread_out(episodes, groupwise(paid, [e.group for e in episodes], left_out)))


def reinforce_pp(episodes: list[Played]) -> Tensor:
    to_go = []
    for e in episodes:
        apart = [p - q for p, q in zip(e.old, e.reference, strict=True)]
        to_go.append([e.reward - 1e-3 * sum(apart[t:]) for t in range(len(apart))])
    return surrogate(episodes, whitened(to_go))


def reinforce_pp_baseline(episodes: list[Played]) -> Tensor:
    advantages = whitened(spread_out(episodes, by_episode(episodes, centred)))
    return surrogate(episodes, advantages) + 1e-3 * penalties(episodes, lambda apart: apart**2 / 2)


def gspo(episodes: list[Played]) -> Tensor:
    gains = []
    for e, advantage in zip(episodes, by_episode(episodes, standard), strict=True):
        s = torch.exp(mean([logp - old for logp, old in zip(e.logp, e.old, strict=True)]))
        gains.append(clipped(s, advantage, 3e-4, 4e-4))
    return -mean(gains)


def cispo(episodes: list[Played]) -> Tensor:
    return -mean(
        [
            min(ratio.item(), 5.0) * advantage * logp
            for e, advantage in zip(episodes, by_episode(episodes, standard), strict=True)
            for ratio, logp in zip(e.ratios, e.logp, strict=True)
        ]
    )


def gigpo(episodes: list[Played]) -> Tensor:
    returns = [discounted for e in episodes for discounted in (0.95 * e.reward, e.reward)]
    states = [(e.group, state) for e in episodes for state in (0, e.second_state)]
    steps = groupwise(returns, states, standard)
    advantages = [
        [whole + steps[2 * n]] * e.tokens[0] + [whole + steps[2 * n + 1]] * e.tokens[1]
        for n, (e, whole) in enumerate(zip(episodes, by_episode(episodes, standard), strict=True))
    ]
    return surrogate(episodes, advantages) + 0.01 * penalties(episodes, k3)


PAPERS: dict[str, Callable[[list[Played]], Tensor]] = {
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
}


def seen(episodes: list[Played]) -> TokenBatch:
    def flat(name: str) -> Tensor:
        return torch.tensor([number for e in episodes for number in getattr(e, name)])

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


def the_loss(algorithm: Algorithm, experience: TokenBatch, scores: ModelOutputs) -> Tensor:
    """Of a whole batch in one part."""
    credit = algorithm.compute_advantages(experience, alone)
    chosen_N = experience.episode_N >= 0
    part = MicroBatch(
        experience.episode_N,
        experience.turn_N,
        experience.rollout_logprobs_N,
        experience.old_or_rollout_logprobs_N,
        credit.advantages_N,
        algorithm.weights(experience, chosen_N, alone),
        1 / chosen_N.sum(),
        experience.ref_logprobs_N,
        experience.values_N,
        credit.value_targets_N,
        algorithm.critic_weights(credit, chosen_N, alone),
    )
    return algorithm.loss(scores, part)[0]


@pytest.mark.parametrize("name", PRESETS)
def test_loss_and_gradients_are_the_papers_with_the_deviations_that_are_named(name: str) -> None:
    episodes = some()
    expected = PAPERS[name](episodes)
    expected.backward()
    gradients = [[0.0 if leaf.grad is None else leaf.grad.item() for e in episodes for leaf in e.logp]]
    gradients.append([0.0 if leaf.grad is None else leaf.grad.item() for e in episodes for leaf in e.value])
    logp_N = torch.tensor([logp.item() for e in episodes for logp in e.logp], dtype=torch.float64, requires_grad=True)
    value_N = torch.tensor([value.item() for e in episodes for value in e.value], dtype=torch.float64)
    scores = ModelOutputs(logp_N, torch.ones_like(value_N), value_N.requires_grad_())
    loss = the_loss(PRESETS[name], seen(episodes), scores)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)
    for leaf, own in zip((logp_N, value_N), gradients, strict=True):
        found = [0.0] * len(own) if leaf.grad is None else leaf.grad.tolist()
        assert found == pytest.approx(own, rel=1e-5, abs=1e-7)
        assert leaf is value_N or any(own)


def test_every_preset_has_a_formula_here_and_asks_for_what_it_needs() -> None:
    assert set(PAPERS) == set(PRESETS)
    assert {name for name, preset in PRESETS.items() if preset.needs_critic} == {"ppo"}
    no_kl = {"ppo", "dr-grpo", "dapo", "gspo", "cispo"}
    assert {name for name, preset in PRESETS.items() if not preset.needs_reference} == no_kl
    assert {name for name, preset in PRESETS.items() if preset.unit == "episode"} == {"gspo"}
    assert {name for name, p in PRESETS.items() if p.groups.zero_variance == "resample"} == {"dapo", "cispo"}
    everyone = {name for name, preset in PRESETS.items() if preset.groups.single == "keep"}
    assert everyone == {"ppo", "reinforce++"}
    kept = {name for name, preset in PRESETS.items() if preset.groups.zero_variance == "keep"}
    assert kept == {*everyone, "reinforce++-baseline", "gigpo"}
    assert not any(preset.needs_old_logprobs for preset in PRESETS.values())


LEARNERS = {
    **PRESETS,
    "ppo, turns": replace(PRESETS["ppo"], advantages=replace(PRESETS["ppo"].advantages, level="turn")),
    "grpo, turns": replace(
        PRESETS["grpo"], advantages=replace(PRESETS["grpo"].advantages, returns="turn"), ratio="turn"
    ),
}


def rollout(logits_SA: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, TokenBatch]:
    """Eight groups of eight episodes of two turns. The first turn's right action is 0 and leads to state 1, any other
    to state 2; action 1 is right in the second. Returns states N, actions N and the experience."""
    E = 64
    logp_SA = logits_SA.detach().log_softmax(1)

    def act(state_E: Tensor) -> Tensor:
        return torch.multinomial(logp_SA[state_E].exp(), 1, generator=random)[:, 0]

    first_E = act(torch.zeros(E, dtype=torch.long))
    second_E = act(state_E := 1 + (first_E != 0).long())
    state_EK, action_EK = torch.stack([torch.zeros_like(state_E), state_E], 1), torch.stack([first_E, second_E], 1)
    rewards_EK = torch.stack([0.25 * (first_E == 0), 0.75 * ((first_E == 0) & (second_E == 1))], 1)
    experience = TokenBatch(
        episode_N=torch.arange(E).repeat_interleave(2),
        turn_N=torch.arange(2).repeat(E),
        rollout_logprobs_N=logp_SA[state_EK, action_EK].flatten(),
        rewards_EK=rewards_EK,
        played_EK=torch.ones(E, 2, dtype=torch.bool),
        state_EK=state_EK,
        group_E=torch.arange(E) // 8,
        observation_EK=state_EK,
    )
    return state_EK.flatten(), action_EK.flatten(), experience


def those_that_train(algorithm: Algorithm, experience: TokenBatch) -> Tensor:
    """Episodes of groups that the loop would keep, E, bool."""
    returns_GE = experience.rewards_EK.sum(1).view(8, 8).tolist()
    treated = [algorithm.groups.classify(8, zero_variance=len(set(returns)) == 1)[1] for returns in returns_GE]
    return torch.tensor([treatment == "keep" for treatment in treated]).repeat_interleave(8)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_preset_learns_a_small_world(name: str) -> None:
    algorithm, random = LEARNERS[name], torch.Generator().manual_seed(3)
    logits_SA, value_S = torch.zeros(3, 4, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits_SA, value_S], lr=0.15)
    scores: list[float] = []
    for _ in range(32):
        state_N, action_N, experience = rollout(logits_SA, random)
        scores.append(experience.rewards_EK.sum().item() / 64)
        kept_E = those_that_train(algorithm, experience)
        if not kept_E.any():
            continue
        kept_N = kept_E[experience.episode_N]
        state_N, action_N = state_N[kept_N], action_N[kept_N]
        experience = TokenBatch(
            episode_N=torch.arange(int(kept_E.sum())).repeat_interleave(2),
            turn_N=experience.turn_N[kept_N],
            rollout_logprobs_N=experience.rollout_logprobs_N[kept_N],
            rewards_EK=experience.rewards_EK[kept_E],
            played_EK=experience.played_EK[kept_E],
            state_EK=experience.state_EK[kept_E],
            observation_EK=experience.state_EK[kept_E],
            group_E=experience.group_E[kept_E],
            ref_logprobs_N=torch.full((2 * int(kept_E.sum()),), 0.25).log(),
            values_N=value_S.detach()[state_N],
        )
        for _ in range(2):
            logp_NA = logits_SA.log_softmax(1)[state_N]
            logp_N = logp_NA.gather(1, action_N[:, None])[:, 0]
            loss = the_loss(
                algorithm, experience, ModelOutputs(logp_N, -(logp_NA.exp() * logp_NA).sum(1), value_S[state_N])
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert statistics.fmean(scores[:3]) < 0.3
    assert statistics.fmean(scores[-5:]) > 0.9
