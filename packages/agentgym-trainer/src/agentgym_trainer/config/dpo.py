"""What a run of direct preference optimization is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agentgym_eval.data.pairing import Pairing

from agentgym_trainer.config.base import at_least_one
from agentgym_trainer.config.data import DataConfig, OfflineConfig


@dataclass(frozen=True)
class Reference:
    """What the policy is held against."""

    model: str = ""
    """A model by name or path. Empty: the one that training begins with; where an adapter trains, the model without it,
    which takes no memory."""
    sync: int = 0
    """Steps after which it moves towards the policy (TR-DPO, arXiv 2404.09656); 0: it stays as it is."""
    share: float = 0.6
    """Of the policy in it then (alpha there)."""

    def __post_init__(self) -> None:
        if self.sync < 0 or not 0 < self.share <= 1:
            raise ValueError("reference needs sync from 0 and a share above 0 up to 1.")


Loss = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
]
"""Losses of TRL's `DPOTrainer`, by the names it has for them."""
_SMOOTHED = ("exo_pair", "robust", "aot", "aot_unpaired")


@dataclass(frozen=True)
class DPOConfig(OfflineConfig):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290) on pairs of episodes of the same task.

    What the agent said from where the two diverge is compared.
    """

    data: DataConfig = field(default_factory=lambda: DataConfig(keep="all"))
    player: Literal["model", "expert"] = "model"
    """Who plays where no files are named: the model that training begins with, or the worlds' experts, whom data.noise
    makes fail at times."""
    samples: int = 8
    """Episodes of each task that are played then."""
    pairs: Pairing = field(default_factory=Pairing)
    loss: Loss = "sigmoid"
    """As TRL names them. sigmoid_norm and ipo compare means over completion tokens, not sums; aot and aot_unpaired
    compare distributions over the pairs that go through the model together, so optimizer.micro_tokens matters there."""
    beta: float = 0.1
    """How firmly the policy is held to the reference (beta there)."""
    label_smoothing: float = 0.0
    """Probability that a pair is the wrong way round, for robust, exo_pair, aot and aot_unpaired."""
    ld_alpha: float = 1.0
    """Weight of the tokens that the longer side has beyond the length of the shorter (LD-DPO, arXiv 2409.06411)."""
    imitation: float = 0.0
    """Weight of the chosen's mean negative log-likelihood beside the loss (arXiv 2404.19733). It keeps what is chosen
    from becoming less likely along with what is rejected."""
    reference: Reference = field(default_factory=Reference)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "samples")
        if not 0 < self.beta < math.inf or not 0 <= self.imitation < math.inf:
            raise ValueError("A run of DPO needs a finite beta above 0 and a finite imitation from 0.")
        if not 0 <= self.label_smoothing < 0.5 or not 0 <= self.ld_alpha <= 1:
            raise ValueError("A run of DPO needs label_smoothing from 0 to below 0.5, and ld_alpha from 0 to 1.")
        if self.label_smoothing and self.loss not in _SMOOTHED:
            raise ValueError(f"label_smoothing is for the losses {', '.join(_SMOOTHED)}, not for {self.loss}.")
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError("The loss exo_pair needs label_smoothing above 0; its authors use 0.001.")
        if self.reference.sync and self.lora.rank:
            raise ValueError("An adapter's reference is the model without it, which can't move: set reference.sync 0.")
