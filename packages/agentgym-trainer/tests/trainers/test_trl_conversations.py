"""Tests that TRL can be trained with the output of `convert --to trl`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import datasets
import pytest
from agentgym_envs import Episode, EpisodeSpec, make, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_eval.data.formats import content, records
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import trajectory
from chat_templates import make_chat

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop TRL from importing vLLM, which takes long and isn't used here."""
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda min_version=None: False)


def play_expert(agent: str) -> list[Episode]:
    env = Agent.parse(agent).wrap(make("agentgym/TextCraft-v0"))
    return [play(env, Oracle(), EpisodeSpec(task)) for task in text_env(env).tasks.train.ids[:4]]


@pytest.mark.parametrize("agent", ["react+plan", "function-call"])
def test_trl_tokenizes_conversations_like_our_trainer(agent: str, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    chat, episodes = make_chat("qwen2.5"), play_expert(agent)
    path = tmp_path / "trl.jsonl"
    path.write_text(content(records(episodes, "trl"), "trl"), encoding="utf-8")
    rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    trainer = SFTTrainer(
        model=build_model(
            Scratch(hidden=32, layers=1, heads=2, context=4096),
            vocab=len(chat.tokenizer),
            end_id=chat.end_id,
            pad_id=chat.pad_id,
            seed=0,
        ),
        args=SFTConfig(str(tmp_path), max_length=None, max_steps=1, use_cpu=True, report_to="none", bf16=False),
        train_dataset=rows,
        processing_class=chat.tokenizer,
    )
    for row, episode in zip(trainer.train_dataset, episodes, strict=True):
        ids = tokens(chat, episode)
        assert row["input_ids"][: len(ids)] == ids
    assert trainer.train().global_step == 1


def tokens(chat: Chat, episode: Episode) -> list[int]:
    """Return the tokens of our own encoding."""
    (segment,) = trajectory(encode(chat, episode)).segments
    return list(segment.ids)
