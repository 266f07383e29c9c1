"""A model that learns and an engine of vLLM's that began with it: what the tests with real vLLM share."""

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
from toy_learner import VOCAB, learner

TOLERANCE = 1e-4
"""Nats between the learner's log-probabilities and the engine's, both in float32."""
MEMORY = 0.05
"""GiB for the cache of an engine."""
CONTEXT = 256
LENGTHS = (3, 40, 77, 100, 128, 130, 200)


def need_vllm() -> None:
    """Skip without vLLM; in CI, fail."""
    if find_spec("vllm") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)


@dataclass
class Pair:
    """A model that learns, and an engine that began with it."""

    model: Any
    engine: Any
    do: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the engine's loop."""

    def sample(self, contexts: Sequence[Sequence[int]], *, tokens: int = 20, **how: Any) -> list[Completion]:
        """A reply to each context, all asked for at once; the n-th with seed n."""
        settings = (SamplingParams(max_tokens=tokens, seed=seed, **how) for seed in range(len(contexts)))
        asked = [self.engine.generate(ids, one) for ids, one in zip(contexts, settings, strict=True)]

        async def all_at_once() -> list[Completion]:
            return await asyncio.gather(*asked)

        return self.do(all_at_once())

    def load(self, version: int) -> None:
        """Give the engine what the learner would give it."""
        self.do(self.engine.load(learner(self.model).weights(version)))

    def move(self, seed: int) -> None:
        """Change all that trains."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def save_start(folder: Path, chat: Chat) -> Path:
    """A folder with the model that everything begins with, and its tokenizer."""
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
    """Contexts of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


def gap(model: Any, contexts: Sequence[Sequence[int]], said: Sequence[Completion], **how: float) -> float:
    """The largest difference between the engine's log-probabilities and the model's own."""
    return max(
        (_logprobs(model, context, one, **how) - torch.tensor(one.logprobs)).abs().max().item()
        for context, one in zip(contexts, said, strict=True)
    )


def gap_by_version(models: Mapping[int, Any], contexts: Sequence[Sequence[int]], said: Sequence[Completion]) -> float:
    """The same, each token's to the model of the version that it was sampled with."""
    gaps: list[float] = []
    for context, one in zip(contexts, said, strict=True):
        own = {version: _logprobs(model, context, one) for version, model in models.items()}
        versions = one.versions or (one.version,) * len(one.ids)
        gaps += [abs(own[version][at].item() - one.logprobs[at]) for at, version in enumerate(versions)]
    return max(gaps)


@torch.no_grad()
def _logprobs(model: Any, context: Sequence[int], said: Completion, temperature: float = 1.0) -> Tensor:
    logits = model(torch.tensor([[*context, *said.ids]])).logits[0, len(context) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(said.ids)[:, None])[:, 0]
