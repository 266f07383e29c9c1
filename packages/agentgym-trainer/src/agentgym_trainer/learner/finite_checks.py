"""Checks that the inputs and results of updates are finite.

An optimizer step with a non-finite value is skipped: weights and optimizer state stay unchanged. Too many skipped steps
in a row end the run. So do non-finite weights, which are neither saved nor passed to an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from agentgym_eval.util.errors import RunStopped
from torch import Tensor
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import MicroBatch, ModelOutputs

GRADIENTS = "gradients"
_PREFIX = "nonfinite/"


class NotFinite(RunStopped):
    """Training can't continue: too many steps in a row were skipped, or the weights aren't finite."""


class Skips:
    """A counter of consecutive optimizer steps that were skipped because of non-finite values."""

    def __init__(self, most: int) -> None:
        """Start at 0; `most` skipped steps in a row end the run."""
        self.most = most
        self.causes: tuple[str, ...] = ()
        """What wasn't finite in the last skipped step."""
        self._row = 0

    def applied(self) -> None:
        """Reset the counter after a step that was applied."""
        self._row = 0

    def skipped(self, causes: Sequence[str], *, curable: bool = False) -> None:
        """Count a skipped step.

        Args:
            causes: What isn't finite in it.
            curable: Don't count the step, since float16 gradients overflowed and the loss scale will be reduced.

        Raises:
            NotFinite: Too many steps in a row were skipped.
        """
        self.causes = tuple(causes)
        self._row += not curable
        if self._row >= self.most:
            raise NotFinite(
                f"{self._row} optimizer steps in a row were skipped (optimizer.max_skips), because there were values "
                f"that aren't finite in the {listed(causes)}."
            )


def listed(causes: Sequence[str]) -> str:
    """Join the causes for a sentence."""
    return " and the ".join([", the ".join(causes[:-1]), causes[-1]] if len(causes) > 1 else causes)


def count_nonfinite(
    rewards_EK: Tensor, micro_batch: MicroBatch, outputs: ModelOutputs, loss: Tensor
) -> dict[str, Tensor]:
    """Count the non-finite values of a micro-batch by cause, as scalars on their devices.

    Rewards are those of the episodes that the micro-batch has tokens of.
    """
    values = {
        "rewards": rewards_EK[micro_batch.episode_M],
        "advantages": micro_batch.advantages_M,
        "log-probabilities of the engine": micro_batch.rollout_logprobs_M,
        "log-probabilities before the update": micro_batch.old_logprobs_M,
        "log-probabilities of the reference": micro_batch.ref_logprobs_M,
        "values of the critic": micro_batch.values_M if outputs.values_M is None else outputs.values_M,
        "log-probabilities": outputs.logprobs_M,
        "loss": loss,
    }
    return {
        f"{_PREFIX}{name}": (~value.detach().isfinite()).sum() for name, value in values.items() if value is not None
    }


def pop_causes(totals: dict[str, float]) -> list[str]:
    """Remove the counts of `count_nonfinite`, summed over micro-batches and processes, from a step's totals.

    Returns:
        The causes with non-zero counts, in the order in which an update computes them.
    """
    names = [name for name in totals if name.startswith(_PREFIX)]
    return [name.removeprefix(_PREFIX) for name in names if totals.pop(name)]


@torch.no_grad()
def check_weights(parameters: Iterable[Tensor], accelerator: Accelerator) -> None:
    """Check that all weights are finite. All processes must call this; it allocates almost no memory and transfers one
    number from the device.

    Args:
        parameters: Parameters, which may be sharded.
        accelerator: Sums over all processes.

    Raises:
        NotFinite: On all processes, if a weight isn't finite on any of them.
    """
    local = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
    largest = [torch.linalg.vector_norm(p.detach(), torch.inf) for p in local if p.is_floating_point() and p.numel()]
    found: Any = accelerator.reduce(torch.stack([~size.isfinite() for size in largest]).sum(), "sum")
    if count := int(found):
        raise NotFinite(f"{count} of the {len(largest)} weight tensors hold values that aren't finite.")


def without_nonfinite(value: Any) -> Any:
    """Return JSON values with None in place of non-finite numbers, which JSON can't represent."""
    if isinstance(value, Mapping):
        return {name: without_nonfinite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(part) for part in value]
    return None if isinstance(value, float) and not -torch.inf < value < torch.inf else value
