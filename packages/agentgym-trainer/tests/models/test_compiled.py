"""Tests of compiled layers: they compute the same, are compiled once, keep their names, and only read packs."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from agentgym_trainer.algorithms import GRPO, Algorithm
from agentgym_trainer.config import Lora
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.models.compiled import check_compiler, compile_layers
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.policy import PolicyModel, separate_critic
from agentgym_trainer.models.weights import weights_of
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.tokens.chat import Chat
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from toy_learner import VOCAB, make_learner, make_trajectories, update_on

# The single token is the pack of a process that has none.
LENGTHS = [(12, 8), (30,), (1,), (5, 5, 9)]


@pytest.fixture(autouse=True)
def _fresh() -> Generator[None]:
    """Forget what other tests compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that counts what is compiled, and runs it as it is or differentiates it first, as inductor does."""

    def __init__(self, *, differentiating: bool = False) -> None:
        self.graphs = 0
        self._differentiating = differentiating

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return aot_eager(graph, inputs) if self._differentiating else graph.forward


@pytest.fixture
def counting() -> Counting:
    return Counting()


def _pack(lengths: Sequence[int]) -> tuple[Any, ...]:
    ids = torch.randint(3, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(len(lengths)))
    position = torch.cat([torch.arange(length) for length in lengths])
    before = torch.arange(sum(lengths) - 1)
    return ids, position, tuple(lengths), before, ids[before + 1]


def _outcome(actor: PolicyModel, packs: Sequence[Sequence[int]] = LENGTHS, *, autocast: bool = False) -> list[Tensor]:
    """Return log-probabilities and entropies of some packs in training and in scoring, and the sums of gradients."""
    outputs: list[Tensor] = []
    for lengths in packs:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = actor.train()(*_pack(lengths))
            (scores.logprobs_M.sum() + scores.entropy_M.sum()).backward()
            with torch.no_grad():
                outputs += [scores.logprobs_M.detach(), *actor.eval()(*_pack(lengths))[:2]]
    return [*outputs, *(p.grad for p in actor.parameters() if p.requires_grad and p.grad is not None)]


def _assert_same(outcome: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(outcome) == len(expected) > 12
    for one, other in zip(outcome, expected, strict=True):
        largest = max([1.0, *other.abs().flatten().tolist()])
        torch.testing.assert_close(one / largest, other / largest, atol=1e-5, rtol=0)


def _with_adapter(model: Any) -> Any:
    """Return the model with an adapter that changes it."""
    adapted = with_lora(model, Lora(rank=4), seed=0)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
    return adapted


@pytest.mark.long
@pytest.mark.parametrize(
    ("adapter", "checkpointing", "autocast"),
    [(False, False, False), (True, True, False), (True, True, True)],
    ids=["whole", "adapter", "adapter-bfloat16"],
)
def test_compiled_layers_compute_the_same(
    new_model: Callable[..., Any], adapter: bool, checkpointing: bool, autocast: bool
) -> None:
    plain, compiled, counting = new_model(), new_model(), Counting(differentiating=True)
    if checkpointing:
        compiled.gradient_checkpointing_enable()
    actors = [PolicyModel(_with_adapter(model) if adapter else model) for model in (plain, compiled)]
    assert compile_layers(actors[1].causal_lm, backend=counting) == 2
    _outcome(actors[1], LENGTHS[:1], autocast=autocast)
    first = counting.graphs
    actors[1].zero_grad()
    _assert_same(_outcome(actors[1], autocast=autocast), _outcome(actors[0], autocast=autocast))
    assert counting.graphs == first > 0


@pytest.mark.long
def test_an_adapter_can_be_disabled(new_model: Callable[..., Any], counting: Counting) -> None:
    actor, base = PolicyModel(_with_adapter(new_model())), PolicyModel(new_model())
    compile_layers(actor.causal_lm, backend=counting)
    with torch.no_grad():
        adapted = actor.eval()(*_pack((30,))).logprobs_M
        with actor.without_adapter():
            found = actor(*_pack((30,))).logprobs_M
        expected = base.eval()(*_pack((30,))).logprobs_M
        again = actor(*_pack((30,))).logprobs_M
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(adapted, expected, atol=1e-2)
    assert torch.equal(adapted, again)


@pytest.mark.long
def test_ten_updates_with_different_lengths_compile_once(new_model: Callable[..., Any], counting: Counting) -> None:
    learners = [make_learner(new_model(), lr=1e-4, reference=True) for _ in range(2)]
    for actor in (learners[1].actor, learners[1].reference):
        compile_layers(actor.causal_lm, backend=counting)
    compiled = list[int]()
    for seed in range(10):
        metrics = [update_on(learner, make_trajectories(seed, episodes=4 + seed % 5), GRPO) for learner in learners]
        for name in ("loss", "grad_norm"):
            assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-4, abs=1e-5)
        compiled.append(counting.graphs)
    assert 0 < compiled[0] == compiled[-1]
    for one, other in zip(learners[0].actor.parameters(), learners[1].actor.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_names_stay_and_engines_run_layers_as_they_are(new_model: Callable[..., Any], counting: Counting) -> None:
    plain, model = new_model(), new_model()
    actor = PolicyModel(model, critic=separate_critic(model))
    expected = [*actor.state_dict()]
    for trunk in actor.trunks:
        compile_layers(trunk, backend=counting)
    actor(*_pack((7, 6)))
    compiled = counting.graphs
    assert compiled > 0
    assert [*actor.state_dict()] == expected
    assert [name for name, _ in weights_of(model, 0).tensors()] == [name for name, _ in weights_of(plain, 0).tensors()]
    ids = _pack((7,))[0][None]
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert torch.equal(model.generate(ids, max_new_tokens=3), plain.generate(ids, max_new_tokens=3))
    assert counting.graphs == compiled


@pytest.mark.long
def test_a_copy_has_layers_of_its_own(new_model: Callable[..., Any], counting: Counting) -> None:
    actor = PolicyModel(new_model())
    compile_layers(actor.causal_lm, backend=counting)
    other = copy.deepcopy(actor)
    with torch.no_grad():
        before = actor(*_pack((9, 4))).logprobs_M
        for weight in other.parameters():
            weight.mul_(1.5)
        assert not torch.allclose(other(*_pack((9, 4))).logprobs_M, before, atol=1e-2)
        assert torch.equal(actor(*_pack((9, 4))).logprobs_M, before)


@pytest.mark.long
@pytest.mark.parametrize("first", [False, True], ids=["then-compiled", "then-plain"])
def test_a_checkpoint_is_resumed_with_or_without_compilation(
    new_model: Callable[..., Any], chat: Chat, counting: Counting, tmp_path: Path, first: bool
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, say=print)
    learners = [make_learner(new_model(seed), lr=1e-4) for seed in range(2)]
    compile_layers(learners[not first].actor.causal_lm, backend=counting)
    update_on(learners[0], make_trajectories(0), Algorithm())
    path = checkpoints.save(learners[0], chat.tokenizer, TrainingState(Stage(3), 1))
    assert "_orig_mod" not in "".join(file.read_text(errors="replace") for file in path.glob("*.json"))
    expected = update_on(learners[0], make_trajectories(1), Algorithm())
    checkpoints.resume(learners[1])
    found = update_on(learners[1], make_trajectories(1), Algorithm())
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert counting.graphs > 0


@pytest.mark.long
def test_inductor_computes_the_same(new_model: Callable[..., Any]) -> None:
    try:
        check_compiler()
    except ValueError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    actors = [PolicyModel(new_model()) for _ in range(2)]
    compile_layers(actors[1].causal_lm)
    _assert_same(_outcome(actors[1]), _outcome(actors[0]))


def test_without_a_compiler_the_error_says_what_to_do(new_model: Callable[..., Any]) -> None:
    without = inductor_config.patch({"cpp.cxx": ("there-is-no-such-compiler",)})
    with without, pytest.raises(ValueError, match=r"needs a C\+\+ compiler.*Install g\+\+, set CXX.*leave compile off"):
        compile_layers(new_model())


def test_models_without_named_layers_are_refused(new_model: Callable[..., Any], counting: Counting) -> None:
    model = new_model()
    model._no_split_modules = None
    with pytest.raises(ValueError, match=r"names its repeated layers, which that of .* doesn't; leave compile off"):
        compile_layers(model, backend=counting)
