"""Compile the decoder layers of a model with torch.compile, for forward passes over packed segments only.

The forward of each layer is replaced on the instance. So names in state dicts stay as they are, which a wrapper of
torch.compile would change, and gradient checkpointing recomputes compiled layers. Whatever doesn't read packed
segments, such as an engine that samples from the same module, runs the layers as they are: nothing is compiled for the
shapes of its caches. Attention isn't compiled either: its kernels are fused already, and its Python code depends on
the lengths of the segments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from agentgym_trainer.models.attention import exclude_from_compilation


def compile_layers(model: Any, *, backend: str | Callable[..., Any] = "inductor") -> int:
    """Compile the repeated layers of a transformers model, when packed segments first pass through them.

    The code is compiled for any number of tokens, and shared by all layers and models of a class.

    Args:
        model: The model, after adapters were added.
        backend: Backend of torch.compile.

    Returns:
        The number of layers.

    Raises:
        ValueError: There is no compiler on this machine, or the model's repeated layers are unknown.
    """
    if backend == "inductor":
        check_compiler()
    repeated: Any = model._no_split_modules
    names = set[str](repeated or ())
    layers: list[Any] = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(
            f"compile needs a model whose class names its repeated layers, which that of {model.config.model_type} "
            "doesn't; leave compile off."
        )
    exclude_from_compilation()
    for layer in layers:
        layer.forward = MethodType(_for_packs(type(layer).forward, backend), layer)
    return len(layers)


def check_compiler() -> None:
    """Check that there is a C++ compiler. On GPUs, Triton compiles what launches its kernels with it.

    Raises:
        ValueError: There is none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ValueError(
            "compile needs a C++ compiler, and neither g++ nor clang++ was found. Install g++, set CXX to the path of "
            "one, or leave compile off."
        ) from error


@functools.cache
def _for_packs(forward: Callable[..., Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is compiled for packed segments, and is `forward` for everything else."""
    compiled = torch.compile(forward, dynamic=True, backend=backend)

    def dispatch(layer: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        # A single token is the empty pack of a process that has fewer packs than others. torch.compile takes a size
        # of 1 for a constant, and would compile everything once more.
        packed = kwargs.get("segments") is not None and hidden.shape[1] > 1
        return (compiled if packed else forward)(layer, hidden, *args, **kwargs)

    return dispatch
