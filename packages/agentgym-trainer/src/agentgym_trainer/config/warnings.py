"""Thresholds of the training-health warnings in reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Warnings:
    """Thresholds of training-health warnings (docs/training.md, "Warnings").

    A warning is given when its condition begins to hold, and again when it holds after a whole window without it. A
    threshold of 0 turns a warning off.
    """

    window: int = 10
    """Steps to average metrics over, counting those that have the metric. Where two windows are compared, their means
    must also be more than four standard errors apart."""
    flat: int = 1
    """flat-groups: consecutive steps without an update because all groups are flat."""
    advantage: float = 0.1
    """negative-advantage: `advantage/mean_token` is below 0 in every step of the window, and on average by this many
    standard deviations of the advantages."""
    entropy_low: float = 0.1
    """entropy-collapse: entropy falls below this share of the first window's, while success is below 0.95."""
    entropy_high: float = 3.0
    """entropy-explosion: entropy exceeds this multiple of the first window's, and by at least 0.1 nats."""
    length: float = 0.1
    """length-stops: the share of episodes that end at the token budget exceeds its lowest window by this much."""
    gap: float = 2.0
    """engine-gap: `logprob_check_gap` exceeds this multiple of its lowest window, and by at least 0.005 nats."""
    return_std: float = 0.02
    """low-return-variance: the window's mean of `group_return_std` is below this, and neither a teacher nor labels
    train."""
    template: float = 0.3
    """template-collapse: `mutual_information` falls below this share of its highest window, if that was at least 0.1
    nats."""
    template_every: int = 2
    """Steps between measurements of `mutual_information`; 0: never."""
    template_tasks: int = 8
    """Tasks per measurement, which scores as many replies after as many prompts."""

    def __post_init__(self) -> None:
        if self.window < 2 or min(getattr(self, f.name) for f in fields(self)) < 0:
            raise ValueError("warnings need a window of at least 2 steps and thresholds from 0; 0 turns one off.")
        if max(self.entropy_low, self.length, self.template) >= 1:
            raise ValueError("warnings.entropy_low, length and template are shares below 1; 0 turns one off.")
        if any(0 < factor <= 1 for factor in (self.entropy_high, self.gap)):
            raise ValueError("warnings.entropy_high and gap are multiples above 1; 0 turns one off.")
        if self.template_tasks < 2:
            raise ValueError(
                "warnings.template_tasks must be at least 2; warnings.template_every 0 turns the measurement off."
            )
