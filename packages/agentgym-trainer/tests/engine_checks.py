"""Random contexts for engines, and checks of their log-probabilities against a full forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import torch
from agentgym_trainer.engines.base import Completion
from torch import Tensor
from toy_learner import VOCAB

EXACT = 1e-5


def random_ids(rng: np.random.Generator, least: int = 1, most: int = 30) -> tuple[int, ...]:
    return tuple(rng.integers(3, VOCAB, int(rng.integers(least, most))).tolist())


def full_logprobs(model: Any, context: Sequence[int], length: int, temperature: float = 1.0) -> Tensor:
    """Return the log-probabilities of the last `length` ids by one full forward pass."""
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([list(context)])).logits[0].float() / temperature, -1)
    return logp[-length - 1 : -1].gather(1, torch.tensor(context[-length:])[:, None])[:, 0]


def assert_exact(
    model: Any, context: Sequence[int], completion: Completion, temperature: float = 1.0, atol: float = EXACT
) -> None:
    expected = full_logprobs(model, (*context, *completion.ids), len(completion.ids), temperature)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=atol, rtol=0)


def gather(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines concurrently and return their results."""

    async def gather_all() -> list[Any]:
        return await asyncio.gather(*coroutines)

    return asyncio.run(gather_all())
