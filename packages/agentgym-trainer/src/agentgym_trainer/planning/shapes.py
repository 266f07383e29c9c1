"""The shapes of a model: its configuration by name or path, and the number of weights of its parts.

Configurations come from a local folder, the local cache of the Hugging Face Hub, the table in `families`, or the hub,
in this order. Nothing is read but `config.json`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from agentgym_eval.util.errors import UsageError
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym_trainer.config import BaseConfig, Lora
from agentgym_trainer.models.load import base_of, is_adapter, with_lora
from agentgym_trainer.models.quantization import linear_layers
from agentgym_trainer.models.resolve import ON_HUB, SMOLLM2, reading, resolve_model
from agentgym_trainer.models.scratch import scratch_config
from agentgym_trainer.planning.families import known_names, known_shape

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Attributes of transformers configurations that have the number of experts."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The weights of a causal language model, all in numbers of elements."""

    config: Any
    """Its transformers configuration."""
    layers: int
    layer: int
    """Weights of one layer."""
    root: int
    """Weights outside of the layers: embeddings, head, last norm. Tied embeddings count once."""
    head: int
    """Weights of the head that are not the embeddings'."""
    largest: int
    """Weights of the largest tensor."""
    linear: int
    """Weights of the linear layers that can be quantized."""
    widest: int
    """Weights of the largest of these layers."""
    cache: int
    """Keys and values of a token in all layers."""
    key_heads: int
    """Key heads of a layer."""
    context: int
    """Maximum number of positions."""

    @property
    def weights(self) -> int:
        """All weights."""
        return self.layers * self.layer + self.root


def find_config(config: BaseConfig) -> Any:
    """Return the transformers configuration of the model that a run trains, without loading weights.

    Raises:
        UsageError: It can't be found; the message names the models that can be planned without network access.
    """
    if config.model == "scratch":
        return scratch_config(config.scratch, vocab=config.scratch.vocab)
    if is_adapter(config.model):
        return _by_name(base_of(config.model))
    return _by_name(config.model)


def _by_name(name: str) -> Any:
    if name == SMOLLM2:
        name = ON_HUB  # without converting the package's file
    path = resolve_model(name)
    if not Path(path).is_dir() and (shape := known_shape(path)):
        return AutoConfig.for_model(**shape)
    try:
        with reading(path):
            found = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The shapes of {name} aren't known here, so its memory can't be computed. There is no such folder, and "
            f"reading its config.json from the hub failed: {str(error).splitlines()[0]} Give the path of a folder with "
            f"its config.json. Known without network access are: {known_names()}."
        ) from error
    return found.get_text_config()


def number_of_experts(config: Any) -> int:
    """Return the number of experts per layer of a mixture of experts, from its transformers configuration; 0 for dense
    models.
    """
    found = [getattr(config, name, None) or 0 for name in _EXPERTS]
    return max(max(number) if isinstance(number, list) else number for number in found)  # a list has one per layer


def count_weights(config: Any) -> Shape:
    """Count the weights of a model from its transformers configuration.

    Raises:
        UsageError: transformers has no causal language model for the configuration, or it is a mixture of experts.
    """
    if experts := number_of_experts(config):
        raise UsageError(
            f"A plan can't be made for {config.model_type} with {experts} experts per layer: memory is only computed "
            "for dense models. Mixtures of experts train with --engine.kind transformers, which is untested with large "
            "ones; the vLLM engines can't load new weights of experts."
        )
    try:
        one, two = (_on_meta(config, layers) for layers in (1, 2))
    except ValueError as error:
        raise UsageError(f"The model can't be trained: {str(error).splitlines()[0]}") from error
    layer = _elements(two) - _elements(one)
    head = one.get_output_embeddings().weight
    counts = [[layer.weight.numel() for layer in linear_layers(model)] for model in (one, two)]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Shape(
        config,
        layers=config.num_hidden_layers,
        layer=layer,
        root=_elements(one) - layer,
        head=0 if head is one.get_input_embeddings().weight else head.numel(),
        largest=max(weight.numel() for weight in one.parameters()),
        linear=sum(counts[0]) + (config.num_hidden_layers - 1) * (sum(counts[1]) - sum(counts[0])),
        widest=max(counts[0], default=0),
        cache=2 * config.num_hidden_layers * key_heads * width,
        key_heads=key_heads,
        context=getattr(config, "max_position_embeddings", None) or 0,
    )


_adapters: dict[tuple[str, Lora], int] = {}
"""Counts by configuration: searching for settings that fit plans the same model dozens of times."""


def adapter_weights(config: Any, lora: Lora) -> int:
    """Return the number of weights of a model's LoRA adapters.

    Raises:
        UsageError: One of `lora.targets` is not a linear layer of the model.
    """
    key = (config.to_json_string(), lora)
    if key not in _adapters:
        one, two = (
            sum(weight.numel() for weight in with_lora(_on_meta(config, layers), lora, seed=0).parameters()
                if weight.requires_grad)
            for layers in (1, 2)
        )  # fmt: skip
        _adapters[key] = one + (config.num_hidden_layers - 1) * (two - one)
    return _adapters[key]


def build(config: Any, layers: int, dtype: torch.dtype) -> Any:
    """Build a model with fewer layers, on torch's current default device."""
    small = copy.deepcopy(config)
    kinds = getattr(small, "layer_types", None)
    small.num_hidden_layers = layers
    if kinds:
        small.layer_types = kinds[:layers]
    return AutoModelForCausalLM.from_config(small, dtype=dtype, attn_implementation="sdpa")


def _on_meta(config: Any, layers: int) -> Any:
    with torch.device("meta"):
        return build(config, layers, torch.float32)


def _elements(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())
