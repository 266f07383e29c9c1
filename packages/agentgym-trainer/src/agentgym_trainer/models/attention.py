"""Attention over packed segments: several segments in one row, without attention between them.

The implementations are registered with transformers under the names in `KERNELS`. With `segments`, an implementation
attends causally within each segment. Without, it is transformers' own SDPA, including masks and caches, so the learner
and the engine can share a module.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

_log = logging.getLogger(__name__)

# transformers takes any name that contains "flash" for one of its own implementations and fails to find it.
SDPA, VARLEN, FLASH = "packed_sdpa", "packed_varlen", "packed_fa2"

_ALIKE = 0.75
"""Minimum length of a segment in a group, relative to the longest. Below this, the quadratic cost of padding exceeds
that of another kernel call."""

_ALIGNED = 8
"""Divisor of head sizes of torch's kernel for segments; `scaled_dot_product_attention` and flash-attn pad others."""

_BLOCK = 128
"""Queries per matrix product of `_causal_in_blocks`."""

_LONGEST_IN_BLOCKS = 1024
"""Longest segment for which `_causal_in_blocks` is used; its memory is quadratic in the number of tokens."""


class _Group(NamedTuple):
    """Segments of similar length, in rows padded to the longest."""

    rows: int
    place: Tensor
    """Position in the pack of each token of the rows, flattened; a segment is padded by repeating its last token."""
    real: Tensor
    """Mask of tokens that aren't padding, bool."""


class Segments:
    """The boundaries of the segments of a row, in the formats that the kernels need."""

    def __init__(self, lengths: Sequence[int], device: torch.device, place_F: Tensor | None = None) -> None:
        """Describe segments.

        Args:
            lengths: Number of tokens of each segment, F in all.
            device: The device of the model's inputs.
            place_F: Position in the row of each token of the concatenated segments, int64, if segments share tokens of
                a common prefix: each of the row's tokens occurs, the first time in ascending order. None if the row is
                the concatenation of the segments.
        """
        self.lengths = tuple(lengths)
        self.place_F = place_F
        self._device = device

    @cached_property
    def first(self) -> Tensor:
        """Index into F of the first occurrence of each token of the row, int64; only for shared tokens."""
        assert self.place_F is not None
        highest = self.place_F.cummax(0).values
        return (self.place_F > torch.cat([highest.new_full((1,), -1), highest[:-1]])).nonzero()[:, 0]

    @cached_property
    def bounds(self) -> Tensor:
        """Cumulative lengths: the start of each segment, then the number of tokens, int32."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self._device)

    @cached_property
    def groups(self) -> list[_Group]:
        """All segments, grouped by similar length."""
        starts = [0, *accumulate(self.lengths)]
        groups: list[list[int]] = []
        for segment in sorted(range(len(self.lengths)), key=lambda s: -self.lengths[s]):
            if not groups or self.lengths[segment] < _ALIKE * self.lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(segment)
        return [self._group([(starts[s], self.lengths[s]) for s in group]) for group in groups]

    @cached_property
    def returning(self) -> Tensor:
        """Index of each token of the pack in the concatenated rows of the groups, int64."""
        place = torch.cat([group.place for group in self.groups])
        index = torch.cat([group.real for group in self.groups]).nonzero()[:, 0]
        return torch.empty_like(index).index_copy_(0, place[index], index)

    def _group(self, segments: Sequence[tuple[int, int]]) -> _Group:
        start, length = torch.tensor(segments, device=self._device).T[..., None]
        column = torch.arange(segments[0][1], device=self._device)
        place = start + torch.minimum(column, length - 1)
        return _Group(len(segments), place.flatten(), (column < length).flatten())


def packed_inputs(ids_T: Tensor, position_T: Tensor, segments: Segments) -> dict[str, Any]:
    """Return the keyword arguments of a transformers model for one row of segments."""
    return {
        "input_ids": ids_T[None],
        "position_ids": position_T[None],
        # Keeps transformers from making a T x T mask. Its shape is invalid for any row, so a model that doesn't pass
        # `segments` on to its attention fails instead of attending across segments.
        "attention_mask": torch.ones(1, 1, 0, 0, dtype=torch.bool, device=ids_T.device),
        "segments": segments,
        "use_cache": False,
    }


def choose_attention(device: torch.device, precision: str = "no") -> str:
    """Return the name in `KERNELS` of the fastest implementation for a device and accelerate's mixed precision.

    The fused kernels need half precision and Ampere or newer: flash-attn's if the package works, else torch's.
    """
    if device.type != "cuda" or precision == "no" or torch.cuda.get_device_capability(device) < (8, 0):
        return SDPA
    if importlib.util.find_spec("flash_attn") is None:
        return VARLEN
    try:
        importlib.import_module("flash_attn")
    except Exception as error:  # noqa: BLE001 - a wrong build fails in many ways
        _log.warning(
            "flash-attn is installed, but can't be imported (%s: %s), so attention is torch's. Build it for this "
            "version of torch, or uninstall it; `agentgym doctor` tries to import it.",
            type(error).__name__,
            error,
        )
        return VARLEN
    return FLASH


def use_attention(model: Any, name: str) -> None:
    """Set the attention implementation of `model` to one for packed segments.

    Raises:
        ValueError: The implementation doesn't exist, or the model has layers without full causal attention.
    """
    if name not in KERNELS:
        raise ValueError(f"There is no attention {name!r}; there are: {', '.join(KERNELS)}.")
    if kinds := partial_attention(model.config):
        raise ValueError(
            f"{model.config.model_type} has layers of {', '.join(kinds)}, which can't read packed segments; "
            "choose a model with full attention, such as Qwen2.5 or Llama 3."
        )
    model.set_attn_implementation(name)


def partial_attention(config: Any) -> list[str]:
    """Return the kinds of layers of a transformers configuration that don't have full attention, sorted."""
    kinds = set(getattr(config, "layer_types", None) or ())
    # Configurations such as those of Mistral and Phi-3 don't list their layers.
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        kinds = {"sliding_attention"}
    return sorted(kinds - {"full_attention"})


def _grouped_sdpa(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """Attention group by group. Under a causal mask, no real token attends to the padding after a segment's end."""
    outputs: list[Tensor] = []
    for group in segments.groups:
        rows = (x.index_select(0, group.place).unflatten(0, (group.rows, -1)) for x in (query, key, value))
        q, k, v = (x.transpose(1, 2) for x in rows)
        if query.is_cpu and query.dtype != torch.float32 and q.shape[2] <= _LONGEST_IN_BLOCKS:
            output = _causal_in_blocks(q, k, v, scale)
        else:
            shared = query.shape[1] // key.shape[1]
            if query.is_cuda and shared > 1:
                # Of the kernels for float32 and for older GPUs, only the one with quadratic memory shares heads.
                k, v, shared = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1), 1
            output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shared > 1)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, segments.returning)


def _causal_in_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention as matrix products, for half precision on a CPU.

    There, forward and backward are 1.6 (1,024 tokens) to 3.9 times (128 tokens) as fast as torch's fused kernel
    (`benchmarks/cpu_llm.py`). The attention weights are stored for the backward pass.

    Args:
        query: [rows, heads, tokens, head size].
        key: [rows, key heads, tokens, head size].
        value: [rows, key heads, tokens, head size].
        scale: Factor of the attention scores.
    """
    key_heads, shared = key.shape[1], query.shape[1] // key.shape[1]
    outputs: list[Tensor] = []
    for q in (query * scale).split(_BLOCK, 2):
        tokens, end = q.shape[2], sum(output.shape[2] for output in outputs) + q.shape[2]
        future = q.new_full((tokens, end), -torch.inf).triu(end - tokens + 1)
        scores = q.unflatten(1, (key_heads, shared)).flatten(2, 3) @ key[:, :, :end].transpose(-1, -2)
        weights = torch.softmax(scores.unflatten(2, (shared, tokens)) + future, -1)
        output = weights.flatten(2, 3) @ value[:, :, :end]
        outputs.append(output.unflatten(2, (shared, tokens)).flatten(1, 2))
    return torch.cat(outputs, 2)


def _varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if query.shape[2] % _ALIGNED:
        return _grouped_sdpa(query, key, value, segments, scale)
    bounds, longest = segments.bounds, max(segments.lengths)
    grouped_query = query.shape[1] != key.shape[1]
    output: Any = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=grouped_query
    )
    return output


def _flash(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    flash_attn: Any = importlib.import_module("flash_attn")
    bounds, longest = segments.bounds, max(segments.lengths)
    return flash_attn.flash_attn_varlen_func(
        query, key, value, bounds, bounds, longest, longest, softmax_scale=scale, causal=True
    )


Kernel = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]
"""Maps query, key and value [F, heads, head size] of the concatenated segments, the segments and the softmax scale to
outputs [F, heads, head size]."""

KERNELS: dict[str, Kernel] = {SDPA: _grouped_sdpa, VARLEN: _varlen, FLASH: _flash}
"""Kernels by the names that they are registered under with transformers."""


def _implementation(kernel: Kernel) -> Callable[..., tuple[Tensor, None]]:
    """Wrap a kernel for transformers: [batch, heads, tokens, head size] in, [batch, tokens, heads, ...] out."""

    def attend(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        segments: Segments | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if segments is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        refuse_unusual(options)
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        # Under autocast the rotary embedding leaves query and key in float32.
        q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
        if segments.place_F is None:
            return kernel(q, k, v, segments, scale)[None], None
        q, k, v = (x.index_select(0, segments.place_F) for x in (q, k, v))
        return kernel(q, k, v, segments, scale).index_select(0, segments.first)[None], None

    return attend


class UnsupportedAttention(ValueError):
    """The model needs more than plain causal attention."""


def refuse_unusual(options: dict[str, Any]) -> None:
    """Refuse attention options that these implementations don't support.

    Raises:
        UnsupportedAttention: The model needs one of them.
    """
    for name in ("sliding_window", "softcap", "s_aux", "position_bias", "dropout"):
        if options.get(name):
            raise UnsupportedAttention(
                f"The model's attention uses {name}, which neither packed segments nor the engine's cache support; "
                "choose a model with plain causal attention, such as Qwen2.5 or Llama 3."
            )


for _name, _kernel in KERNELS.items():
    AttentionInterface.register(_name, _implementation(_kernel))
    AttentionMaskInterface.register(_name, sdpa_mask)


def exclude_from_compilation() -> None:
    """Make torch.compile run these implementations as they are, between the parts of a layer that it compiles."""
    for name, kernel in KERNELS.items():
        AttentionInterface.register(name, torch.compiler.disable(_implementation(kernel)))
