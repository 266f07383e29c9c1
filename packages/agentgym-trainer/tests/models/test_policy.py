from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from agentgym_trainer.algorithms.types import ModelOutputs
from agentgym_trainer.models.policy import PolicyModel, SeparateCritic, ValueHead, separate_critic
from torch import Tensor
from toy_learner import VOCAB
from transformers import CohereConfig, CohereForCausalLM, Qwen2Config, Qwen2ForCausalLM

LENGTHS = (6, 14, 1, 9)


def _pack(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> tuple[Any, ...]:
    """A pack in which about every second token is said."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (sum(lengths),), generator=rng)
    position = torch.cat([torch.arange(length) for length in lengths])
    at = ((torch.rand(len(ids), generator=rng) < 0.5) & (position > 0)).nonzero()[:, 0]
    return ids, position, tuple(lengths), at - 1, ids[at]


def _naive(model: Any, pack: Sequence[Any], temperature: float) -> tuple[Tensor, Tensor]:
    """Segment by segment, with all logits."""
    ids, _, lengths, before, target = pack
    logits = torch.cat([model(part[None]).logits[0] for part in ids.split(lengths)])[before]
    logp = torch.log_softmax(logits / temperature, -1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def _loss(scores: Sequence[Tensor | None]) -> Tensor:
    return sum((k * score.square().mean() for k, score in enumerate(scores, 1) if score is not None), torch.zeros(()))


def _gradients(module: torch.nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(module.parameters())))


def _values_that_differ(critic: ValueHead) -> ValueHead:
    with torch.no_grad():
        critic.linear.weight.copy_(torch.linspace(-1, 1, critic.linear.in_features))
    return critic


@pytest.fixture
def untied() -> Any:
    """Fewer heads for keys than for queries, and a head of its own."""
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tied", [True, False])
def test_scores_and_gradients_are_those_of_plain_forwards_segment_by_segment(
    new_model: Callable[..., Any], untied: Any, tied: bool, temperature: float
) -> None:
    model = new_model() if tied else untied
    plain, pack = copy.deepcopy(model), _pack()
    scores = PolicyModel(model, temperature=temperature, chunk=3)(*pack)
    expected = _naive(plain, pack, temperature)
    for one, other in zip(scores[:2], expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    for one, other in zip(_gradients(model, _loss(scores)), _gradients(plain, _loss(expected)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_gradient_checkpointing_changes_no_gradient(new_model: Callable[..., Any]) -> None:
    model, again = new_model(), new_model()
    again.gradient_checkpointing_enable()
    actors = [PolicyModel(each).train() for each in (model, again)]
    entered: list[int] = []
    again.model.layers[0].mlp.register_forward_pre_hook(lambda *_: entered.append(1))
    gradients = [_gradients(actor, _loss(actor(*_pack()))) for actor in actors]
    assert len(entered) == 2
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("critic", [None, "head", "separate"])
def test_without_said_tokens_every_weight_has_a_gradient_of_zero(new_model: Callable[..., Any], critic: Any) -> None:
    model = new_model()
    critics = {"head": lambda: ValueHead(32), "separate": lambda: separate_critic(model)}
    actor = PolicyModel(model, critic=critics[critic]() if critic else None)
    none = torch.zeros(0, dtype=torch.long)
    scores = actor(torch.tensor([5]), torch.tensor([0]), (1,), none, none)
    assert isinstance(scores, ModelOutputs)
    sum((score.sum() for score in scores if score is not None), torch.zeros(())).backward()
    for parameter in actor.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_a_critic_on_the_trunk_reads_what_the_policy_reads(new_model: Callable[..., Any]) -> None:
    model = new_model()
    actor = PolicyModel(model, critic=_values_that_differ(ValueHead(32)))
    pack = _pack()
    value = actor(*pack).values_M
    hidden = torch.cat([model.model(part[None]).last_hidden_state[0] for part in pack[0].split(LENGTHS)])
    torch.testing.assert_close(value, hidden[pack[3]] @ torch.linspace(-1, 1, 32), atol=1e-4, rtol=1e-5)
    value.square().sum().backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.any()


def test_a_separate_critic_leaves_the_policy_alone(new_model: Callable[..., Any]) -> None:
    model = new_model()
    critic = separate_critic(model)
    _values_that_differ(critic.head)
    actor = PolicyModel(model, critic=critic)
    scores = actor(*_pack())
    on_trunk = PolicyModel(new_model(), critic=_values_that_differ(ValueHead(32)))(*_pack())
    torch.testing.assert_close(scores.values_M, on_trunk.values_M)
    scores.values_M.square().sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in critic.parameters())
    assert isinstance(actor.critic, SeparateCritic)


def test_a_critic_expects_nothing_to_begin_with(new_model: Callable[..., Any]) -> None:
    assert not PolicyModel(new_model(), critic=ValueHead(32))(*_pack()).values_M.any()


def test_a_reference_stays_as_it_was(new_model: Callable[..., Any]) -> None:
    actor = PolicyModel(new_model(), critic=ValueHead(32), temperature=0.8)
    before = actor(*_pack())
    reference = actor.frozen()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.1)
    after = reference(*_pack())
    assert torch.equal(after.logprobs_M, before.logprobs_M)
    assert after.values_M is None
    assert not after.logprobs_M.requires_grad
    assert not torch.equal(actor(*_pack()).logprobs_M, before.logprobs_M)


def test_mixed_precision_comes_close_and_gives_float32(new_model: Callable[..., Any]) -> None:
    actor = PolicyModel(new_model(init=2.0), critic=_values_that_differ(ValueHead(32)))
    exact = actor(*_pack())
    with torch.autocast("cpu", torch.bfloat16):
        scores = actor(*_pack())
    for one, other in zip(scores, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.15, rtol=0.1)
    _loss(scores).backward()
    assert all(parameter.grad.isfinite().all() for parameter in actor.parameters())


def test_a_model_that_scales_its_logits_is_refused() -> None:
    config = CohereConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, logit_scale=0.5,
        eos_token_id=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="cohere transforms its logits after the head's weight"):
        PolicyModel(CohereForCausalLM(config))
