"""Weights that a learner passes to an engine: the only interface between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a policy, for an engine."""

    version: int
    """Number of updates that produced the weights."""
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    """Iterates over Hugging Face names and unsharded tensors; every call gives the same ones until the next load."""
    adapter: Mapping[str, Any] | None = None
    """peft configuration of the LoRA adapter that the tensors belong to; None if they are a whole model."""


def weights_of(policy: Any, version: int, *, copied: bool = False) -> Weights:
    """Return the weights for an engine: the policy's tensors, or only the adapter's if one trains.

    FSDP2 shards are gathered into CPU memory of every process, so all processes must call this.

    Args:
        policy: A Hugging Face model, or a peft model of one.
        version: Number of updates that produced the weights.
        copied: Always copy the tensors to the CPU, so that the next update doesn't change them.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from torch.distributed.tensor import DTensor

    adapter = None
    if isinstance(policy, PeftModel):
        # By default, peft would query the hub for whether the vocabulary has been resized.
        tensors = get_peft_model_state_dict(policy, save_embedding_layers=False)
        adapter = policy.peft_config[str(policy.active_adapter)].to_dict()
    else:
        tensors = policy.state_dict()
    whole = {name: t.full_tensor().cpu() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    if copied:
        whole = {name: tensor.to("cpu", copy=True) for name, tensor in whole.items()}
    return Weights(version, lambda: iter(whole.items()), adapter)
