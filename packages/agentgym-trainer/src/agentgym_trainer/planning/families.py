"""Shapes of common models, so that runs with them can be planned without network access.

The numbers are those of the models' `config.json` on the Hugging Face Hub. Base and instruct models of a size have the
same weights; the context may differ.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class _Size(NamedTuple):
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    tied: bool
    head_dim: int = 0
    vocab: int = 0


_QWEN25 = {
    "0.5B": _Size(896, 4_864, 24, 14, 2, tied=True),
    "1.5B": _Size(1_536, 8_960, 28, 12, 2, tied=True),
    "3B": _Size(2_048, 11_008, 36, 16, 2, tied=True),
    "7B": _Size(3_584, 18_944, 28, 28, 4, tied=False, vocab=152_064),
    "14B": _Size(5_120, 13_824, 48, 40, 8, tied=False, vocab=152_064),
    "32B": _Size(5_120, 27_648, 64, 40, 8, tied=False, vocab=152_064),
}
_QWEN3 = {
    "0.6B": _Size(1_024, 3_072, 28, 16, 8, tied=True, head_dim=128),
    "1.7B": _Size(2_048, 6_144, 28, 16, 8, tied=True, head_dim=128),
    "4B": _Size(2_560, 9_728, 36, 32, 8, tied=True, head_dim=128),
    "8B": _Size(4_096, 12_288, 36, 32, 8, tied=False, head_dim=128),
    "14B": _Size(5_120, 17_408, 40, 40, 8, tied=False, head_dim=128),
    "32B": _Size(5_120, 25_600, 64, 64, 8, tied=False, head_dim=128),
}
_LLAMA3 = {
    "1B": _Size(2_048, 8_192, 16, 32, 8, tied=True, head_dim=64),
    "3B": _Size(3_072, 8_192, 28, 24, 8, tied=True, head_dim=128),
    "8B": _Size(4_096, 14_336, 32, 32, 8, tied=False, head_dim=128),
}
_SMOLLM2 = {
    "135M": _Size(576, 1_536, 30, 9, 3, tied=True),
    "360M": _Size(960, 2_560, 32, 15, 5, tied=True),
    "1.7B": _Size(2_048, 8_192, 24, 32, 32, tied=True),
}


class _Family(NamedTuple):
    name: str
    """Regular expression of the model's name without its organization, with the size as a group."""
    sizes: dict[str, _Size]
    model_type: str
    vocab: int
    context: int
    other_context: tuple[str, int] = ("", 0)
    """Regular expression of the names with another context, and that."""


_FAMILIES = (
    _Family(r"Qwen2\.5-([\d.]+B)(-Instruct)?", _QWEN25, "qwen2", 151_936, 32_768, (r".*-(1\.5|7|14|32)B", 131_072)),
    _Family(r"Qwen3-([\d.]+B)(-Base)?", _QWEN3, "qwen3", 151_936, 40_960, (r".*-Base", 32_768)),
    _Family(
        r"(?:Meta-)?Llama-3(?:\.[12])?-([138]B)(-Instruct)?", _LLAMA3, "llama", 128_256, 131_072,
        (r".*Llama-3-.*", 8_192),
    ),
    _Family(r"SmolLM2-([\d.]+[MB])(-Instruct)?", _SMOLLM2, "llama", 49_152, 8_192),
)  # fmt: skip


def known_shape(name: str) -> dict[str, Any] | None:
    """Return the configuration of a model, with `model_type` and sizes, by its name on the hub; None if unknown."""
    name = name.rsplit("/", 1)[-1]
    for family in _FAMILIES:
        found = re.fullmatch(family.name, name, re.IGNORECASE)
        size = family.sizes.get(found[1].upper()) if found else None
        if size:
            others, other = family.other_context
            return {
                "model_type": family.model_type,
                "vocab_size": size.vocab or family.vocab,
                "hidden_size": size.hidden,
                "intermediate_size": size.intermediate,
                "num_hidden_layers": size.layers,
                "num_attention_heads": size.heads,
                "num_key_value_heads": size.key_heads,
                "head_dim": size.head_dim or size.hidden // size.heads,
                "tie_word_embeddings": size.tied,
                "max_position_embeddings": other if re.fullmatch(others, name, re.IGNORECASE) else family.context,
            }
    return None


def known_names() -> str:
    """Return the families and sizes that have a known shape, for messages."""
    names = ("Qwen2.5", "Qwen3", "Llama 3", "SmolLM2")
    return "; ".join(f"{name} {', '.join(family.sizes)}" for name, family in zip(names, _FAMILIES, strict=True))
