"""Keys and values of many sequences, each with a length of its own, and attention over them.

Rows that are read into stand in front, so that attention works on a view and gathers nothing. Knows neither what the
tokens are nor who holds which row.
"""

from __future__ import annotations

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
"""The name that transformers knows this attention under."""

_ROOM = 64


class RaggedCache:
    """Keys and values of each layer, [rows, heads, positions, head size]."""

    def __init__(self, device: torch.device) -> None:
        """Begin without any room."""
        self.rows = 0
        self.positions = 0
        self.reading: Reading | None = None
        """The pass under way."""
        self._device = device
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, rows: int, positions: int) -> None:
        """Make room, keeping what is there."""
        if rows > self.rows or positions > self.positions:
            # Room to spare, so that a conversation which grows token by token doesn't copy at every token.
            self.rows = max(rows + rows // 4, self.rows) if rows > self.rows else self.rows
            self.positions = positions + positions // 2 + _ROOM if positions > self.positions else self.positions
            for layer, (keys, values) in self._layers.items():
                self._layers[layer] = self._grown(keys), self._grown(values)

    def swap(self, some: Sequence[int], others: Sequence[int], width: int) -> None:
        """Let pairs of rows, which hold at most `width` positions, change places."""
        new, old = ([*some, *others], [*others, *some])
        for tensor in self._tensors():
            tensor[new, :, :width] = tensor[old, :, :width]

    def copy(self, source: int, target: Span) -> None:
        """Give a row what another one has at the same positions."""
        row, start, stop = target
        for tensor in self._tensors():
            tensor[row, :, start:stop] = tensor[source, :, start:stop]

    def read(self, spans: Sequence[Span], twins: Sequence[Twin]) -> Reading:
        """Make ready for a forward pass, which hands the cache to its attention as `ragged`."""
        self.reading = Reading(spans, twins, self._device)
        return self.reading

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Keep the keys and values of the tokens that are read, and let these attend to what their rows hold.

        Args:
            layer: Number of the layer.
            query: [T, heads, head size].
            key: [T, key heads, head size].
            value: Likewise.
            scale: Of the scores.

        Returns:
            What each token saw, [T, heads, head size].
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
            room = (self.rows, key.shape[1], self.positions, key.shape[2])
            self._layers[layer] = key.new_zeros(room), value.new_zeros(room)
        keys, values = self._layers[layer]
        row_P, position_P = reading.place_P
        for tensor, new in ((keys, key), (values, value)):
            tensor[row_P, :, position_P] = new if reading.token_P is None else new.index_select(0, reading.token_P)
        return keys, values

    def _tensors(self) -> list[Tensor]:
        return [tensor for layer in self._layers.values() for tensor in layer]

    def _grown(self, tensor: Tensor) -> Tensor:
        rows, heads, positions, size = tensor.shape
        grown = tensor.new_empty(self.rows, heads, self.positions, size)
        grown[:rows, :, :positions] = tensor
        # What isn't written yet is multiplied by 0, and must be a number.
        grown[rows:] = 0
        grown[:rows, :, positions:] = 0
        return grown


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float) -> Tensor:
    """SDPA; heads that share a key head become tokens of it, so that keys and values aren't repeated.

    Args:
        query: [rows, tokens, heads, head size].
        key: [rows, key heads, keys, head size].
        value: Likewise.
        seen: bool [rows, 1, tokens, keys].
        scale: Of the scores.

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
    """As transformers calls it: [1, heads, tokens, head size] in, [1, tokens, heads, head size] out."""
    if ragged is None:
        raise ValueError(
            "The model doesn't hand on to its attention what it is called with, so the transformers engine can't "
            "sample from it; choose a model such as Qwen2.5 or Llama 3."
        )
    refuse_unusual(options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    # Under autocast the rotary embedding leaves query and key in float32.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return ragged.attend(module.layer_idx, q, k, v, scale)[None], None


AttentionInterface.register(RAGGED, _attention)
AttentionMaskInterface.register(RAGGED, sdpa_mask)
