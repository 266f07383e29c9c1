"""Configuration of direct preference optimization."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agentgym_eval.data.pairing import Pairing

from agentgym_trainer.config.base import at_least_one
from agentgym_trainer.config.data import DataConfig, OfflineConfig


@dataclass(frozen=True)
class Reference:
    """The reference model."""

    model: str = ""
    """Name or path of the reference model. Empty: the initial policy; with LoRA, the model without its adapter, which
    takes no extra memory."""
    sync: int = 0
    """Steps between updates of the reference towards the policy (TR-DPO, arXiv 2404.09656); 0: never."""
    share: float = 0.6
    """Weight of the policy in such an update (the paper's alpha)."""

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
"""Losses of TRL's `DPOTrainer`, by their TRL names."""
_SMOOTHED = ("exo_pair", "robust", "aot", "aot_unpaired")


@dataclass(frozen=True)
class DPOConfig(OfflineConfig):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290) on pairs of episodes of the same task.

    The completion tokens after the point where the two episodes diverge are compared.
    """

    data: DataConfig = field(default_factory=lambda: DataConfig(keep="all"))
    player: Literal["model", "expert"] = "model"
    """Policy that generates episodes if data.files is empty: the initial model, or the environments' experts, which
    data.noise makes fail sometimes."""
    samples: int = 8
    """Generated episodes per task."""
    pairs: Pairing = field(default_factory=Pairing)
    loss: Loss = "sigmoid"
    """TRL's name of the loss. sigmoid_norm and ipo compare means over completion tokens, not sums; aot and aot_unpaired
    compare distributions over the pairs of a micro-batch, so optimizer.micro_tokens affects them."""
    beta: float = 0.1
    """Strength of the regularization towards the reference (the paper's beta)."""
    label_smoothing: float = 0.0
    """Probability that the labels of a pair are swapped, for robust, exo_pair, aot and aot_unpaired."""
    ld_alpha: float = 1.0
    """Weight of the longer side's tokens beyond the length of the shorter side (LD-DPO, arXiv 2409.06411)."""
    imitation: float = 0.0
    """Coefficient of an additional loss, the mean negative log-likelihood of the chosen side (arXiv 2404.19733). It
    keeps the chosen side from becoming less likely along with the rejected one. TRL takes the mean over the tokens of a
    micro-batch and then over micro-batches, so optimizer.micro_tokens affects how much a token counts."""
    reference: Reference = field(default_factory=Reference)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "samples")
        if self.data.imitate_labels:
            raise ValueError("DPO compares replies, not labels: leave out data.imitate_labels.")
        if self.data.rename:
            raise ValueError("The episodes of a pair share a context, so DPO can't rename them: set data.rename 0.")
        if not 0 < self.beta < math.inf or not 0 <= self.imitation < math.inf:
            raise ValueError("DPO needs a finite beta above 0 and a finite imitation from 0.")
        if not 0 <= self.label_smoothing < 0.5 or not 0 <= self.ld_alpha <= 1:
            raise ValueError("DPO needs label_smoothing from 0 to below 0.5, and ld_alpha from 0 to 1.")
        if self.label_smoothing and self.loss not in _SMOOTHED:
            raise ValueError(f"label_smoothing is for the losses {', '.join(_SMOOTHED)}, not for {self.loss}.")
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError("The loss exo_pair needs label_smoothing above 0; its authors use 0.001.")
        if self.reference.sync and self.lora.rank:
            raise ValueError(
                "With LoRA the reference is the model without its adapter, which is fixed: set reference.sync 0."
            )
