"""When a run of reinforcement learning warns of how it learns."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Warnings:
    """When a run of reinforcement learning warns (docs/training.md, "Warnings"). A warning is given when it begins, and
    again when it has been gone for a whole window and comes back. A threshold of 0 switches one off.
    """

    window: int = 10
    """Steps that figures are averaged over, of those that have them. Where two windows are compared, their means also
    have to be more than four standard errors apart."""
    flat: int = 1
    """flat-groups: steps in a row without an update because all groups are flat."""
    advantage: float = 0.1
    """negative-advantage: `advantage/mean_token` is below 0 in every step of the window and, on average, by this many
    standard deviations of the advantages."""
    entropy_low: float = 0.1
    """entropy-collapse: share of the entropy of the first window that is left, while success is below 0.95."""
    entropy_high: float = 3.0
    """entropy-explosion: entropy as a multiple of that of the first window, and at least 0.1 nats above it."""
    length: float = 0.1
    """length-stops: how far the share of episodes that end at the token budget is above its lowest window."""
    gap: float = 2.0
    """engine-gap: `logprob_check_gap` as a multiple of its lowest window, and at least 0.005 nats above it."""
    return_std: float = 0.02
    """low-return-variance: the `group_return_std` below which the window's mean is."""
    template: float = 0.3
    """template-collapse: share of the highest window of `mutual_information` that is left, where that was at least 0.1
    nats."""
    template_every: int = 2
    """Steps from one measurement of `mutual_information` to the next; 0 is never."""
    template_tasks: int = 8
    """Tasks in a measurement; it scores as many replies after as many prompts."""

    def __post_init__(self) -> None:
        if self.window < 2 or min(getattr(self, f.name) for f in fields(self)) < 0:
            raise ValueError("warnings need a window of at least 2 steps and thresholds from 0; 0 switches one off.")
        if max(self.entropy_low, self.length, self.template) >= 1:
            raise ValueError("warnings.entropy_low, length and template are shares below 1; 0 switches one off.")
        if any(0 < factor <= 1 for factor in (self.entropy_high, self.gap)):
            raise ValueError("warnings.entropy_high and gap are multiples above 1; 0 switches one off.")
        if self.template_tasks < 2:
            raise ValueError("warnings.template_tasks must be at least 2; warnings.template_every 0 measures nothing.")
