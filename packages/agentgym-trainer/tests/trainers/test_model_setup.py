"""Tests of the models that runs save and export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.models.load import load_model
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.model_setup import export_model
from toy_learner import TEXTS, VOCAB


@pytest.mark.parametrize(("own", "exported"), [(None, 2), (0, [0, 2]), ([0, 1], [0, 1, 2]), (2, 2), ([2, 0], [2, 0])])
def test_exported_models_end_with_the_turn(
    new_model: Callable[..., Any], tmp_path: Path, own: Any, exported: Any
) -> None:
    """Other programs end a reply at the tokens of the generation configuration, which may be those of a base model."""
    tokenizer, model = train_tokenizer(TEXTS, VOCAB), new_model()
    tokenizer.eos_token = "<|endoftext|>"
    assert Chat(tokenizer).end_id == 2
    model.generation_config.eos_token_id = model.config.eos_token_id = own
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "checkpoint")
    export_model(tmp_path / "checkpoint", tmp_path / "model")
    loaded, chat = load_model(str(tmp_path / "model"), dtype="auto", device=torch.device("cpu"))
    assert loaded.generation_config.eos_token_id == exported
    assert chat.tokenizer.eos_token == "<|endoftext|>"
