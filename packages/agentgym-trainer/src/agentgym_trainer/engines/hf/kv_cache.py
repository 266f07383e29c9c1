"""The KV cache of many sequences with individual lengths, and attention over it.

The rows that a pass reads come first, so that attention works on a view and gathers nothing. The cache depends neither
on the tokens nor on the assignment of rows to sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from agentgym_trainer.engines.hf.forward_plan import Reading, Span, Twin
from agentgym_trainer.models.attention import refuse_unusual

RAGGED = "ragged_sdpa"
"""Name under which this attention is registered with transformers."""

_HEADROOM = 64


class RaggedCache:
    """Keys and values of each layer, [rows, heads, positions, head size]."""

    def __init__(self, device: torch.device, *, most: float = math.inf) -> None:
        """Start with zero rows and positions. The cache grows by more than `most` rows only if they are needed."""
        self.rows = 0
        self.positions = 0
        self.reading: Reading | None = None
        """The plan of the current forward pass."""
        self._device, self._most = device, most
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, rows: int, positions: int) -> None:
        """Grow to at least this size, and keep the contents of the first `rows` rows.

        Longer rows get no more of them than are needed: a cache that was wide for many short sequences would otherwise
        stay so for long ones.
        """
        if rows <= self.rows and positions <= self.positions:
            return
        self.rows = max(rows, int(min(rows + rows // 4, self._most))) if rows > self.rows else rows
        self.positions = self.positions_for(positions)
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = self._resized(keys), self._resized(values)

    def positions_for(self, needed: int) -> int:
        """Return how many positions rows will have when one needs this many.

        It is more than needed, so that a sequence that grows token by token isn't copied at every token.
        """
        return self.positions if needed <= self.positions else needed + needed // 4 + _HEADROOM

    def swap(self, some: Sequence[int], others: Sequence[int], width: int) -> None:
        """Swap pairs of rows that hold at most `width` positions."""
        new, old = ([*some, *others], [*others, *some])
        for tensor in self._tensors():
            tensor[new, :, :width] = tensor[old, :, :width]

    def copy(self, source: int, target: Span) -> None:
        """Copy the keys and values of a row to the same positions of another one."""
        row, start, stop = target
        for tensor in self._tensors():
            tensor[row, :, start:stop] = tensor[source, :, start:stop]

    def read(self, spans: Sequence[Span], twins: Sequence[Twin]) -> Reading:
        """Plan a forward pass, which must pass the cache to its attention as `ragged`."""
        self.reading = Reading(spans, twins, self._device)
        return self.reading

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the keys and values of the current tokens, and let the tokens attend to their rows.

        Args:
            layer: Number of the layer.
            query: [T, heads, head size].
            key: [T, key heads, head size].
            value: [T, key heads, head size].
            scale: Factor of the attention scores.

        Returns:
            The attention output of each token, [T, heads, head size].
        """
        reading = self.reading
        assert reading is not None
        keys, values = self._written(layer, key, value, reading)
        n = reading.rows
        k, v = (tensor[:n, :, : reading.width] for tensor in (keys, values))
        calls = [_attend(query[:n, None], k, v, reading.seen, scale)]
        for rows, token_GM, seen in reading.groups:
            k, v = (tensor[rows, :, : seen.shape[-1]] for tensor in (keys, values))
            calls.append(_attend(query[token_GM], k, v, seen, scale))
        if reading.outcome_T is None:
            return calls[0][:, 0]
        return torch.cat([call.flatten(0, 1) for call in calls]).index_select(0, reading.outcome_T)

    def _written(self, layer: int, key: Tensor, value: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            shape = (self.rows, key.shape[1], self.positions, key.shape[2])
            self._layers[layer] = key.new_zeros(shape), value.new_zeros(shape)
        keys, values = self._layers[layer]
        row_P, position_P = reading.place_P
        for tensor, new in ((keys, key), (values, value)):
            tensor[row_P, :, position_P] = new if reading.token_P is None else new.index_select(0, reading.token_P)
        return keys, values

    def _tensors(self) -> list[Tensor]:
        return [tensor for layer in self._layers.values() for tensor in layer]

    def _resized(self, tensor: Tensor) -> Tensor:
        rows, positions = min(tensor.shape[0], self.rows), tensor.shape[2]
        resized = tensor.new_empty(self.rows, tensor.shape[1], self.positions, tensor.shape[3])
        resized[:rows, :, :positions] = tensor[:rows]
        # Masked values are multiplied by 0, so uninitialized memory must not hold NaN or infinity.
        resized[rows:] = 0
        resized[:rows, :, positions:] = 0
        return resized


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Scaled dot-product attention; query heads that share a key head are folded into its tokens (no repeated keys).

    Args:
        query: [rows, tokens, heads, head size].
        key: [rows, key heads, keys, head size].
        value: [rows, key heads, keys, head size].
        seen: bool [rows, 1, tokens, keys].
        scale: Factor of the attention scores.

    Returns:
        [rows, tokens, heads, head size].
    """
    tokens, shared = query.shape[1], query.shape[2] // key.shape[1]
    q = query.unflatten(2, (-1, shared)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    if tokens > 1 and shared > 1:
        seen = seen[:, :, None].expand(-1, -1, shared, -1, -1).flatten(2, 3)
    out = scaled_dot_product_attention(q, key, value, attn_mask=seen, scale=scale)
    return out.unflatten(2, (shared, tokens)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    ragged: RaggedCache | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: [1, heads, tokens, head size] in, [1, tokens, heads, head size] out."""
    if ragged is None:
        raise ValueError(
            "The model doesn't pass its keyword arguments on to its attention, so the transformers engine can't "
            "sample from it; choose a model such as Qwen2.5 or Llama 3."
        )
    refuse_unusual(options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    # Under autocast the rotary embedding leaves query and key in float32.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return ragged.attend(module.layer_idx, q, k, v, scale)[None], None


AttentionInterface.register(RAGGED, _attention)
AttentionMaskInterface.register(RAGGED, sdpa_mask)
