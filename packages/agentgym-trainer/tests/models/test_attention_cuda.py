"""Tests of the model's CUDA branches without a GPU: shapes, dtypes and devices, with every attention kernel."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from agentgym_trainer.algorithms.types import ModelOutputs
from agentgym_trainer.models import attention
from agentgym_trainer.models.attention import KERNELS, SDPA, VARLEN, Segments
from agentgym_trainer.models.lm_head import unrounded_logits
from agentgym_trainer.models.policy import PolicyModel, ValueHead
from fake_cuda import CUDA, fake_cuda, gradients
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2Config, Qwen2ForCausalLM

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
LENGTHS = (5, 7, 4)


@pytest.fixture(autouse=True)
def dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes in which the fused kernels are called; flash-attn is a replacement with its signature."""
    called: list[torch.dtype] = []

    def check(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, bounds_k: Tensor, *longest: int) -> None:
        assert (q.shape, k.shape, v.shape) == ((16, 4, 16), (16, 2, 16), (16, 2, 16))
        assert {x.device for x in (q, k, v, bounds, bounds_k)} == {CUDA}
        assert (bounds.dtype, longest) == (torch.int32, (7, 7))
        called.extend({q.dtype, k.dtype, v.dtype})

    def varlen(*args: Any, **options: Any) -> Any:
        check(*args)
        return varlen_attn(*args, **options)

    def flash_attn_varlen_func(*args: Any, softmax_scale: float, causal: bool) -> Tensor:
        check(*args)
        assert (softmax_scale, causal) == (0.25, True)
        return args[0] + (args[1] + args[2]).repeat_interleave(2, 1)

    module = types.ModuleType("flash_attn")
    vars(module)["flash_attn_varlen_func"] = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    # Its length depends on values.
    monkeypatch.setattr(Segments, "returning", property(lambda self: self.bounds.new_zeros(16, dtype=torch.long)))
    return called


def _policy(name: str, dtype: torch.dtype, *, checkpointing: bool = False) -> PolicyModel:
    with CUDA:  # fake weights can't be moved
        model, critic = Qwen2ForCausalLM._from_config(Qwen2Config(**SHAPE), dtype=dtype), ValueHead(64)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    # The comparison of logits on construction needs values.
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("agentgym_trainer.models.policy._check_model", lambda _: None)
        return PolicyModel(model, attention=name, critic=critic).train()


def _score(policy: PolicyModel, *, autocast: bool) -> ModelOutputs:
    ids_T = torch.zeros(sum(LENGTHS), dtype=torch.long, device=CUDA)
    position_T = torch.cat([torch.arange(length, device=CUDA) for length in LENGTHS])
    before_M, target_M = ids_T[:6], ids_T[:6]
    with torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
        return policy(ids_T, position_T, LENGTHS, before_M, target_M)


def test_head_sizes_that_the_kernel_for_segments_refuses_have_another(dtypes: list[torch.dtype]) -> None:
    with fake_cuda():
        query, key = (torch.zeros(16, heads, 12, device=CUDA, dtype=torch.bfloat16) for heads in (4, 2))
        output = KERNELS[VARLEN](query, key, key, Segments(LENGTHS, CUDA), 0.25)
    assert (output.shape, output.dtype, dtypes) == (query.shape, torch.bfloat16, [])


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "checkpointing"])
def test_autocast_scores_and_gradients_are_float32_on_the_gpu(
    name: str, checkpointing: bool, dtypes: list[torch.dtype]
) -> None:
    with fake_cuda():
        policy = _policy(name, torch.float32, checkpointing=checkpointing)
        outputs = [output for output in _score(policy, autocast=True) if output is not None]
        found = gradients(outputs)
    assert [(output.shape, output.dtype, output.device) for output in outputs] == [((6,), torch.float32, CUDA)] * 3
    weights = dict(policy.named_parameters())
    assert {weights[name] for name in weights} == found.keys()
    for weight, grad in found.items():
        assert (grad.shape, grad.dtype, grad.device) == (weight.shape, torch.float32, CUDA)
    passes = 2 if checkpointing else 1
    assert dtypes == ([] if name == SDPA else [torch.bfloat16] * SHAPE["num_hidden_layers"] * passes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_without_autocast_are_float32(dtype: torch.dtype) -> None:
    for name in KERNELS if dtype == torch.bfloat16 else (SDPA,):
        with fake_cuda():
            policy = _policy(name, dtype)
            outputs = _score(policy, autocast=False)
        assert {(output.dtype, output.device) for output in outputs[:2]} == {(torch.float32, CUDA)}


@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_a_head_on_the_gpu_are_not_rounded(bias: bool) -> None:
    with fake_cuda():
        for dtype, autocast in ((torch.float32, True), (torch.bfloat16, False)):
            head = torch.nn.Linear(16, 64, bias=bias, device=CUDA, dtype=dtype)
            hidden = torch.zeros(1, 3, 16, device=CUDA, dtype=dtype)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                assert head(hidden).dtype == torch.bfloat16
                with unrounded_logits(head):
                    assert (head(hidden).dtype, head(hidden).shape) == (torch.float32, (1, 3, 64))
                assert head(hidden).dtype == torch.bfloat16
    on_cpu = torch.nn.Linear(16, 64, dtype=torch.bfloat16)
    with unrounded_logits(on_cpu):
        assert on_cpu(torch.zeros(1, 16, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_shared_heads_are_repeated_for_kernels_that_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[int, ...], bool]] = []

    def recording(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        calls.append((tuple(k.shape), options["enable_gqa"]))
        return scaled_dot_product_attention(q, k, v, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", recording)
    with fake_cuda():
        query, key = torch.zeros(16, 4, 16, device=CUDA), torch.zeros(16, 2, 16, device=CUDA)
        KERNELS[SDPA](query, key, key, Segments(LENGTHS, CUDA), 0.25)
    assert calls
    assert {(shape[1], grouped) for shape, grouped in calls} == {(4, False)}
    q, k, v = (torch.randn(1, heads, 5, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    repeated = (x.repeat_interleave(2, 1) for x in (k, v))
    shared = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(scaled_dot_product_attention(q, *repeated, is_causal=True), shared)
