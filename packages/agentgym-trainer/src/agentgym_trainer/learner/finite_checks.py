"""Whether what an update is made of, and what comes of it, is finite; and what is done where it isn't.

An optimizer step in which anything isn't finite is skipped: weights and optimizer stay as they are. Too many in a row
end the run, and so do weights that aren't finite: they are neither saved nor given to an engine.
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
    """Training can't go on: too many steps in a row were skipped, or the weights aren't finite."""


class Skips:
    """Counts optimizer steps that are skipped because something in them isn't finite."""

    def __init__(self, most: int) -> None:
        """Count none yet; `most` in a row end the run."""
        self.most = most
        self.causes: tuple[str, ...] = ()
        """What wasn't finite in the last step that was skipped."""
        self._row = 0

    def applied(self) -> None:
        """A step was applied: the row ends."""
        self._row = 0

    def skipped(self, causes: Sequence[str], *, curable: bool = False) -> None:
        """A step was skipped for these causes.

        Args:
            causes: What isn't finite in it.
            curable: Whether it doesn't count in the row: float16's gradients overflowed, and the scale comes down.

        Raises:
            NotFinite: when that makes too many in a row.
        """
        self.causes = tuple(causes)
        self._row += not curable
        if self._row >= self.most:
            raise NotFinite(
                f"{self._row} optimizer steps in a row were skipped (optimizer.max_skips), because there were values "
                f"that aren't finite in the {listed(causes)}."
            )


def listed(causes: Sequence[str]) -> str:
    """The causes as a sentence has them."""
    return " and the ".join([", the ".join(causes[:-1]), causes[-1]] if len(causes) > 1 else causes)


def count_nonfinite(rewards_EK: Tensor, part: MicroBatch, scores: ModelOutputs, loss: Tensor) -> dict[str, Tensor]:
    """How many values of a micro-batch aren't finite, for what a step is skipped for: each a scalar that is left on its
    device, under a name for `causes`. Rewards are those of the episodes that the micro-batch has tokens of.
    """
    values = {
        "rewards": rewards_EK[part.episode_M],
        "advantages": part.advantages_M,
        "log-probabilities of the engine": part.rollout_logprobs_M,
        "log-probabilities before the update": part.old_logprobs_M,
        "log-probabilities of the reference": part.ref_logprobs_M,
        "values of the critic": part.values_M if scores.values_M is None else scores.values_M,
        "log-probabilities": scores.logprobs_M,
        "loss": loss,
    }
    return {
        f"{_PREFIX}{name}": (~value.detach().isfinite()).sum() for name, value in values.items() if value is not None
    }


def pop_causes(totals: dict[str, float]) -> list[str]:
    """Take the counts of `count_nonfinite`, summed over micro-batches and processes, out of a step's totals.

    Returns:
        What isn't finite, what comes first in an update first.
    """
    names = [name for name in totals if name.startswith(_PREFIX)]
    return [name.removeprefix(_PREFIX) for name in names if totals.pop(name)]


@torch.no_grad()
def check_weights(parameters: Iterable[Tensor], accelerator: Accelerator) -> None:
    """See that weights are finite. All processes call this; it takes no memory and one number from the device.

    Args:
        parameters: Of which a process may hold shards.
        accelerator: Sums over all processes.

    Raises:
        NotFinite: on all processes, when some aren't on any.
    """
    local = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
    largest = [torch.linalg.vector_norm(p.detach(), torch.inf) for p in local if p.is_floating_point() and p.numel()]
    found: Any = accelerator.reduce(torch.stack([~size.isfinite() for size in largest]).sum(), "sum")
    if count := int(found):
        raise NotFinite(f"{count} of the {len(largest)} weight tensors hold values that aren't finite.")


def without_nonfinite(value: Any) -> Any:
    """JSON values with None for every number that isn't finite, which JSON can't express."""
    if isinstance(value, Mapping):
        return {name: without_nonfinite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(part) for part in value]
    return None if isinstance(value, float) and not -torch.inf < value < torch.inf else value
