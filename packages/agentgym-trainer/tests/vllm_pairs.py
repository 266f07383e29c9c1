"""Helpers for tests with real vLLM: a model that is trained, and a vLLM engine that started with its weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.vllm.in_process import MISSING
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.tokens.chat import Chat
from torch import Tensor
from toy_learner import VOCAB, make_learner

TOLERANCE = 1e-4
"""Nats between the learner's log-probabilities and the engine's, both in float32."""
MEMORY = 0.05
"""GiB for an engine's KV cache."""
CONTEXT = 256
LENGTHS = (3, 40, 77, 100, 128, 130, 200)


def require_vllm() -> None:
    """Skip the test if vLLM isn't installed; in CI, fail."""
    if find_spec("vllm") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)


@dataclass
class ModelAndEngine:
    """A model that is trained, and an engine that started with its weights."""

    model: Any
    engine: Any
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the engine's loop."""

    def sample(self, contexts: Sequence[Sequence[int]], *, tokens: int = 20, **options: Any) -> list[Completion]:
        """Sample a reply to each context concurrently, the n-th one with seed n."""
        settings = (SamplingParams(max_tokens=tokens, seed=seed, **options) for seed in range(len(contexts)))
        replies = [self.engine.generate(ids, one) for ids, one in zip(contexts, settings, strict=True)]

        async def gather() -> list[Completion]:
            return await asyncio.gather(*replies)

        return self.run(gather())

    def load(self, version: int) -> None:
        """Load the model's weights into the engine, as the learner does."""
        self.run(self.engine.load(make_learner(self.model).weights(version)))

    def perturb_weights(self, seed: int) -> None:
        """Add noise to all trainable parameters."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def save_initial_model(folder: Path, chat: Chat) -> Path:
    """Save the initial model and its tokenizer in a folder, and return it."""
    scratch = Scratch(vocab=320, hidden=64, layers=2, heads=2, context=512)
    model = build_model(scratch, vocab=VOCAB, end_id=chat.end_id, pad_id=chat.pad_id, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    return folder


def random_contexts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Return random contexts of the given lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


def max_logprob_gap(
    model: Any, contexts: Sequence[Sequence[int]], completions: Sequence[Completion], **options: float
) -> float:
    """Return the largest difference between the engine's and the model's log-probabilities."""
    return max(
        (_logprobs(model, context, completion, **options) - torch.tensor(completion.logprobs)).abs().max().item()
        for context, completion in zip(contexts, completions, strict=True)
    )


def max_logprob_gap_by_version(
    models: Mapping[int, Any], contexts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> float:
    """Like `max_logprob_gap`, comparing each token to the model of the version that sampled it."""
    gaps: list[float] = []
    for context, completion in zip(contexts, completions, strict=True):
        logprobs = {version: _logprobs(model, context, completion) for version, model in models.items()}
        versions = completion.versions or (completion.version,) * len(completion.ids)
        gaps += [abs(logprobs[version][i].item() - completion.logprobs[i]) for i, version in enumerate(versions)]
    return max(gaps)


@torch.no_grad()
def _logprobs(model: Any, context: Sequence[int], completion: Completion, temperature: float = 1.0) -> Tensor:
    logits = model(torch.tensor([[*context, *completion.ids]])).logits[0, len(context) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
