from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import load_model, with_lora
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.chat import Chat
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_learner import VOCAB
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

IDS = torch.randint(3, VOCAB, (20,), generator=torch.Generator().manual_seed(0))
PACK = (IDS, torch.cat([torch.arange(12), torch.arange(8)]), (12, 8), torch.tensor([3, 4, 15]), IDS[[4, 5, 16]])


@pytest.fixture
def base(new_model: Callable[..., Any], tmp_path: Path) -> Any:
    """A model loaded from a folder, as an adapter's base model."""
    new_model().save_pretrained(tmp_path / "base")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()


def _load(folder: Path) -> Any:
    return load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))[0]


def _train(actor: PolicyModel) -> PolicyModel:
    """Train for a few steps."""
    optimizer = torch.optim.SGD([p for p in actor.parameters() if p.requires_grad], lr=1.0)
    for _ in range(3):
        actor(*PACK).logprobs_M.sum().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
    return actor


@torch.no_grad()
def _logp(actor: PolicyModel) -> Tensor:
    return actor(*PACK).logprobs_M


def test_only_the_adapter_trains_and_the_base_is_the_reference(base: Any) -> None:
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    before = _logp(PolicyModel(base))
    actor = PolicyModel(with_lora(base, Lora(rank=4), seed=0))
    assert actor.has_adapter
    assert torch.equal(_logp(actor), before)
    _train(actor)
    after = _logp(actor)
    assert (after - before).abs().max() > 0.1
    with actor.without_adapter():
        assert torch.equal(_logp(actor), before)
    assert torch.equal(_logp(actor), after)
    after_training = {name.replace(".base_layer", ""): tensor for name, tensor in actor.causal_lm.state_dict().items()}
    assert all(torch.equal(after_training[name], tensor) for name, tensor in weights.items())
    assert all("lora" in name for name, parameter in actor.named_parameters() if parameter.requires_grad)


def test_adapter_of_a_bfloat16_model_trains_in_float32(base: Any) -> None:
    model = with_lora(base.to(torch.bfloat16), Lora(rank=4, alpha=8.0), seed=0)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    actor = PolicyModel(model)
    actor.forward = torch.autocast("cpu", torch.bfloat16)(actor.forward)
    assert _train(actor)(*PACK).logprobs_M.dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora" in name else torch.bfloat16)
        assert torch.equal(parameter, before[name]) == ("lora" not in name)


def test_adapter_initialization_depends_only_on_the_seed(new_model: Callable[..., Any]) -> None:
    state = torch.get_rng_state()
    one, same_seed, other = (
        with_lora(new_model(), Lora(rank=2, targets=("q_proj",)), seed=seed).state_dict() for seed in (0, 0, 1)
    )
    name = next(name for name in one if "lora_A" in name)
    assert torch.equal(one[name], same_seed[name])
    assert not torch.equal(one[name], other[name])
    assert not any("lora" in name and "q_proj" not in name for name in one)
    assert torch.equal(torch.get_rng_state(), state)


def test_adapters_train_under_gradient_checkpointing(new_model: Callable[..., Any]) -> None:
    gradients: list[list[Tensor]] = []
    for checkpointing in (False, True):
        model = new_model()
        if checkpointing:
            model.gradient_checkpointing_enable()
        actor = PolicyModel(with_lora(model, Lora(rank=2), seed=0)).train()
        trained = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        gradients.append(list(torch.autograd.grad(actor(*PACK).logprobs_M.sum(), trained)))
    assert any(gradient.any() for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_saved_adapter_loads_merged_or_as_an_adapter(base: Any, chat: Chat, tmp_path: Path) -> None:
    actor = _train(PolicyModel(with_lora(base, Lora(rank=4), seed=0))).eval()
    actor.policy.save_pretrained(tmp_path)
    chat.tokenizer.save_pretrained(tmp_path)
    merged = _load(tmp_path)
    with torch.no_grad():
        expected = actor.policy(IDS[None]).logits
        for loaded in (merged, AutoModelForCausalLM.from_pretrained(tmp_path)):
            torch.testing.assert_close(loaded.eval()(IDS[None]).logits, expected, atol=1e-4, rtol=1e-4)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    with actor.without_adapter():
        assert not torch.allclose(actor.policy(IDS[None]).logits, expected, atol=1e-2)


@pytest.mark.parametrize("adapted", [True, False])
def test_weights_of_other_sizes_are_rejected(adapted: bool, base: Any, chat: Chat, tmp_path: Path) -> None:
    """As those of an adapter that was trained with more tokens than its base model has."""
    base.save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    size, other = model.config.vocab_size, tmp_path / "other"
    if adapted:
        model.resize_token_embeddings(size + 8, mean_resizing=False)
        saved: Any = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type=TaskType.CAUSAL_LM, **saved))
        model.save_pretrained(str(other), save_embedding_layers=True)
    else:
        model.save_pretrained(other)
        model.config.vocab_size = size + 8
        model.config.save_pretrained(other)
    chat.tokenizer.save_pretrained(other)
    whose = "base model" if adapted else "config.json"
    with pytest.raises(UsageError, match=f"the sizes of its weights aren't those of its {whose}"):
        _load(other)


@pytest.mark.parametrize("lacking", ["lm_head.weight", "model.layers.0.mlp.up_proj.weight"])
def test_models_that_lack_weights_are_rejected(lacking: str, chat: Chat, tmp_path: Path) -> None:
    """Those of an incomplete export would be random."""
    config = Qwen2Config(vocab_size=len(chat.tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                         num_attention_heads=1, num_key_value_heads=1, tie_word_embeddings=False)  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "base")
    chat.tokenizer.save_pretrained(tmp_path / "base")
    adapter = get_peft_model(_load(tmp_path / "base"), LoraConfig(target_modules=["q_proj"]))
    adapter.save_pretrained(str(tmp_path / "adapter"))
    chat.tokenizer.save_pretrained(tmp_path / "adapter")
    _load(tmp_path / "adapter")
    weights = load_file(tmp_path / "base/model.safetensors")
    del weights[lacking]
    save_file(weights, tmp_path / "base/model.safetensors", {"format": "pt"})
    for folder in (tmp_path / "base", tmp_path / "adapter"):
        with pytest.raises(UsageError, match=rf"lack weights of qwen2, which would be random: {lacking}\."):
            _load(folder)


def test_tokenizers_with_more_tokens_than_the_model_are_rejected(base: Any, chat: Chat, tmp_path: Path) -> None:
    base.resize_token_embeddings(100, mean_resizing=False)
    base.save_pretrained(tmp_path / "other")
    chat.tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(UsageError, match=r"the id [1-9]\d\d, and the model has embeddings of 100 tokens"):
        _load(tmp_path / "other")


def test_checkpoint_of_a_moved_run_is_merged_into_its_own_initial_model(
    new_model: Callable[..., Any], chat: Chat, tmp_path: Path
) -> None:
    def start(run: Path, seed: int) -> None:
        new_model(seed).save_pretrained(run / "start")
        chat.tokenizer.save_pretrained(run / "start")

    def merged(checkpoint: Path) -> Tensor:
        model = _load(checkpoint)
        return torch.cat([weight.flatten() for weight in model.parameters()])

    first, moved = tmp_path / "run", tmp_path / "moved"
    start(first, 1)
    own = AutoModelForCausalLM.from_pretrained(first / "start")
    path = first / "checkpoints" / "step-000001"
    _train(PolicyModel(with_lora(own, Lora(rank=4), seed=0))).policy.save_pretrained(path)
    chat.tokenizer.save_pretrained(path)
    expected = merged(path)
    first.rename(moved)
    torch.testing.assert_close(merged(moved / "checkpoints" / "step-000001"), expected)
    start(first, 2)  # another run in the old place
    torch.testing.assert_close(merged(moved / "checkpoints" / "step-000001"), expected)


def test_engine_samples_with_the_adapter(base: Any, chat: Chat) -> None:
    actor = _train(PolicyModel(with_lora(base, Lora(rank=4), seed=0)))
    engine = transformers_engine(actor.policy, end_id=chat.end_id)
    completion = asyncio.run(engine.generate(IDS[:6].tolist(), SamplingParams(max_tokens=8)))
    ids = torch.tensor([*IDS[:6].tolist(), *completion.ids])
    positions = torch.arange(6, len(ids))
    with torch.no_grad():
        logprobs = actor.eval()(ids, torch.arange(len(ids)), (len(ids),), positions - 1, ids[positions]).logprobs_M
    torch.testing.assert_close(torch.tensor(completion.logprobs), logprobs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("target", ["lm_head", "qproj"])
def test_invalid_lora_targets_are_rejected(new_model: Callable[..., Any], target: str) -> None:
    with pytest.raises(UsageError, match=f"lora.targets names {target}, but the linear layers of qwen3 .* q_proj"):
        with_lora(new_model(), Lora(rank=2, targets=("q_proj", target)), seed=0)
