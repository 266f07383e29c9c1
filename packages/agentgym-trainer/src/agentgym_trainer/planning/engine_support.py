"""Which models the vLLM engines can run and load new weights into: checked in a plan and before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.planning.shapes import find_config, number_of_experts

_VLLM = ("vllm", "vllm-server")
_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this."""


def check_engine_model(config: BaseConfig) -> None:
    """Check that the engine of a run can run the run's model, before anything is loaded.

    Raises:
        UsageError: It can't; the message says what to do.
    """
    if config.engine.kind not in _VLLM:
        return
    try:
        model = find_config(config)
    except UsageError:
        return  # loading the model explains better why it can't be found
    if experts := number_of_experts(model):
        raise UsageError(
            f"{config.model} ({model.model_type}) has {experts} experts per layer (mixture of experts), and the engine "
            f"{config.engine.kind} can't load new weights of experts. The engine transformers samples from such models "
            "with --engine.kind transformers, which is untested with large ones; or choose a dense model."
        )
    if problem := indivisible(config, model):
        split = largest_split(model, config.engine.tensor_parallel)
        raise UsageError(f"{problem} --engine.tensor-parallel {split} does.")


def indivisible(config: BaseConfig, model: Any) -> str:
    """Return a sentence if vLLM can't divide a model by `engine.tensor_parallel`, and otherwise an empty string.

    Args:
        config: The configuration of the run.
        model: The model's transformers configuration.
    """
    split = config.engine.tensor_parallel
    found = next(_indivisible(model, split), "") if config.engine.kind in _VLLM else ""
    return found and f"engine.tensor_parallel {split} doesn't divide the model's {found}."


def largest_split(model: Any, most: int) -> int:
    """Return the largest divisor of `most` by which vLLM can divide a model.

    Args:
        model: The model's transformers configuration.
        most: A number of GPUs, at least 1.
    """
    return next(n for n in range(most, 0, -1) if most % n == 0 and not next(_indivisible(model, n), None))


def _indivisible(model: Any, split: int) -> Iterator[str]:
    """Yield the numbers of a model that vLLM can't divide by `split`."""
    heads = model.num_attention_heads
    if heads % split:
        yield f"{heads} attention heads"
    keys = getattr(model, "num_key_value_heads", None) or heads
    if keys % split and split % keys:  # each GPU has several key heads, or several GPUs a copy of one
        yield f"{keys} key heads"
    width = getattr(model, "intermediate_size", None) or 0
    if width % split:
        yield f"intermediate size of {width}"
    padded = -(-model.vocab_size // _PADDING) * _PADDING
    if padded % split:
        yield f"vocabulary of {padded} tokens, padded to a multiple of {_PADDING}"
