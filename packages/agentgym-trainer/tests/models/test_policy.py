from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from agentgym_trainer.algorithms.types import ModelOutputs
from agentgym_trainer.models.policy import PolicyModel, SeparateCritic, ValueHead, separate_critic
from torch import Tensor
from toy_learner import VOCAB
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

LENGTHS = (6, 14, 1, 9)


def _pack(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> tuple[Any, ...]:
    """Return a pack in which about half of the tokens are completion tokens."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (sum(lengths),), generator=rng)
    position = torch.cat([torch.arange(length) for length in lengths])
    completion_index = ((torch.rand(len(ids), generator=rng) < 0.5) & (position > 0)).nonzero()[:, 0]
    return ids, position, tuple(lengths), completion_index - 1, ids[completion_index]


def _naive(model: Any, pack: Sequence[Any], temperature: float) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies one segment at a time, with full logits."""
    ids, _, lengths, before, target = pack
    logits = torch.cat([model(part[None]).logits[0] for part in ids.split(lengths)])[before]
    logp = torch.log_softmax(logits / temperature, -1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def _loss(outputs: Sequence[Tensor | None]) -> Tensor:
    return sum((k * score.square().mean() for k, score in enumerate(outputs, 1) if score is not None), torch.zeros(()))


def _gradients(module: torch.nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(module.parameters())))


def _with_nonzero_weights(critic: ValueHead) -> ValueHead:
    with torch.no_grad():
        critic.linear.weight.copy_(torch.linspace(-1, 1, critic.linear.in_features))
    return critic


@pytest.fixture
def untied() -> Any:
    """A model with grouped-query attention and an untied LM head."""
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tied", [True, False])
def test_outputs_and_gradients_match_plain_forward_passes(
    new_model: Callable[..., Any], untied: Any, tied: bool, temperature: float
) -> None:
    model = new_model() if tied else untied
    plain, pack = copy.deepcopy(model), _pack()
    outputs = PolicyModel(model, temperature=temperature, chunk=3)(*pack)
    expected = _naive(plain, pack, temperature)
    for one, other in zip(outputs[:2], expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    for one, other in zip(_gradients(model, _loss(outputs)), _gradients(plain, _loss(expected)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_gradient_checkpointing_keeps_gradients(new_model: Callable[..., Any]) -> None:
    model, checkpointed = new_model(), new_model()
    checkpointed.gradient_checkpointing_enable()
    actors = [PolicyModel(any_model).train() for any_model in (model, checkpointed)]
    calls: list[int] = []
    checkpointed.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = [_gradients(actor, _loss(actor(*_pack()))) for actor in actors]
    assert len(calls) == 2
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("critic", [None, "head", "separate"])
def test_no_completion_tokens_give_zero_gradients(new_model: Callable[..., Any], critic: Any) -> None:
    model = new_model()
    critics = {"head": lambda: ValueHead(32), "separate": lambda: separate_critic(model)}
    actor = PolicyModel(model, critic=critics[critic]() if critic else None)
    none = torch.zeros(0, dtype=torch.long)
    outputs = actor(torch.tensor([5]), torch.tensor([0]), (1,), none, none)
    assert isinstance(outputs, ModelOutputs)
    sum((score.sum() for score in outputs if score is not None), torch.zeros(())).backward()
    for parameter in actor.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_value_head_shares_the_trunk_of_the_policy(new_model: Callable[..., Any]) -> None:
    model = new_model()
    actor = PolicyModel(model, critic=_with_nonzero_weights(ValueHead(32)))
    pack = _pack()
    value = actor(*pack).values_M
    hidden = torch.cat([model.model(part[None]).last_hidden_state[0] for part in pack[0].split(LENGTHS)])
    torch.testing.assert_close(value, hidden[pack[3]] @ torch.linspace(-1, 1, 32), atol=1e-4, rtol=1e-5)
    value.square().sum().backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.any()


def test_separate_critic_has_no_effect_on_the_policy(new_model: Callable[..., Any]) -> None:
    model = new_model()
    critic = separate_critic(model)
    _with_nonzero_weights(critic.head)
    actor = PolicyModel(model, critic=critic)
    outputs = actor(*_pack())
    with_head = PolicyModel(new_model(), critic=_with_nonzero_weights(ValueHead(32)))(*_pack())
    torch.testing.assert_close(outputs.values_M, with_head.values_M)
    outputs.values_M.square().sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in critic.parameters())
    assert isinstance(actor.critic, SeparateCritic)


def test_initial_values_are_zero(new_model: Callable[..., Any]) -> None:
    assert not PolicyModel(new_model(), critic=ValueHead(32))(*_pack()).values_M.any()


@pytest.mark.parametrize("tied", [True, False])
def test_models_on_the_meta_device_can_be_allocated(new_model: Callable[..., Any], untied: Any, tied: bool) -> None:
    model = new_model() if tied else untied
    expected = PolicyModel(model, critic=ValueHead(32))(*_pack())
    with init_empty_weights():
        built = type(model)(model.config)
    actor = PolicyModel(built, critic=ValueHead(32))
    actor.allocate()
    head, embedding = built.get_output_embeddings(), built.get_input_embeddings()
    assert (head.weight is embedding.weight) is tied
    assert {parameter.device.type for parameter in actor.parameters()} == {"cpu"}
    built.load_state_dict(model.state_dict())
    for one, other in zip(actor(*_pack()), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_mixed_precision_is_close_and_returns_float32(new_model: Callable[..., Any]) -> None:
    actor = PolicyModel(new_model(init=2.0), critic=_with_nonzero_weights(ValueHead(32)))
    exact = actor(*_pack())
    with torch.autocast("cpu", torch.bfloat16):
        outputs = actor(*_pack())
    for one, other in zip(outputs, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.15, rtol=0.1)
    _loss(outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in actor.parameters())


def test_models_that_scale_logits_are_rejected() -> None:
    config = CohereConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, logit_scale=0.5,
        eos_token_id=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="cohere transforms its logits after the head's weight"):
        PolicyModel(CohereForCausalLM(config))


def test_models_that_do_not_pass_segments_on_are_rejected() -> None:
    config = StableLmConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="stablelm can't read packed segments"):
        PolicyModel(StableLmForCausalLM(config))
