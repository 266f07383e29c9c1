"""Weights on their way from a learner to an engine: all that the two have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """What a learner gives an engine."""

    version: int
    """Number of updates they have seen."""
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    """Names in Hugging Face's layout and whole tensors; the same ones whenever it is called, until the next load."""
    adapter: Mapping[str, Any] | None = None
    """Configuration of the LoRA adapter that the tensors are, in peft's layout; None when they are a whole model."""


def weights_of(policy: Any, version: int, *, copied: bool = False) -> Weights:
    """What an engine is to sample with: the policy's own tensors, or the adapter's where one trains.

    Shards of FSDP2 are gathered into the memory of every process's CPU; so all processes call this.

    Args:
        policy: A Hugging Face model, or a peft model of one.
        version: Number of updates that it has seen.
        copied: Whether they are copied to the CPU in any case, and don't change with the next update.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from torch.distributed.tensor import DTensor

    adapter = None
    if isinstance(policy, PeftModel):
        # By itself peft would ask the hub whether the vocabulary has grown.
        tensors = get_peft_model_state_dict(policy, save_embedding_layers=False)
        adapter = policy.peft_config[str(policy.active_adapter)].to_dict()
    else:
        tensors = policy.state_dict()
    whole = {name: t.full_tensor().cpu() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    if copied:
        whole = {name: tensor.to("cpu", copy=True) for name, tensor in whole.items()}
    return Weights(version, lambda: iter(whole.items()), adapter)
