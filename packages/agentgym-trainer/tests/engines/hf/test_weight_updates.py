"""Tests of weights and adapters loaded into the transformers engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams, Weights
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.tokens.chat import Chat
from engine_checks import EXACT, assert_exact, full_logprobs, gather
from peft import get_peft_model_state_dict


def _full_weights(model: Any, version: int) -> Weights:
    return Weights(version, lambda: iter(model.state_dict().items()))


def test_shared_module_is_sampled_with_its_current_weights(new_model: Callable[..., Any], chat: Chat) -> None:
    model = new_model()
    engine = transformers_engine(model, end_id=chat.end_id)

    async def scenario() -> None:
        before = await engine.generate((5,) * 20, SamplingParams(max_tokens=6))
        model.load_state_dict(new_model(1).state_dict())
        model.train()
        await engine.load(Weights(1, lambda: iter(())))
        after = await engine.generate((5,) * 20, SamplingParams(max_tokens=6))
        assert_exact(new_model(0).eval(), (5,) * 20, before)
        assert_exact(new_model(1).eval(), (5,) * 20, after)
        assert (before.version, after.version) == (0, 1)

    gather(scenario())


def test_own_copy_changes_only_on_load(new_model: Callable[..., Any], chat: Chat) -> None:
    model, other = new_model(0).eval(), new_model(1).eval()
    engine = transformers_engine(model, end_id=chat.end_id, own_copy=True)
    context = (5,) * 20

    async def scenario() -> None:
        original = new_model(0).eval()
        model.load_state_dict(other.state_dict())
        before = await engine.generate(context, SamplingParams(max_tokens=6))
        assert_exact(original, context, before)
        await engine.load(_full_weights(other, 3))
        after = await engine.generate(context, SamplingParams(max_tokens=6))
        assert_exact(other, context, after)
        assert [before.version, after.version] == [0, 3]

    gather(scenario())


def test_running_replies_continue_with_new_weights(new_model: Callable[..., Any], chat: Chat) -> None:
    models = [new_model(version).eval() for version in range(3)]
    engine = transformers_engine(models[0], end_id=chat.end_id, own_copy=True)
    # When the weights change, some are still in prefill, two share a prompt, and one has almost finished.
    contexts = [(5,) * 20, (5,) * 20, (6,) * 30, tuple(range(3, 100)) * 2]

    async def ask(context: Sequence[int], seed: int) -> Completion:
        return await engine.generate(context, SamplingParams(max_tokens=24, seed=seed))

    async def scenario() -> None:
        requests = [asyncio.create_task(ask(context, seed)) for seed, context in enumerate(contexts)]
        for version in (1, 2):
            for _ in range(8):  # one turn of the event loop per engine step
                await asyncio.sleep(0)
            await engine.load(_full_weights(models[version], version))
        completions = await asyncio.gather(*requests)
        mixed = [completion for completion in completions if completion.versions]
        assert {version for completion in mixed for version in completion.versions} == {0, 1, 2}
        for context, completion in zip(contexts, completions, strict=True):
            versions = completion.versions or (completion.version,) * len(completion.ids)
            assert list(versions) == sorted(versions)
            assert versions[0] == completion.version
            ids, logprobs_M = (*context, *completion.ids), torch.tensor(completion.logprobs)
            gaps = [(full_logprobs(model, ids, len(logprobs_M)) - logprobs_M).abs().tolist() for model in models]
            for i, version in enumerate(versions):
                assert gaps[version][i] < EXACT < min(gap[i] for gap in gaps[:version] + gaps[version + 1 :])
        # The interruptions don't shorten replies.
        assert all(len(completion.ids) == 24 or completion.ids[-1] == chat.end_id for completion in completions)
        assert engine.usage.generated == sum(len(completion.ids) for completion in completions)

    gather(scenario())


def test_weights_of_another_model_are_rejected(new_model: Callable[..., Any], chat: Chat) -> None:
    engine = transformers_engine(new_model(), end_id=chat.end_id, own_copy=True)
    with pytest.raises(EngineGone, match="nonsense, which the engine's model doesn't"):
        gather(engine.load(Weights(1, lambda: iter([("nonsense", torch.zeros(1))]))))


def test_adapters_are_loaded_as_adapters(new_model: Callable[..., Any], chat: Chat) -> None:
    policy = with_lora(new_model(), Lora(rank=4), seed=0).eval()
    engine = transformers_engine(policy, end_id=chat.end_id, own_copy=True)
    plain = new_model().eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
    adapter = Weights(2, lambda: iter(get_peft_model_state_dict(policy).items()), adapter={})

    async def scenario() -> list[Completion]:
        before = await engine.generate((5,) * 9, SamplingParams(max_tokens=6))
        await engine.load(adapter)
        return [before, await engine.generate((5,) * 9, SamplingParams(max_tokens=6))]

    before, after = gather(scenario())[0]
    assert_exact(plain, (5,) * 9, before)
    assert_exact(policy, (5,) * 9, after)
    assert before.logprobs != pytest.approx(after.logprobs, abs=1e-2)
