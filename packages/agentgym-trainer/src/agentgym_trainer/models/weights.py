"""Weights that a learner passes to an engine: the only interface between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from agentgym_trainer.models.machine_copy import MachineCopy


SHARED_BYTES = 512 * 2**20
"""Bytes of GPU memory that a learner shares with a server on the same GPU to pass tensors, unless one is larger."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a policy, for an engine."""

    version: int
    """Number of updates that produced the weights."""
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    """Starts a pass over Hugging Face names and unsharded tensors, which are on the learner's device, or on the CPU in
    the final test of a run that shards its weights."""
    adapter: Mapping[str, Any] | None = None
    """peft configuration of the LoRA adapter that the tensors belong to; None if they are a whole model."""
    lasting: bool = True
    """Whether passes give the same tensors until the next load. Otherwise they do so only until this load ends, because
    updates continue meanwhile, or because the tensors are gathered for it: an engine that may need them later makes one
    pass with a `HostCopy`."""
    collective: bool = False
    """Whether all processes make a pass at the same time and to its end, from their main threads, because it gathers
    shards, or because updates continue and they keep one copy per machine. `RolloutRunner.load` does so, and gives
    engines weights for which this is false."""
    machine_copy: MachineCopy | None = None
    """The copy that the processes of this machine share if they can; None where an engine keeps its own."""


def weights_of(policy: Any, version: int, *, lasting: bool = True, precision: str = "no") -> Weights:
    """Return the weights for an engine: the policy's tensors, or only the adapter's if one trains.

    Nothing is copied. FSDP2 shards are gathered tensor by tensor during each pass, on their device.

    Args:
        policy: A Hugging Face model, or a peft model of one.
        version: Number of updates that produced the weights.
        lasting: Whether the policy doesn't change before the next load.
        precision: accelerate's mixed precision: no, bf16 or fp16. Shards of a whole model are cast to its data type
            before they are gathered.
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from torch.distributed.tensor import DTensor

    adapter, dtype = None, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if isinstance(policy, PeftModel):
        # By default, peft would query the hub for whether the vocabulary has been resized.
        tensors = get_peft_model_state_dict(policy, save_embedding_layers=False)
        adapter = policy.peft_config[str(policy.active_adapter)].to_dict()
        dtype = None
    else:
        tensors = policy.state_dict()
    _finish_kernels(tensors.values())
    if not any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        return Weights(version, lambda: iter(tensors.items()), adapter, lasting)

    def gathered() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors.items():
            cast = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            yield name, cast.full_tensor() if isinstance(cast, DTensor) else cast

    return Weights(version, gathered, adapter, lasting=False, collective=True)


def _finish_kernels(tensors: Iterable[Tensor]) -> None:
    """Wait until the last update has been computed: engines read the tensors in other CUDA streams than the learner."""
    import torch

    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def exhaust(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Make a pass to its end, for what it does on the way."""
    for _ in tensors:
        pass


class HostCopy:
    """A copy in host memory of the last weights that an engine was given, to load them again after they were lost.

    Its memory is reused for the next weights. Weights that last aren't copied.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        """Copy nothing yet.

        Args:
            dtype: See the attribute.
        """
        self.dtype = dtype
        """The data type of the engine's weights, in which floating-point tensors of whole models are kept; None keeps
        theirs."""
        self._kept: dict[str, Tensor] = {}

    def of(self, weights: Weights) -> Weights:
        """Return the same weights with any number of passes, one at a time; the first one copies the tensors.

        Nothing is copied before it starts. If it is broken off, the next pass first copies the rest.
        """
        reused, self._kept = self._kept, {}
        if weights.lasting:
            return weights
        kept, shared = self._kept, weights.machine_copy
        if shared is not None:
            shared.request(self)

        def keep(name: str, tensor: Tensor) -> None:
            if shared is None or not shared.shared:
                kept[name] = _copied(tensor, reused.pop(name, None), None if weights.adapter else self.dtype)

        def copies() -> Iterator[tuple[str, Tensor]]:
            return shared.tensors() if shared is not None and shared.shared else iter(kept.items())

        return replace(weights, tensors=_Passes(weights.tensors, keep, copies), lasting=True)


class _Passes:
    """Starts passes over tensors: the first over a source, the others, once that one has ended, over its copies."""

    def __init__(
        self,
        source: Callable[[], Iterator[tuple[str, Tensor]]],
        keep: Callable[[str, Tensor], None],
        copies: Callable[[], Iterator[tuple[str, Tensor]]],
    ) -> None:
        self._open, self._keep, self._copies = source, keep, copies
        self._source: Iterator[tuple[str, Tensor]] | None = None

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        if self._source is None:
            self._source = self._open()
            return self._keeping(self._source)
        exhaust(self._keeping(self._source))
        return self._copies()

    def _keeping(self, source: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in source:
            self._keep(name, tensor)
            yield name, tensor


def _copied(tensor: Tensor, memory: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    """Copy a tensor to host memory, floating-point numbers in this type, into memory of an earlier copy if it fits."""
    import torch

    dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if memory is None or memory.shape != tensor.shape or memory.dtype != dtype:
        memory = torch.empty(tensor.shape, dtype=dtype)
    return memory.copy_(tensor.detach())
