"""Published algorithms by name: instances of `Algorithm`, each with its paper and the deviations from it.

Deviations of all presets:

- Means over tokens or episodes are taken over the whole batch of an optimizer step on all processes, where some papers
  take one per group.
- Ratios, means and penalties include completion tokens only, never observation tokens.
- KL weights are AgentGym-RL's 1e-3 (arXiv 2509.08755) unless stated otherwise, since returns are in [0, 1] here.
- k3 isn't clamped, as in TRL and in the papers; verl, SkyRL and AgentGym-RL clamp it at 10 (`kl.clamp`).
- Algorithms that compare within groups drop groups without a signal, where the papers keep them with advantage 0; so
  means are taken over the remaining groups.
- When groups are dropped, fewer optimizer steps are taken, each with about as many completion tokens as those of a full
  batch (the run's `scale_minibatches`); the papers fix the number of episodes in a step.
- Old log-probabilities are the engine's; the learner's own are used only when `correction` is on.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.graphgpo import GoalDistance
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.hgpo import NestedStepGroups
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.algorithm import Algorithm
from agentgym_trainer.algorithms.group_filter import GroupFilter
from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.loss.clip import Clip
from agentgym_trainer.algorithms.loss.correction import Correction
from agentgym_trainer.algorithms.loss.critic import Critic
from agentgym_trainer.algorithms.loss.kl import KL

_EVERY_GROUP = GroupFilter(single="keep", zero_variance="keep")
"""For algorithms that don't compare within groups."""

PPO = Algorithm(
    advantages=GAE(level="token", gamma=1.0, lam=1.0, whiten=True),
    critic=Critic(weight=0.5, clip=0.2),
    groups=_EVERY_GROUP,
)
"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347, eqs. 7 and 9) with GAE advantages (arXiv
1506.02438, eq. 16).

Deviations: gamma = lambda = 1 as in AgentGym-RL (the paper: 0.99 and 0.95), since a final reward is hundreds of tokens
away; advantages are whitened and values clipped, as in OpenAI Baselines; no entropy bonus.
"""

GRPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    kl=KL(where="loss", estimator="k3"),
)
"""Group-relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eqs. 3 and 4, section 4.1.2).

Deviations: the loss is the mean over all completion tokens and not the mean of per-episode means (`aggregation.kind
"sequence"` gives the paper's); the KL weight is 1e-3 (the paper: 0.04).

Length bias: a group's mean return counts each episode once, but the mean over tokens counts it once per token. Where
failed episodes are longer than successful ones, the mean advantage of a token (`advantage/mean_token` in the metrics)
is below 0, and further below the longer the horizon. `advantages.baseline "length"`, `advantages.whiten` and the
paper's `aggregation.kind "sequence"` make it 0 over the update. Dr. GRPO, DAPO, RLOO and CISPO have the same bias, and
GiGPO has it at both of its levels.
"""

DrGRPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="none"),
    aggregation=Aggregation(kind="fixed", length=1024),
)
"""GRPO done right (Liu et al. 2025, arXiv 2503.20783, section 3.2): no division by the standard deviation or by the
episode's length. No KL, as in the paper.

Deviations: sums are divided by a constant of 1,024 completion tokens (the paper: the longest reply allowed).
"""

DAPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    clip=Clip(kind="ppo", low=0.2, high=0.28),
    aggregation=Aggregation(kind="token"),
    groups=GroupFilter(zero_variance="resample"),
)
"""Decoupled clip and dynamic sampling (Yu et al. 2025, arXiv 2503.14476, eqs. 8 to 12). No KL, as in the paper.

Deviations: zero-variance groups are resampled for at most `groups.rounds` rounds; no penalty for overlong replies
(eq. 13): an episode that ends at the token budget is marked `length`, and a setting of the run decides whether it
trains.
"""

RLOO = Algorithm(
    advantages=GroupRelative(baseline="leave_one_out", scale="none"),
    kl=KL(where="reward", estimator="k1"),
)
"""REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740, eq. 8; Kool et al. 2019), KL in the
reward.

Deviations: PPO's clipped ratio replaces the log-probability of the paper, which takes one update per batch; at the
first update both have the same gradient. The loss is a mean over tokens, where the paper sums over an episode's tokens.
"""

ReinforcePP = Algorithm(
    advantages=TokenReturns(gamma=1.0, baseline=False),
    kl=KL(where="reward", estimator="k1"),
    groups=_EVERY_GROUP,
)
"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): PPO's clip without its critic; per-token returns-to-go, with the KL
penalty in the token's reward, normalized over the whole batch.

Deviations: rewards within an episode are assigned to their own turns (the paper: one reward at the end).
"""

ReinforcePPBaseline = Algorithm(
    advantages=TokenReturns(gamma=1.0, baseline=True),
    kl=KL(where="loss", estimator="k2"),
    groups=GroupFilter(zero_variance="keep"),
)
"""REINFORCE++ with baseline (same paper): the group's mean return is subtracted before returns are normalized over the
whole batch; KL is a term of the loss (k2).

Deviations: only those of all presets. Zero-variance groups are kept, as in the paper, since they count in the standard
deviation of the batch.
"""

GSPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    ratio="sequence",
    clip=Clip(kind="ppo", low=3e-4, high=4e-4),
    aggregation=Aggregation(kind="sequence"),
    correction=Correction(level="token"),
)
"""Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071, eqs. 5 to 7; the clip of section 5.1). No
KL, as in the paper.

Deviations: the sequence is the whole episode, so the ratio is the geometric mean over the completion tokens of all
turns; the gradient is that of GSPO-token (eq. 14), which is the same if all tokens of an episode have one advantage.
Ratios are to the learner's own log-probabilities before the update: those of an engine in bfloat16 differ by more than
so narrow a clip. The difference to the engine is corrected by truncated importance weights.
"""

CISPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    clip=Clip(kind="cispo", low=1.0, high=4.0),
    aggregation=Aggregation(kind="token"),
    groups=GroupFilter(zero_variance="resample"),
)
"""REINFORCE with clipped importance weights (MiniMax-M1, arXiv 2506.13585, eqs. 4 and 5). No KL and no lower bound, as
in the paper (low = 1 is a bound of 0), and DAPO's dynamic sampling.

Deviations: the upper bound on weights is 5, which the paper doesn't specify (ScaleRL, arXiv 2510.13786, found no
difference from 4 to 8); no penalty for overlong replies.
"""

GiGPO = Algorithm(
    advantages=StepGroups(step_weight=1.0, gamma=0.95),
    kl=KL(where="loss", estimator="k3", weight=0.01),
    groups=GroupFilter(zero_variance="keep"),
)
"""Group-in-group policy optimization (Feng et al. 2025, arXiv 2505.10978, section 4): A = A_episode + omega A_step,
where A_step compares turns of the group that reply to the same observation. Omega, discount and KL weight are the
authors'. Groups of equal returns are kept, since the discounted returns of their turns may still differ.

Deviations: ratios and means are over tokens and not over whole actions (`ratio "turn"` is closer); invalid actions are
not penalized; observations are compared as whole texts, and plans, reflections and summaries only with their own kind.
"""

HGPO = replace(GiGPO, advantages=NestedStepGroups(history=2, weight_power=1.0, gamma=0.95))
"""Hierarchy-of-groups policy optimization (He et al. 2026, arXiv 2602.22817): the weighted mean of a turn's advantages
in step groups with ever longer equal histories, without the advantage of the episode. Two earlier anchors, alpha = 1
and the discount are the authors' (`recipe/hgpo` of verl-agent); the rest is GiGPO's.

Deviations: those of GiGPO; standard deviations have n - 1 in the denominator (the authors' code: n). Groups with
histories of 0, 1 and 2 earlier anchors weigh 1 : 2 : 3 (copies of the authors' code that are public: 2 : 3 : 4).
"""

GraphGPO = replace(GiGPO, advantages=GoalDistance(step_weight=1.0, omega=0.1))
"""Graph-based group policy optimization (Cheng et al. 2026, arXiv 2605.26684): A = A_episode + A_graph, where A_graph
compares the turns that begin in the same state by the distance to the goal after them, in the graph of all the group's
transitions. Omega and both weights are the paper's; the rest is GiGPO's.

Deviations: those of GiGPO; every turn costs 1, as in the paper's experiments; the last turn of an episode that didn't
reach the goal leads nowhere, since the state after it isn't in the batch; a turn's worth is relative to the best one in
its state, which changes nothing but the authors' epsilon in the denominator, under which distant states have almost no
advantage. Groups of equal returns have a graph, too: if all episodes reached the goal, detours are penalized.
"""

PRESETS: dict[str, Algorithm] = {
    "ppo": PPO,
    "grpo": GRPO,
    "dr-grpo": DrGRPO,
    "dapo": DAPO,
    "rloo": RLOO,
    "reinforce++": ReinforcePP,
    "reinforce++-baseline": ReinforcePPBaseline,
    "gspo": GSPO,
    "cispo": CISPO,
    "gigpo": GiGPO,
    "hgpo": HGPO,
    "graphgpo": GraphGPO,
}
"""Presets by command-line name."""
