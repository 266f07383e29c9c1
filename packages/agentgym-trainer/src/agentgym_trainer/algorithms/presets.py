"""Algorithms under the names they were published with: values of `Algorithm`, each with its paper and what differs.

What differs everywhere, so that it needn't be said ten times:

- Means over tokens or episodes run over the whole batch of an optimizer step on all processes, where some papers write
  one per group.
- Only what the agent said is in ratios, means and penalties; observations of the world don't exist here.
- Weights of KL penalties are AgentGym-RL's 1e-3 (arXiv 2509.08755) unless said: returns lie in [0, 1] here.
- k3 isn't clamped, as in TRL and in the papers; verl, SkyRL and AgentGym-RL clamp it at 10 (`kl.clamp`).
- Groups that teach nothing to an algorithm that compares within groups are left out, where the papers keep them with
  advantage 0; so the means run over what teaches.
- Where groups are left out, fewer optimizer steps are taken, each of about as many completion tokens as of a full batch
  (`scale_minibatches` of the run); the papers fix the number of episodes in a step.
- Old log-probabilities are the engine's, and the learner's own only when `correction` is on.
"""

from __future__ import annotations

from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.algorithm import Algorithm
from agentgym_trainer.algorithms.group_filter import GroupFilter
from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.loss.clip import Clip
from agentgym_trainer.algorithms.loss.critic import Critic
from agentgym_trainer.algorithms.loss.kl import KL

_EVERY_GROUP = GroupFilter(single="keep", zero_variance="keep")
"""For those that don't compare within groups."""

PPO = Algorithm(
    advantages=GAE(level="token", gamma=1.0, lam=1.0, whiten=True),
    critic=Critic(weight=0.5, clip=0.2),
    groups=_EVERY_GROUP,
)
"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347, eqs. 7 and 9), advantages by GAE (arXiv
1506.02438, eq. 16).

Deviations: gamma = lambda = 1 as in AgentGym-RL (the paper: 0.99 and 0.95), for a reward at the end is hundreds of
tokens away; advantages are whitened and values clipped, as in OpenAI Baselines; no entropy bonus.
"""

GRPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    kl=KL(where="loss", estimator="k3"),
)
"""Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300, eqs. 3 and 4, section 4.1.2).

Deviations: the loss is the mean over all said tokens and not the mean of per-episode means (`aggregation.kind
"sequence"` gives the paper's); the weight of KL is 1e-3 (the paper: 0.04).

Length bias: a group's mean return counts each episode once, and the mean over tokens counts it by its tokens. Where
failed episodes are longer than successful ones, the mean advantage of a token (`advantage/mean_token` in the metrics)
is below 0, the more the longer the horizon. `advantages.baseline "length"`, `advantages.whiten`, or the paper's
`aggregation.kind "sequence"` make it 0 over the update. Dr. GRPO, DAPO, RLOO and CISPO have the same bias, and GiGPO
has it at both of its levels.
"""

DrGRPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="none"),
    aggregation=Aggregation(kind="fixed", length=1024),
)
"""GRPO done right (Liu et al. 2025, arXiv 2503.20783, section 3.2): no division by the standard deviation, none by the
episode's length. No KL, as there.

Deviations: the constant that sums are divided by is 1,024 said tokens (there: the longest reply allowed).
"""

DAPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    clip=Clip(kind="ppo", low=0.2, high=0.28),
    aggregation=Aggregation(kind="token"),
    groups=GroupFilter(zero_variance="resample"),
)
"""Decoupled clip and dynamic sampling (Yu et al. 2025, arXiv 2503.14476, eqs. 8 to 12). No KL, as there.

Deviations: groups without variance are replaced for `groups.rounds` rounds and not without end; no penalty for overlong
replies (eq. 13): an episode that ends for its length is marked `length`, and whether it trains is a setting of the run.
"""

RLOO = Algorithm(
    advantages=GroupRelative(baseline="leave_one_out", scale="none"),
    kl=KL(where="reward", estimator="k1"),
)
"""REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740, eq. 8; Kool et al. 2019), KL in the
reward.

Deviations: PPO's clipped ratio stands where the paper, with one update on each batch, has the log-probability: at the
first update both have the same gradient; the mean over tokens stands where it sums over an episode's.
"""

ReinforcePP = Algorithm(
    advantages=TokenReturns(gamma=1.0, baseline=False),
    kl=KL(where="reward", estimator="k1"),
    groups=_EVERY_GROUP,
)
"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): PPO's clip without its critic; returns from each token on, with the
KL penalty in the token's reward, normalised over the whole batch.

Deviations: rewards within an episode count from their turn on (there: one at its end).
"""

ReinforcePPBaseline = Algorithm(
    advantages=TokenReturns(gamma=1.0, baseline=True),
    kl=KL(where="loss", estimator="k2"),
    groups=GroupFilter(zero_variance="keep"),
)
"""REINFORCE++ with baseline (same paper): the group's mean return is subtracted before returns are normalised over the
whole batch; KL is a term of the loss (k2).

Deviations: none but those of every preset; groups without variance are kept, as there, for they count in the batch's
standard deviation.
"""

GSPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    ratio="sequence",
    clip=Clip(kind="ppo", low=3e-4, high=4e-4),
    aggregation=Aggregation(kind="sequence"),
)
"""Group sequence policy optimisation (Zheng et al. 2025, arXiv 2507.18071, eqs. 5 to 7; the clip of section 5.1). No
KL, as there.

Deviations: the sequence is the whole episode, so that the ratio is the geometric mean over what was said in all turns;
the gradient is GSPO-token's (eq. 14), the same where an episode has one advantage.
"""

CISPO = Algorithm(
    advantages=GroupRelative(baseline="mean", scale="std"),
    clip=Clip(kind="cispo", low=1.0, high=4.0),
    aggregation=Aggregation(kind="token"),
    groups=GroupFilter(zero_variance="resample"),
)
"""Clipped importance weights in front of REINFORCE (MiniMax-M1, arXiv 2506.13585, eqs. 4 and 5). No KL and no lower
bound, as there (low = 1 is a bound of 0), and DAPO's dynamic sampling.

Deviations: weights end at 5, which the paper leaves open (ScaleRL, arXiv 2510.13786, found 4 to 8 alike); no penalty
for overlong replies.
"""

GiGPO = Algorithm(
    advantages=StepGroups(step_weight=1.0, gamma=0.95),
    kl=KL(where="loss", estimator="k3", weight=0.01),
    groups=GroupFilter(zero_variance="keep"),
)
"""Group-in-group policy optimisation (Feng et al. 2025, arXiv 2505.10978, section 4): A = A_episode + omega A_step, the
second among turns of the group that answer the same observation. Omega, discount and the weight of KL are the authors'.
Groups of equal returns are kept: discounted, those of their turns may still differ.

Deviations: ratios and means are of tokens and not of whole actions (`ratio "turn"` comes closer); invalid actions cost
no reward; observations are compared as whole texts, and plans, looks back and summaries with their like alone.
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
}
"""The presets by the names that the command line takes."""
