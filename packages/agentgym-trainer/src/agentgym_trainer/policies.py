"""Local models as policies for `evaluate` and `collect`; found through the entry points `agentgym.policies`."""

from __future__ import annotations

import torch
from agentgym_eval.errors import UsageError

from agentgym_trainer.engines import Sampling
from agentgym_trainer.engines.transformers import TransformersEngine
from agentgym_trainer.models import load_model
from agentgym_trainer.rollout import EnginePolicy


def hf(argument: str, *, temperature: float, seed: int, max_tokens: int) -> EnginePolicy:
    """A Hugging Face model by path or name, such as the checkpoint of a run; bfloat16 on a GPU, else float32.

    Raises:
        UsageError: when no model is named, or it can't be loaded.
    """
    del seed  # Tokens are drawn from each seat's own generator.
    if not argument:
        raise UsageError("hf needs a model: write --policy hf:PATH, with the folder of a checkpoint or a model's name.")
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    model, chat = load_model(argument, dtype=torch.bfloat16 if gpu else torch.float32, device=device)
    engine = TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id)
    context = getattr(model.config, "max_position_embeddings", 8704)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, max_context=context)
    return EnginePolicy(engine, chat, sampling, name=f"hf:{argument}")
