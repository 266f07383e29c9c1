"""Liger's Triton kernels (Hsu et al. 2024, arXiv 2410.10989) for RMSNorm, SwiGLU and GeGLU on CUDA.

Only these are replaced. Attention and the language-model head are this package's own: log-probabilities come from the
chunked head, so Liger's fused losses would never run. Rotary embeddings stay, too: transformers calls a function of
the model's module for them, so Liger's would replace those of all models of the process, also on a CPU.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Collection
from typing import Any

import torch
from agentgym_envs.util.installation import install

_NORM = "rms_norm"
_MLPS = ("swiglu", "geglu")


def why_not_liger(model_type: str, device: torch.device) -> str | None:
    """Return why Liger's kernels can't be used for a model on a device, as a sentence; None if they can.

    Args:
        model_type: `model_type` of the model's transformers configuration.
        device: The device of the model.
    """
    if device.type != "cuda":
        return f"Liger's kernels run on CUDA, not on {device.type}."
    if importlib.util.find_spec("liger_kernel") is None:
        return f"Liger's kernels aren't installed: {install('agentgym-trainer[liger]')}."
    try:
        known = _replaced(_options(model_type))
    except ImportError as error:  # it refuses other versions of transformers
        return f"Liger's kernels can't be imported: {error}."
    return None if known else f"Liger has no RMSNorm and gated MLP for {model_type}."


def apply_liger(model: Any) -> None:
    """Compute RMSNorm and gated MLPs of a model with Liger's kernels. Names and weights stay as they are.

    Args:
        model: A transformers model, for which `why_not_liger` returns None. Its linear layers may have adapters.
    """
    patching: Any = importlib.import_module("liger_kernel.transformers.monkey_patch")
    options = _options(model.config.model_type)
    switches = {name: name in _replaced(options) for name in options}
    module = sys.modules[type(model).__module__]
    # Liger also replaces classes in transformers' module, which other models are built from, even some on a CPU.
    before = dict(vars(module))
    try:
        patching._apply_liger_kernel_to_instance(model=model, **switches)
    finally:
        vars(module).update(before)


def _options(model_type: str) -> list[str]:
    """Return the names of what Liger can replace in a type of model; none if it doesn't know the type."""
    patching: Any = importlib.import_module("liger_kernel.transformers.monkey_patch")
    function = patching.MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    return [] if function is None else [name for name in inspect.signature(function).parameters if name != "model"]


def _replaced(options: Collection[str]) -> tuple[str, ...]:
    """Return those of Liger's options that are used: the norm and a gated MLP, or neither."""
    mlps = tuple(name for name in _MLPS if name in options)
    return (_NORM, *mlps) if mlps and _NORM in options else ()
