"""Helpers for tests of quantized weights: a model, an engine that has the weights in 16 or 32 bits, and skipping."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from agentgym_envs.util.installation import install
from agentgym_trainer.config import Lora
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.factory import EngineContext
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import load_model, with_lora
from agentgym_trainer.models.quantization import EXTRA
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.tokens.chat import Chat
from toy_learner import VOCAB


def require_bitsandbytes() -> None:
    """Skip the test, or the file if called at module level, if the extra `qlora` is missing; in CI, fail."""
    if find_spec("bitsandbytes") is None:
        missing = install(f"agentgym-trainer[{EXTRA}]")
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing, allow_module_level=True)


def wide_model(chat: Chat) -> Any:
    """Return a tiny random model, always the same, whose layers are as wide as a block of quantized weights."""
    scratch = Scratch(vocab=VOCAB, hidden=64, layers=2, heads=2, context=512)
    model = build_model(scratch, vocab=VOCAB, end_id=chat.end_id, pad_id=chat.pad_id, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def open_unquantized(context: EngineContext) -> Batching:
    """Return an engine that loads the base model of the adapters from its folder, as vLLM does."""
    model, _ = load_model(context.name, dtype=context.dtype, device=context.device)
    if context.lora_rank:
        model = with_lora(model, Lora(rank=context.lora_rank), seed=0)
    return transformers_engine(model, end_id=context.end_id, own_copy=True, autocast=context.autocast)
