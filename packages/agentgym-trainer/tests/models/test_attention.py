from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models import attention
from agentgym_trainer.models.attention import (
    FLASH,
    KERNELS,
    SDPA,
    VARLEN,
    Segments,
    choose_attention,
    packed_inputs,
    partial_attention,
    use_attention,
)
from agentgym_trainer.tokens.chat import Chat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from toy_learner import VOCAB
from transformers import AttentionInterface, MistralConfig, Qwen2Config, Qwen2ForCausalLM

CPU = torch.device("cpu")
LENGTHS = (5, 17, 16, 1, 9, 40, 1, 12)


@pytest.fixture
def packed(new_model: Callable[..., Any]) -> Any:
    model = new_model().eval()
    use_attention(model, SDPA)
    return model


def _ids(lengths: Sequence[int], seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def _pack(ids: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    position = torch.cat([torch.arange(length) for length in lengths])
    return packed_inputs(ids, position, Segments(lengths, CPU))


def _plain(query: Tensor, key: Tensor, value: Tensor, bounds: Sequence[int]) -> Tensor:
    """Compute textbook attention: softmax over this and earlier tokens of the same segment."""
    queries_per_key = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(queries_per_key, 1) for x in (key, value))
    output = torch.empty_like(query)
    for start, end in pairwise(bounds):
        for t in range(start, end):
            scores = torch.einsum("hd,shd->hs", query[t], key[start : t + 1]) * query.shape[-1] ** -0.5
            output[t] = torch.einsum("hs,shd->hd", scores.softmax(-1), value[start : t + 1])
    return output


@settings(max_examples=12)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.sampled_from([(2, 2), (4, 2), (3, 1)]))
def test_grouped_attention_and_gradients_match_the_textbook(lengths: list[int], heads: tuple[int, int]) -> None:
    rng = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), n, 4, generator=rng, dtype=torch.float64).requires_grad_()
        for n in (heads[0], heads[1], heads[1])
    )
    segments = Segments(lengths, CPU)
    output = KERNELS[SDPA](q, k, v, segments, 0.5)
    expected = _plain(q, k, v, segments.bounds.tolist())
    torch.testing.assert_close(output, expected)
    direction = torch.randn(output.shape, generator=rng, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad(output, (q, k, v), direction),
        torch.autograd.grad(expected, (q, k, v), direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_packed_segments_equal_separate_forward_passes(packed: Any, model: Any) -> None:
    ids = _ids(LENGTHS)
    with torch.no_grad():
        packed_logits = packed(**_pack(ids, LENGTHS)).logits[0]
        separate_logits = torch.cat([model(part[None]).logits[0] for part in ids.split(LENGTHS)])
    torch.testing.assert_close(packed_logits, separate_logits, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_other_segments_do_not_affect_outputs(packed: Any, changed: int) -> None:
    ids = _ids(LENGTHS)
    modified = [part.clone() for part in ids.split(LENGTHS)]
    modified[changed] = 3 + (modified[changed] + 50) % (VOCAB - 3)
    with torch.no_grad():
        before = packed(**_pack(ids, LENGTHS)).logits[0].split(LENGTHS)
        after = packed(**_pack(torch.cat(modified), LENGTHS)).logits[0].split(LENGTHS)
    for segment, (logits, other_logits) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(logits, other_logits) == (segment != changed)


def test_other_segments_get_no_gradient(packed: Any) -> None:
    ids = _ids(LENGTHS)
    embedded = packed.get_input_embeddings()(ids)[None].detach().requires_grad_()
    inputs = _pack(ids, LENGTHS)
    del inputs["input_ids"]
    logits = packed(inputs_embeds=embedded, **inputs).logits[0].split(LENGTHS)
    gradient = torch.autograd.grad(logits[2].square().sum(), embedded)[0][0].split(LENGTHS)
    assert [bool(part.any()) for part in gradient] == [segment == 2 for segment in range(len(LENGTHS))]


def test_packed_inputs_without_segments_fail(packed: Any) -> None:
    inputs = _pack(_ids((3, 4)), (3, 4))
    del inputs["segments"]
    with pytest.raises(RuntimeError, match="must match"):
        packed(**inputs)


def test_unpacked_inputs_give_unchanged_outputs(packed: Any, model: Any) -> None:
    ids = torch.randint(3, VOCAB, (2, 9))
    padded = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    restarting = torch.cat([torch.arange(4), torch.arange(5)]).expand(2, -1)
    with torch.no_grad():
        for inputs in ({}, {"attention_mask": padded}, {"position_ids": restarting}):
            assert torch.equal(packed(ids, **inputs).logits, model(ids, **inputs).logits)


def test_engine_samples_the_same_with_packed_attention(packed: Any, model: Any, chat: Chat) -> None:
    async def sample(any_model: Any) -> list[Completion]:
        engine = transformers_engine(any_model, end_id=chat.end_id)
        requests = [engine.generate((5,) * (k + 1), SamplingParams(max_tokens=8, seed=k)) for k in range(4)]
        return await asyncio.gather(*requests)

    assert asyncio.run(sample(packed)) == asyncio.run(sample(model))


def test_sliding_window_attention_is_rejected() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="qwen2 has layers of sliding_attention, which can't read packed segments"):
        use_attention(Qwen2ForCausalLM(config), SDPA)


def test_unknown_attention_is_rejected(model: Any) -> None:
    with pytest.raises(ValueError, match="no attention 'packd'; there are: packed_sdpa, packed_varlen, packed_fa2"):
        use_attention(model, "packd")


@pytest.mark.parametrize("name", KERNELS)
def test_transformers_accepts_the_name_of_every_kernel(new_model: Callable[..., Any], name: str) -> None:
    model = new_model()
    use_attention(model, name)
    assert model.config._attn_implementation == name
    # Without segments, every implementation is transformers' SDPA.
    ids = _ids((7,))[None]
    torch.testing.assert_close(model(ids).logits, new_model()(ids).logits)


@pytest.mark.parametrize("name", KERNELS)
def test_options_without_kernel_support_are_rejected(name: str) -> None:
    q = torch.randn(1, 2, 3, 4)
    attend = AttentionInterface()[name]
    with pytest.raises(ValueError, match="uses softcap, which neither packed segments"):
        attend(torch.nn.Module(), q, q, q, None, segments=Segments((3,), CPU), softcap=30.0)


@pytest.mark.parametrize("name", [VARLEN, FLASH])
def test_fused_kernels_get_correct_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels need a GPU, so replacements compute their results."""

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, bounds_k: Tensor, *longest: int, **options: Any
    ) -> Tensor:
        assert torch.equal(bounds, bounds_k)
        assert bounds.dtype == torch.int32
        assert longest == (9, 9)
        assert options.pop("window_size", (-1, 0)) == (-1, 0)
        assert options.pop("causal", True) is options.pop("enable_gqa", True) is True
        assert list(options.values()) == [0.5]
        assert q.dtype == k.dtype == v.dtype == torch.bfloat16
        return _plain(q, k, v, bounds.tolist())

    module = types.ModuleType("flash_attn")
    vars(module)["flash_attn_varlen_func"] = varlen
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", create_autospec(varlen_attn, side_effect=varlen))
    lengths = (4, 9, 1)
    query, key, value = (torch.randn(1, n, sum(lengths), 4) for n in (4, 2, 2))
    # Under autocast, rotary embeddings leave query and key in float32.
    options: dict[str, Any] = {"segments": Segments(lengths, CPU), "scaling": 0.5, "sliding_window": None}
    output, weights = AttentionInterface()[name](torch.nn.Module(), query, key, value.bfloat16(), None, **options)
    expected, _ = AttentionInterface()[SDPA](torch.nn.Module(), query, key, value, None, **options)
    assert weights is None
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, atol=5e-2, rtol=5e-2)


def test_attention_depends_on_device_precision_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    assert choose_attention(CPU, "bf16") == SDPA
    assert choose_attention(cuda, "no") == SDPA
    for capability, installed, expected in (
        ((9, 0), "flash_attn", FLASH),
        ((9, 0), "another", VARLEN),
        ((7, 5), "flash_attn", SDPA),
    ):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device, value=capability: value)
        monkeypatch.setattr("importlib.util.find_spec", lambda name, value=installed: name == value or None)
        assert choose_attention(cuda, "bf16") == expected


def test_a_broken_flash_attn_is_named_before_training_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "flash_attn.py").write_text("raise OSError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert choose_attention(torch.device("cuda"), "bf16") == VARLEN
    assert "can't be imported (OSError: undefined symbol: _ZN3c10), so attention is torch's" in caplog.text


def test_shared_prefixes_give_the_same_outputs_and_gradients(new_model: Callable[..., Any]) -> None:
    # The second segment shares 6 tokens with the first, the third 9 with the second, the last nothing.
    ids, own = _ids((12,)).tolist(), _ids((30,), seed=1).tolist()
    segments = [ids, [*ids[:6], *own[:5]], [*ids[:6], *own[:3], *own[10:17]], own[17:24]]
    tokens = [*ids, *own[:5], *own[10:17], *own[17:24]]
    places = [[*range(12)], [*range(6), *range(12, 17)], [*range(6), 12, 13, 14, *range(17, 24)], [*range(24, 31)]]
    lengths = tuple(map(len, segments))
    assert [tokens[place] for row in places for place in row] == [token for segment in segments for token in segment]
    position = torch.cat([torch.arange(length) for length in lengths])
    place_F = torch.tensor([place for row in places for place in row])
    distinct = Segments(lengths, CPU, place_F)
    hidden: list[Tensor] = []
    gradients: list[list[Tensor]] = []
    for shared in (True, False):
        model = new_model()
        use_attention(model, SDPA)
        if shared:
            row = packed_inputs(torch.tensor(tokens), position[distinct.first], distinct)
            hidden.append(model.base_model(**row).last_hidden_state[0][place_F])
        else:
            row = packed_inputs(torch.tensor(tokens)[place_F], position, Segments(lengths, CPU))
            hidden.append(model.base_model(**row).last_hidden_state[0])
        weight = torch.linspace(-1, 1, hidden[-1].numel()).view_as(hidden[-1])
        gradients.append([*torch.autograd.grad((hidden[-1] * weight).sum(), [*model.base_model.parameters()])])
    torch.testing.assert_close(hidden[0], hidden[1], atol=1e-5, rtol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_layers_without_full_attention_are_found() -> None:
    small: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    assert partial_attention(MistralConfig(**small, sliding_window=8)) == ["sliding_attention"]
    assert partial_attention(MistralConfig(**small, sliding_window=None)) == []
    assert partial_attention(Qwen2Config(**small, sliding_window=8, use_sliding_window=False)) == []
    mixed = ["full_attention", "sliding_attention"]
    assert partial_attention(Qwen2Config(**small, layer_types=mixed)) == ["sliding_attention"]


@pytest.mark.parametrize("longest", [16, 1024])
def test_half_precision_on_a_cpu_is_close_to_float32(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    monkeypatch.setattr(attention, "_BLOCK", 8)
    monkeypatch.setattr(attention, "_LONGEST_IN_BLOCKS", longest)
    segments, generator = Segments(LENGTHS, CPU), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(LENGTHS), heads, 16, generator=generator) for heads in (6, 2, 2))
    rounded = [x.bfloat16() for x in (query, key, value)]
    calls: list[int] = []
    in_blocks = attention._causal_in_blocks
    monkeypatch.setattr(attention, "_causal_in_blocks", lambda *x: calls.append(1) or in_blocks(*x))
    expected = KERNELS[SDPA](*(x.float() for x in rounded), segments, 0.25)
    assert not calls
    torch.testing.assert_close(KERNELS[SDPA](*rounded, segments, 0.25).float(), expected, atol=0.03, rtol=0.03)
    assert len(calls) == len([group for group in segments.groups if len(group.place) <= longest * group.rows])
