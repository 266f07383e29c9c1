"""Attention over packed segments: several in one row, none of which sees another.

Registered with transformers under the names in `KERNELS`. Handed `segments`, an implementation attends within each of
them, causally; without, it is transformers' own SDPA, masks and caches included, so that one module serves learner and
engine. Knows nothing of what the segments are.
"""

from __future__ import annotations

import importlib.util
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

SDPA, VARLEN, FLASH = "packed_sdpa", "packed_varlen", "packed_flash_attn"

_ALIKE = 0.75
"""Segments this much as long as the longest of their group are computed with it: less, and squares of padding cost
more than another call does."""


class _Group(NamedTuple):
    """Segments of similar length, laid out in rows as long as the longest."""

    rows: int
    place: Tensor
    """Where in the pack the tokens of the rows stand, flat; behind a segment's end its last token is repeated."""
    real: Tensor
    """Which of them aren't repeated, bool."""


class Segments:
    """Where the segments of a row begin and end, in the forms that the kernels want."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        """Segments of these many tokens each, end to end."""
        self.lengths = tuple(lengths)
        self._device = device

    @cached_property
    def bounds(self) -> Tensor:
        """Where each segment starts, and at the end the number of tokens, int32."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self._device)

    @cached_property
    def groups(self) -> list[_Group]:
        """All segments, those of similar length together."""
        starts = [0, *accumulate(self.lengths)]
        groups: list[list[int]] = []
        for segment in sorted(range(len(self.lengths)), key=lambda s: -self.lengths[s]):
            if not groups or self.lengths[segment] < _ALIKE * self.lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(segment)
        return [self._group([(starts[s], self.lengths[s]) for s in group]) for group in groups]

    @cached_property
    def returning(self) -> Tensor:
        """Where in the groups' rows, end to end, each token of the pack stands, int64."""
        place = torch.cat([group.place for group in self.groups])
        where = torch.cat([group.real for group in self.groups]).nonzero()[:, 0]
        return torch.empty_like(where).index_copy_(0, place[where], where)

    def _group(self, segments: Sequence[tuple[int, int]]) -> _Group:
        start, length = torch.tensor(segments, device=self._device).T[..., None]
        column = torch.arange(segments[0][1], device=self._device)
        place = start + torch.minimum(column, length - 1)
        return _Group(len(segments), place.flatten(), (column < length).flatten())


def packed_inputs(ids_T: Tensor, position_T: Tensor, segments: Segments) -> dict[str, Any]:
    """What a transformers model is called with to read one row of segments."""
    return {
        "input_ids": ids_T[None],
        "position_ids": position_T[None],
        # Keeps transformers from making a T x T mask. It fits no row: a model that doesn't hand `segments` on to its
        # attention fails instead of attending across them.
        "attention_mask": torch.ones(1, 1, 0, 0, dtype=torch.bool, device=ids_T.device),
        "segments": segments,
        "use_cache": False,
    }


def choose_attention(device: torch.device, precision: str = "no") -> str:
    """The fastest implementation there is for a device and accelerate's mixed precision; a name in `KERNELS`.

    The fused kernels compute in half precision only, from Ampere on: flash-attn's where the package is installed, else
    torch's own.
    """
    if device.type != "cuda" or precision == "no" or torch.cuda.get_device_capability(device) < (8, 0):
        return SDPA
    return FLASH if importlib.util.find_spec("flash_attn") else VARLEN


def use_attention(model: Any, name: str) -> None:
    """Let `model` read packed segments with this implementation.

    Raises:
        ValueError: when the implementation doesn't exist, or the model attends in another way than causally over
            everything.
    """
    if name not in KERNELS:
        raise ValueError(f"There is no attention {name!r}; there are: {', '.join(KERNELS)}.")
    kinds = set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}
    if kinds:
        raise ValueError(
            f"{model.config.model_type} has layers of {', '.join(sorted(kinds))}, which can't read packed segments; "
            "choose a model with full attention, such as Qwen2.5 or Llama 3."
        )
    model.set_attn_implementation(name)


def _grouped_sdpa(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """SDPA group by group. Under a causal mask what is repeated behind a segment's end is seen by nothing real."""
    shared = query.shape[1] != key.shape[1]
    outputs: list[Tensor] = []
    for group in segments.groups:
        rows = (x.index_select(0, group.place).unflatten(0, (group.rows, -1)) for x in (query, key, value))
        q, k, v = (x.transpose(1, 2) for x in rows)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shared)
        outputs.append(seen.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, segments.returning)


def _varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = segments.bounds, max(segments.lengths)
    shared = query.shape[1] != key.shape[1]
    seen: Any = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=shared
    )
    return seen


def _flash(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    flash_attn: Any = importlib.import_module("flash_attn")
    bounds, longest = segments.bounds, max(segments.lengths)
    return flash_attn.flash_attn_varlen_func(
        query, key, value, bounds, bounds, longest, longest, softmax_scale=scale, causal=True
    )


Kernel = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]
"""Query, key, value [T, heads, head size], segments and the scale of scores to what was seen [T, heads, head size]."""

KERNELS: dict[str, Kernel] = {SDPA: _grouped_sdpa, VARLEN: _varlen, FLASH: _flash}
"""By the name that transformers knows them under."""


def _implementation(kernel: Kernel) -> Callable[..., tuple[Tensor, None]]:
    """The kernel as transformers calls it: [batch, heads, tokens, head size] in, [batch, tokens, heads, ...] out."""

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
        return kernel(q, k, v, segments, scale)[None], None

    return attend


def refuse_unusual(options: dict[str, Any]) -> None:
    """Refuse what a model hands to its attention, and ours leaves out.

    Raises:
        ValueError: when it does more than attending causally over everything.
    """
    for name in ("sliding_window", "softcap", "s_aux", "position_bias", "dropout"):
        if options.get(name):
            raise ValueError(
                f"The model's attention asks for {name}, which packed segments don't have, nor has the engine's "
                "cache; choose a model with plain causal attention, such as Qwen2.5 or Llama 3."
            )


for _name, _kernel in KERNELS.items():
    AttentionInterface.register(_name, _implementation(_kernel))
    AttentionMaskInterface.register(_name, sdpa_mask)
