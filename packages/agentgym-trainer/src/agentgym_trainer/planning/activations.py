"""The peak of activations in a pass of the model, measured on tensors without data.

The forward and backward passes of the real `PolicyModel` run under `FakeTensorMode` with one and with two layers; the
difference is the memory of a layer. Without a GPU, autograd can't run a backward pass on fake CUDA tensors, so fake CPU
tensors take the attention kernel and the data types of the GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from agentgym_eval.util.errors import UsageError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import _engine_run_backward  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentgym_trainer.config import Lora
from agentgym_trainer.models.attention import SDPA, VARLEN
from agentgym_trainer.models.lm_head import CHUNK_BYTES
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.policy import PolicyModel, SeparateCritic, ValueHead
from agentgym_trainer.planning.shapes import build


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass over one pack, and the backward pass if the model trains."""

    lengths: tuple[int, ...]
    """Number of tokens of each segment of the pack."""
    gpu: bool
    """Whether it is on a GPU."""
    precision: torch.dtype
    """Data type of the computation."""
    autocast: bool
    """Whether weights are float32 and cast by autocast; otherwise they are in `precision`, as FSDP2 casts them."""
    checkpointing: bool = False
    train: bool = True
    """False: only a forward pass without gradients."""
    lora: Lora = field(default_factory=Lora)
    critic: str = ""
    """head or separate; empty: none."""
    bf16: bool = True
    """See `Hardware.bf16`: such GPUs have fused attention kernels for half precision, which share key heads."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the pack."""
        return sum(self.lengths)

    @property
    def fused(self) -> bool:
        """Whether a fused attention kernel is used, as `models.attention.choose_attention` decides."""
        return self.gpu and self.bf16 and self.precision != torch.float32


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that a pass needs beyond the weights and their gradients."""

    saved: float
    """Bytes that the forward pass keeps for the backward pass."""
    peak: float
    """The most bytes at any time."""


class NotMeasurable(UsageError):
    """The model can't run on tensors without data."""


_IS_CUDA, _IS_CPU = cast("Any", Tensor).is_cuda.__get__, cast("Any", Tensor).is_cpu.__get__
_measured: dict[tuple[str, Pass], Activations] = {}


def measure(config: Any, run: Pass) -> Activations:
    """Measure a pass of the model with this transformers configuration.

    Raises:
        NotMeasurable: The model can't run on tensors without data.
    """
    key = (config.to_json_string(), run)
    if key not in _measured:
        _measured[key] = _measure(config, run)
    return _measured[key]


def _measure(config: Any, run: Pass) -> Activations:
    try:
        one, two = (_run(config, layers, run) for layers in (1, 2))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise NotMeasurable(
            f"The activations of {config.model_type} can't be measured without loading the model: "
            f"{str(error).splitlines()[0]}"
        ) from error
    more = config.num_hidden_layers - 1
    return Activations(one.saved + more * (two.saved - one.saved), one.peak + more * (two.peak - one.peak))


def _run(config: Any, layers: int, run: Pass) -> Activations:
    """Measure a model with this many layers."""
    with _AnswersWithoutData(gpu=run.gpu):
        with torch.device("meta"):
            policy, critic = _models(config, layers, run)
        with FakeTensorMode(allow_non_fake_inputs=True):
            both = nn.ModuleList([policy, critic] if critic else [policy])
            known = _with_fake_weights(both, None if run.autocast else run.precision)
            chunk = CHUNK_BYTES["cuda"] // (4 * config.vocab_size) if run.gpu else None
            attention = VARLEN if run.fused else SDPA
            model = PolicyModel(policy, critic=critic, attention=attention, chunk=chunk).train(run.train)
            ids_T = torch.zeros(run.tokens, dtype=torch.long)
            autocast = torch.autocast("cpu", run.precision) if run.autocast else nullcontext()
            with _Tracker([*known, ids_T]) as tracker, _gradients(run.train):
                with autocast:
                    outputs = model(ids_T, ids_T, run.lengths, ids_T, ids_T)
                saved = tracker.live
                if run.train:
                    _backward(torch.stack([scores.sum() for scores in outputs if scores is not None]).sum())
            return Activations(saved, tracker.peak)


def _models(config: Any, layers: int, run: Pass) -> tuple[Any, ValueHead | SeparateCritic | None]:
    """Build the policy, and the critic if there is one, as `trainers.rl` does."""
    # Frozen weights under an adapter are bfloat16 if the computation is.
    frozen_base = bool(run.lora.rank)
    halved = frozen_base and run.precision == torch.bfloat16
    model = _prepared(build(config, layers, torch.bfloat16 if halved else torch.float32), run)
    critic = None
    if run.critic == "head":
        critic = ValueHead(config.hidden_size)
    elif run.critic:
        critic = SeparateCritic(_prepared(build(config, layers, torch.float32), run).base_model)
    if frozen_base:
        model = with_lora(model, run.lora, seed=0)
    return model, critic


def _prepared(model: Any, run: Pass) -> Any:
    if run.checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _with_fake_weights(model: nn.Module, dtype: torch.dtype | None) -> list[Tensor]:
    """Replace weights, buffers and gradients by fake tensors on the CPU, weights in `dtype` if given; return them all.

    `Module.to` can't convert fake tensors.
    """
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight not in made:  # it is, if it is shared
                fake = torch.zeros(weight.shape, dtype=dtype or weight.dtype)
                made[weight] = nn.Parameter(fake, requires_grad=weight.requires_grad)
                made[weight].grad = torch.zeros_like(fake) if weight.requires_grad else None
            setattr(module, name, made[weight])
        for name, buffer in list(module.named_buffers(recurse=False)):
            made[buffer] = torch.zeros(buffer.shape, dtype=buffer.dtype)
            setattr(module, name, made[buffer])
    return [*made.values(), *(weight.grad for weight in made.values() if weight.grad is not None)]


def _gradients(wanted: bool) -> AbstractContextManager[Any]:
    return nullcontext() if wanted else torch.no_grad()


def _backward(loss: Tensor) -> None:
    """Run a backward pass. `Tensor.backward` would run it, and recompute layers, without `_AnswersWithoutData`."""
    options = {"allow_unreachable": True, "accumulate_grad": True}
    _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)


class _AnswersWithoutData(TorchFunctionMode):
    """Answers what depends on data or on the device.

    Masks select everything, since segments of equal lengths have no padding. Tensors of a pass on a GPU say so, and
    their products can be of another type than they.
    """

    def __init__(self, *, gpu: bool) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.nonzero:
            return torch.arange(args[0].numel())[:, None]
        if func in (_IS_CUDA, _IS_CPU):
            return self._gpu == (func == _IS_CUDA)
        if func is torch.mm and kwargs:
            return args[0].new_empty(len(args[0]), args[1].shape[1], dtype=kwargs["out_dtype"])
        return func(*args, **(kwargs or {}))


class _Tracker(TorchDispatchMode):
    """Adds up the storages that operations create, until they are freed."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        """Track all storages but those of `known`."""
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known = {_key(tensor.untyped_storage()) for tensor in known}
        self._tracked: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = _key(storage), storage.nbytes()
        if key in self._known or key in self._tracked:
            return
        self._tracked[key] = weakref.finalize(storage, self._drop, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _drop(self, key: int, size: int) -> None:
        del self._tracked[key]
        self.live -= size


def _key(storage: Any) -> int:
    return storage._cdata
