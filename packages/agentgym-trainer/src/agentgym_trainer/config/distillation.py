"""Configuration of on-policy distillation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Distillation:
    """On-policy distillation: learn from an expert's replies, or from a teacher model's log-probabilities, in the
    states that the policy itself reaches, besides the rewards or in place of them.
    """

    expert: str = ""
    """Who says how it would have replied in the policy's turns: `oracle`, the environment's expert, or a policy as
    `evaluate --policy` takes it, such as hf:PATH. The policy's actions are executed; the expert's replies are labels of
    an SFT term, each after the context that the policy had (DAgger, arXiv 1011.0686). Empty: no labels."""
    label_weight: float = 0.1
    """Coefficient of the mean negative log-likelihood over the tokens of all labels of an optimizer step."""
    fraction: float = 1.0
    """Probability that a turn is labeled."""
    teacher: str = ""
    """Path or name of a model with the policy's tokenizer. The log-ratio of policy and teacher at each sampled token,
    an estimate of KL(policy || teacher), is subtracted from the token's advantage (On-Policy Distillation, Lu and
    Thinking Machines Lab 2025; GKD, arXiv 2306.13649, with the reverse KL). Empty: no teacher."""
    teacher_weight: float = 1.0
    """Coefficient of the log-ratio."""
    reward_weight: float = 1.0
    """Coefficient of the advantages from rewards; 0: learn from the expert or the teacher alone."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of `label_weight` and `teacher_weight`: constant, or decay to 0."""
    decay_steps: int = 0
    """Updates after which the weights are 0, if they decay; 0: those of the run. The expert isn't asked from then on,
    unless rollouts are asynchronous."""

    def __post_init__(self) -> None:
        weights = (self.label_weight, self.teacher_weight, self.reward_weight)
        if not all(0 <= weight < math.inf for weight in weights) or not 0 < self.fraction <= 1 or self.decay_steps < 0:
            raise ValueError(
                "distillation needs finite weights from 0, a fraction above 0 and at most 1, and decay_steps from 0."
            )
        if self.expert and not self.label_weight:
            raise ValueError("distillation.expert gives labels for the loss: set distillation.label_weight above 0.")
        if self.teacher and not self.teacher_weight:
            raise ValueError("distillation.teacher gives advantages: set distillation.teacher_weight above 0.")
        if self.reward_weight != 1 and not (self.expert or self.teacher):
            raise ValueError(
                "distillation.reward_weight weighs rewards against an expert or a teacher: set distillation.expert, "
                "such as oracle, or distillation.teacher."
            )
        if self.decay_steps and self.schedule == "constant":
            raise ValueError("distillation.decay_steps needs a schedule that decays: set distillation.schedule linear.")

    def decay(self, step: int, steps: int) -> float:
        """Return the factor of the weights in an update, from 0 to 1.

        Args:
            step: Number of updates before it.
            steps: Number of updates of the run.
        """
        if self.schedule == "constant":
            return 1.0
        progress = min(1.0, step / (self.decay_steps or steps))
        return 1 - progress if self.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
