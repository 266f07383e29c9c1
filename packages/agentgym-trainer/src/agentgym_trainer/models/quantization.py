"""Frozen weights in 4 bits under a LoRA adapter (QLoRA; Dettmers et al. 2023, arXiv 2305.14314), by bitsandbytes.

The initial model of a run is saved with its linear layers rounded to NF4. To quantize rounded weights again changes no
bit of them, so the learner's 4-bit weights, the 16-bit weights of an engine and those of the merged final model are the
same numbers, and only the learner needs bitsandbytes. The paper's double quantization isn't used: it would save 0.37
bits per weight, but it rounds the scales of blocks anew each time.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from agentgym_envs.util.installation import install
from agentgym_eval.util.errors import UsageError
from torch import nn

from agentgym_trainer.config import Lora

EXTRA = "qlora"
BLOCK = 64
"""Weights that share a scale."""
BYTES_PER_WEIGHT = 0.5 + 4 / BLOCK
"""Bytes of a quantized weight with its share of the float32 scale of its block."""
_KIND = "nf4"
_PACKAGE = "bitsandbytes"


def check_quantization(lora: Lora) -> None:
    """Check that a run can quantize its frozen weights, if it is to, before anything is loaded.

    Args:
        lora: The adapter.

    Raises:
        UsageError: It can't; the message says what to do.
    """
    if lora.quantize != "off" and find_spec(_PACKAGE) is None:
        raise UsageError(
            f"lora.quantize {lora.quantize} needs the package {_PACKAGE}, which isn't installed: "
            f"{install(f'agentgym-trainer[{EXTRA}]')}"
        )


def quantization_config(compute: torch.dtype) -> Any:
    """Return the configuration with which transformers quantizes linear layers while it loads a model.

    Args:
        compute: The data type that the layers compute in.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=_KIND,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_use_double_quant=False,
    )


def keep_layout(model: Any) -> None:
    """Keep the layers of a quantized model in the layout in which they train.

    On a CPU with AVX512-BF16, a pass in eval mode would convert them to one for inference: its results differ, and the
    next backward pass would fail.
    """
    from bitsandbytes.nn.modules import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def round_to_nf4(model: Any, *, dtype: torch.dtype, device: torch.device) -> None:
    """Convert a model to a data type and round the weights of its linear layers to NF4, in place.

    Args:
        model: A Hugging Face model.
        dtype: The data type in which the model will be loaded to be quantized: the scales of blocks depend on it.
        device: Where to compute; weights stay where they are.

    Raises:
        UsageError: See `check_layers`.
    """
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    check_layers(model)
    model.to(dtype)
    for layer in linear_layers(model):
        whole = layer.weight.to(device).contiguous()
        quantized, state = quantize_4bit(whole, blocksize=BLOCK, compress_statistics=False, quant_type=_KIND)
        layer.weight.copy_(dequantize_4bit(quantized, state))


def check_layers(model: Any) -> None:
    """Check that the layers of a model can be quantized.

    Raises:
        UsageError: Some are convolutions, or have rows that end within a block: bitsandbytes 0.50 dequantizes these
            wrongly on CPUs.
    """
    from transformers.pytorch_utils import Conv1D

    kind = model.config.model_type
    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise UsageError(
            f"lora.quantize {_KIND} is for linear layers, and those of {kind} are convolutions (Conv1D); choose a "
            "model such as Qwen2.5 or Llama 3."
        )
    if widths := sorted({layer.in_features for layer in linear_layers(model) if layer.in_features % BLOCK}):
        raise UsageError(
            f"lora.quantize {_KIND} needs linear layers whose numbers of inputs are multiples of {BLOCK}, and this "
            f"{kind} has {', '.join(map(str, widths))}; choose another model, or leave lora.quantize off."
        )


def linear_layers(model: Any) -> list[nn.Linear]:
    """Return the layers of a model that are quantized: all linear ones but the language-model head."""
    head = model.get_output_embeddings()
    return [module for module in model.modules() if type(module) is nn.Linear and module is not head]
