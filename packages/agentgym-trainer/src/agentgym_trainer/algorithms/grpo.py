"""GRPO (Shao et al. 2024, arXiv 2402.03300): the mean of a task's own samples is the baseline.

Deviations from the paper, each a knob: the loss is the mean over all said tokens of the batch and not the mean of
per-episode means (`aggregation="sequence"` gives the paper's, eq. 3); the upper clip may differ from the lower (DAPO,
arXiv 2503.14476, eq. 10); `scale_by_std=False` leaves the division out (Dr. GRPO, arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Credit:
    """What an algorithm makes of the rewards."""

    advantage_EK: Tensor
    """Advantage of each turn, float32."""
    trains_E: Tensor
    """Whether the episode takes part in the loss, bool."""
    lonely: int
    """Groups with fewer than two episodes."""
    flat: int
    """Groups of two and more whose returns are all the same: they teach nothing."""


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimisation."""

    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl: float = 0.0
    """Weight of the KL penalty to the reference model, estimator k3; 0 needs no reference model."""
    scale_by_std: bool = True
    """Divide by the group's standard deviation (n - 1 in the denominator, as in TRL, verl and SkyRL)."""
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over all said tokens, or mean over episodes of the mean over their said tokens."""
    flat_groups: Literal["drop", "keep"] = "drop"
    """Groups without variance or with one episode: out of the loss, or in it with advantage 0 (KL still acts)."""

    def credit(self, rewards_EK: Tensor, played_EK: Tensor, group_E: Tensor) -> Credit:
        """Advantage of every turn: (return - mean of the group) / (std of the group + 1e-6), section 4.1.2.

        Failed episodes are not among the E. Sums run in float64.
        """
        return_E = rewards_EK.double().sum(1)
        same_EE = (group_E[:, None] == group_E[None, :]).double()
        size_E = same_EE.sum(1)
        centred_E = return_E - same_EE @ return_E / size_E
        std_E = ((same_EE @ centred_E.square()) / (size_E - 1).clamp(min=1)).sqrt()
        # Rounding leaves about 1e-16 where all returns are the same.
        teaches_E = std_E > 1e-9
        advantage_E = centred_E / (std_E + 1e-6) if self.scale_by_std else centred_E
        advantage_E = advantage_E * teaches_E
        lonely_E = size_E < 2
        return Credit(
            advantage_EK=(advantage_E[:, None] * played_EK).float(),
            trains_E=teaches_E if self.flat_groups == "drop" else teaches_E | True,
            lonely=_groups(lonely_E, size_E),
            flat=_groups(~lonely_E & ~teaches_E, size_E),
        )

    def weights(self, said_BT: Tensor, episode_BT: Tensor) -> Tensor:
        """How much each said token counts; the learner divides by the sum over the whole batch and all processes."""
        said = said_BT.float()
        if self.aggregation == "token":
            return said
        length_E = said.new_zeros(int(episode_BT.max()) + 1).index_add(0, episode_BT.flatten(), said.flatten())
        return said / length_E.clamp(min=1)[episode_BT]

    def loss(
        self, logp_BT: Tensor, sampled_BT: Tensor, reference_BT: Tensor | None, advantage_BT: Tensor, weight_BT: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped surrogate (eq. 3) with the k3 estimator of KL (eq. 4), summed over these tokens.

        Args:
            logp_BT: Log-probabilities under the weights being trained.
            sampled_BT: Log-probabilities at sampling.
            reference_BT: Log-probabilities under the reference model; None when `kl` is 0.
            advantage_BT: Advantage of each said token.
            weight_BT: From `weights`, divided by their sum; 0 at tokens that weren't said.

        Returns:
            The part of the loss that these tokens carry, and metrics that add up over parts.
        """
        said_BT = weight_BT > 0
        # What wasn't said has no ratio; without this its difference could overflow and 0 * inf is not 0.
        ratio_BT = ((logp_BT - sampled_BT) * said_BT).exp()
        clipped_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        gain_BT = (ratio_BT * advantage_BT).minimum(clipped_BT * advantage_BT)
        loss = -(weight_BT * gain_BT).sum()
        metrics = {
            "ratio": (weight_BT * ratio_BT).sum().detach(),
            "clipped": (weight_BT * (clipped_BT * advantage_BT < ratio_BT * advantage_BT)).sum().detach(),
            "kl_sampled": (weight_BT * (ratio_BT - 1 - (logp_BT - sampled_BT) * said_BT)).sum().detach(),
        }
        if reference_BT is not None:
            apart_BT = (reference_BT - logp_BT) * said_BT
            kl = (weight_BT * (apart_BT.exp() - apart_BT - 1)).sum()
            loss = loss + self.kl * kl
            metrics["kl_reference"] = kl.detach()
        return loss, metrics


def _groups(chosen_E: Tensor, size_E: Tensor) -> int:
    """How many groups the chosen episodes make up, every episode of a group being chosen or none."""
    return round(float((chosen_E / size_E).sum()))
