"""Tests of frozen weights in 4 bits: rounding, the learner's and the engines' log-probabilities, gradients, memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Lora
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import load_model, load_quantized, with_lora
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.quantization import (
    BYTES_PER_WEIGHT,
    linear_layers,
    round_to_nf4,
)
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.tokens.chat import Chat
from quantized_models import require_bitsandbytes, wide_model
from torch import Tensor
from toy_learner import VOCAB
from transformers import GPT2Config, GPT2LMHeadModel

require_bitsandbytes()

from bitsandbytes.nn import Linear4bit

CPU = torch.device("cpu")
IDS = torch.randint(3, VOCAB, (20,), generator=torch.Generator().manual_seed(0))
PACK = (IDS, torch.cat([torch.arange(12), torch.arange(8)]), (12, 8), torch.tensor([3, 4, 15]), IDS[[4, 5, 16]])
LORA = Lora(rank=4, quantize="nf4")


def _saved(model: Any, chat: Chat, folder: Path) -> str:
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def new_model(chat: Chat) -> Callable[..., Any]:
    """A function that builds a tiny model, whose layers are as wide as a block."""
    return lambda: wide_model(chat)


@pytest.fixture
def rounded(new_model: Callable[..., Any], chat: Chat, tmp_path: Path) -> Callable[[torch.dtype], str]:
    """A function that saves a model rounded to NF4 in a data type, and returns its folder."""

    def save(dtype: torch.dtype) -> str:
        model = new_model()
        round_to_nf4(model, dtype=dtype, device=CPU)
        return _saved(model, chat, tmp_path / str(dtype))

    return save


def _quantized(folder: str, dtype: torch.dtype) -> Any:
    return load_quantized(folder, dtype=dtype, compute=dtype, device=CPU)[0]


def _actor(folder: str, dtype: torch.dtype) -> PolicyModel:
    actor = PolicyModel(with_lora(_quantized(folder, dtype), LORA, seed=0))
    if dtype != torch.float32:
        actor.forward = torch.autocast("cpu", dtype)(actor.forward)
    return actor


def _train(actor: PolicyModel) -> None:
    optimizer = torch.optim.SGD([p for p in actor.parameters() if p.requires_grad], lr=1.0)
    for _ in range(3):
        actor.eval()
        _logp(actor)  # as the learner does before an update
        actor.train()
        actor(*PACK).logprobs_M.sum().neg().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _logp(actor: PolicyModel) -> Tensor:
    return actor(*PACK).logprobs_M


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantizing_rounded_weights_changes_no_bit(
    dtype: torch.dtype, rounded: Callable[[torch.dtype], str], new_model: Callable[..., Any]
) -> None:
    folder, before = rounded(dtype), new_model().to(dtype).state_dict()
    plain, _ = load_model(folder, dtype=dtype, device=CPU)
    weights = plain.state_dict()
    assert any(not torch.equal(weights[name], before[name]) for name in weights)
    again = new_model()
    again.load_state_dict(weights)
    round_to_nf4(again, dtype=dtype, device=CPU)
    assert all(torch.equal(weight, weights[name]) for name, weight in again.state_dict().items())
    layers = [name for name, module in _quantized(folder, dtype).named_modules() if isinstance(module, Linear4bit)]
    assert layers == [name for name, module in plain.named_modules() if module in linear_layers(plain)]
    assert layers
    with torch.no_grad():
        both = [PolicyModel(model.eval())(*PACK).logprobs_M for model in (plain, _quantized(folder, dtype))]
    torch.testing.assert_close(*both, atol=0, rtol=0)


def test_rounding_leaves_embeddings_norms_and_the_head(new_model: Callable[..., Any]) -> None:
    model = new_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    round_to_nf4(model, dtype=torch.float32, device=CPU)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if "proj" in name}
    for name in changed:
        blocks = before[name].view(-1, 64)
        error = (model.state_dict()[name].view(-1, 64) - blocks).abs().amax(1)
        # The widest gap between neighboring codes of NF4 is 0.31 of the largest weight of a block.
        assert (error <= 0.16 * blocks.abs().amax(1)).all()


def test_the_learner_trains_the_adapter_and_returns_to_its_reference(
    rounded: Callable[[torch.dtype], str],
) -> None:
    actor = _actor(rounded(torch.float32), torch.float32)
    frozen = {name: p.clone() for name, p in actor.named_parameters() if not p.requires_grad}
    assert sum(p.dtype == torch.uint8 for p in frozen.values()) == 14
    before = _logp(actor.eval())
    _train(actor)
    assert (_logp(actor.eval()) - before).abs().max() > 0.1
    with actor.without_adapter():
        assert torch.equal(_logp(actor), before)
    after = dict(actor.named_parameters())
    assert all(torch.equal(weight, after[name]) for name, weight in frozen.items())


def test_gradients_are_those_of_the_rounded_model(rounded: Callable[[torch.dtype], str]) -> None:
    folder, gradients = rounded(torch.float32), list[list[Tensor]]()
    plain, _ = load_model(folder, dtype=torch.float32, device=CPU)
    quantized = _quantized(folder, torch.float32)
    checkpointed = _quantized(folder, torch.float32)
    checkpointed.gradient_checkpointing_enable()
    for model in (plain, quantized, checkpointed):
        actor = PolicyModel(with_lora(model, LORA, seed=0)).train()
        trained = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        assert len(trained) == 28
        gradients.append(list(torch.autograd.grad(actor(*PACK).logprobs_M.sum(), trained)))
    assert any(gradient.any() for gradient in gradients[0])
    for other in gradients[1:]:
        for gradient, expected in zip(other, gradients[0], strict=True):
            torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_saved_adapter_merges_into_the_rounded_model(
    dtype: torch.dtype, tolerance: float, rounded: Callable[[torch.dtype], str], chat: Chat, tmp_path: Path
) -> None:
    actor = _actor(rounded(dtype), dtype)
    _train(actor)
    actor.policy.save_pretrained(tmp_path / "adapter")
    chat.tokenizer.save_pretrained(tmp_path / "adapter")
    merged, _ = load_model(str(tmp_path / "adapter"), dtype=torch.float32, device=CPU)
    assert not any(isinstance(module, Linear4bit) for module in merged.modules())
    torch.testing.assert_close(_logp(PolicyModel(merged.eval())), _logp(actor.eval()), atol=tolerance, rtol=0)


@pytest.mark.parametrize("own_copy", [False, True])
def test_the_engine_samples_with_the_quantized_weights(
    own_copy: bool, rounded: Callable[[torch.dtype], str], chat: Chat
) -> None:
    actor = _actor(rounded(torch.float32), torch.float32)
    _train(actor)
    engine = transformers_engine(actor.policy, end_id=chat.end_id, own_copy=own_copy)
    completion = asyncio.run(engine.generate(IDS[:6].tolist(), SamplingParams(max_tokens=8)))
    ids = torch.tensor([*IDS[:6].tolist(), *completion.ids])
    positions = torch.arange(6, len(ids))
    with torch.no_grad():
        logprobs = actor.eval()(ids, torch.arange(len(ids)), (len(ids),), positions - 1, ids[positions]).logprobs_M
    torch.testing.assert_close(torch.tensor(completion.logprobs), logprobs, atol=1e-5, rtol=1e-4)
    _train(actor)  # after sampling


def test_a_quantized_model_holds_as_few_bytes_as_planned(chat: Chat, tmp_path: Path) -> None:
    scratch = Scratch(vocab=VOCAB, hidden=256, layers=2, heads=4, context=64)
    model = build_model(scratch, vocab=VOCAB, end_id=2, pad_id=0, seed=0).to(torch.bfloat16)
    linear = sum(layer.weight.numel() for layer in linear_layers(model))
    rest = 2 * (sum(weight.numel() for weight in model.parameters()) - linear)
    quantized = _quantized(_saved(model, chat, tmp_path / "model"), torch.bfloat16)
    layers = [module for module in quantized.modules() if isinstance(module, Linear4bit)]
    held = sum(weight.nbytes for weight in quantized.parameters())
    held += sum(layer.weight.quant_state.absmax.nbytes for layer in layers)
    assert held == rest + BYTES_PER_WEIGHT * linear
    assert 3.5 < 2 * linear / (held - rest) < 3.6


def test_layers_that_cant_be_quantized_are_refused() -> None:
    convolutions = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(UsageError, match=r"gpt2 are convolutions .* choose a model such as Qwen2.5"):
        round_to_nf4(convolutions, dtype=torch.float32, device=CPU)
    scratch = Scratch(vocab=VOCAB, hidden=80, layers=1, heads=2)
    narrow = build_model(scratch, vocab=VOCAB, end_id=2, pad_id=0, seed=0)
    with pytest.raises(UsageError, match="are multiples of 64, and this qwen3 has 80, 160; choose another model"):
        round_to_nf4(narrow, dtype=torch.float32, device=CPU)


def test_the_import_of_bitsandbytes_logs_nothing() -> None:
    # On CPUs with AVX512-BF16 it logs in this module that it can't download a kernel.
    assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)
