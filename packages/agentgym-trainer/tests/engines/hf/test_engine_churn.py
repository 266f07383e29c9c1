"""Tests of the transformers engine under churn: replies match the model while requests join, share and are cancelled.

The vocabulary and the number of prompt stems are small, so that contexts repeat, extend and diverge at any point.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_trainer.engines.base import Completion, SamplingParams, Weights
from agentgym_trainer.engines.hf import scheduler
from agentgym_trainer.engines.hf.engine import transformers_engine
from transformers import Qwen2Config, Qwen2ForCausalLM

_VOCAB, _END = 6, 1
Exchange = tuple[tuple[int, ...], Completion]


@pytest.fixture(scope="module")
def tiny_model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=_VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=400, initializer_range=0.5,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


async def _run_client(
    engine: Any, rng: np.random.Generator, stems: list[tuple[int, ...]], exchanges: list[Exchange]
) -> None:
    """Send requests that share prefixes with others or continue them; cancel some midway."""
    context = stems[int(rng.integers(len(stems)))]
    context = context[: int(rng.integers(1, len(context) + 1))]
    for _ in range(int(rng.integers(1, 5))):
        for _ in range(int(rng.integers(0, 6))):
            await asyncio.sleep(0)
        request = asyncio.create_task(
            engine.generate(context, SamplingParams(1.0, int(rng.integers(1, 9)), int(rng.integers(2**62))))
        )
        if rng.random() < 0.15:
            for _ in range(int(rng.integers(0, 8))):
                await asyncio.sleep(0)
            request.cancel()
            await asyncio.wait([request])
            continue
        reply = await request
        exchanges.append((context, reply))
        match int(rng.integers(4)):
            case 0:  # repeat the same context
                pass
            case 1:  # truncate the history
                context = context[: int(rng.integers(1, len(context) + 1))]
            case _:
                context += reply.ids + tuple(rng.integers(2, _VOCAB, int(rng.integers(0, 20))).tolist())


async def _run_clients(engine: Any, seed: int, clients: int) -> list[Exchange]:
    rng = np.random.default_rng(seed)
    stems = [tuple(rng.integers(2, _VOCAB, int(rng.integers(1, 120))).tolist()) for _ in range(4)]
    stems += [stem + tuple(rng.integers(2, _VOCAB, 40).tolist()) for stem in stems]
    exchanges: list[Exchange] = []
    tasks = [asyncio.create_task(_run_client(engine, rng, stems, exchanges)) for _ in range(clients)]
    while any(not task.done() for task in tasks):
        for _ in range(60):
            await asyncio.sleep(0)
        await (engine.sleep() if rng.random() < 0.5 else engine.load(Weights(seed, lambda: iter(()))))
    await asyncio.gather(*tasks)
    return exchanges


def _max_error(model: Any, exchanges: list[Exchange]) -> float:
    """Return the largest difference from the log-probabilities of a full forward pass."""
    longest = max(len(context) + len(reply.ids) for context, reply in exchanges)
    ids = torch.zeros(len(exchanges), longest, dtype=torch.long)
    for i, (context, reply) in enumerate(exchanges):
        ids[i, : len(context) + len(reply.ids)] = torch.tensor(context + reply.ids)
    with torch.no_grad():
        logp = torch.cat([torch.log_softmax(model(part).logits, -1) for part in ids.split(64)])
    error = 0.0
    for row, tokens, (context, reply) in zip(logp, ids, exchanges, strict=True):
        positions = torch.arange(len(context), len(context) + len(reply.ids))
        error = max(error, (row[positions - 1, tokens[positions]] - torch.tensor(reply.logprobs)).abs().max().item())
    return error


@pytest.mark.parametrize("seed", [0, 1, pytest.param(range(2, 16), marks=pytest.mark.long)])
def test_replies_match_the_model_under_churn(
    tiny_model: Any, seed: int | range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 90)
    for one_seed in seed if isinstance(seed, range) else [seed]:
        engine = transformers_engine(tiny_model, end_id=_END, keep=[0, 300, 3000][one_seed % 3])
        core: Any = engine._core
        exchanges = asyncio.run(_run_clients(engine, one_seed, 60))
        assert engine._core is core, "the core failed and was rebuilt"
        assert len(exchanges) > 60
        assert _max_error(tiny_model, exchanges) < 5e-5, "larger than float32 rounding errors"
        assert (engine._waiting, engine._under_way, core._drafts, core._numbers) == ({}, {}, {}, {})
        if core._rows is not None:
            assert all(row.idle and row.leader is None for row in core._rows._rows)
