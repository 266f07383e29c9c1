"""The transformers engine under churn: whoever comes, shares, is cancelled or dropped, every reply is the model's.

Few letters and few beginnings, so that contexts repeat each other, end in each other, and part anywhere.
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

_LETTERS, _END = 6, 1
Said = tuple[tuple[int, ...], Completion]


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=_LETTERS, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=400, initializer_range=0.5,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


async def _visits(engine: Any, rng: np.random.Generator, stems: list[tuple[int, ...]], said: list[Said]) -> None:
    """A guest who begins as others did, or goes on, and now and then leaves in the middle."""
    context = stems[int(rng.integers(len(stems)))]
    context = context[: int(rng.integers(1, len(context) + 1))]
    for _ in range(int(rng.integers(1, 5))):
        for _ in range(int(rng.integers(0, 6))):
            await asyncio.sleep(0)
        asked = asyncio.create_task(
            engine.generate(context, SamplingParams(1.0, int(rng.integers(1, 9)), int(rng.integers(2**62))))
        )
        if rng.random() < 0.15:
            for _ in range(int(rng.integers(0, 8))):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            continue
        reply = await asked
        said.append((context, reply))
        match int(rng.integers(4)):
            case 0:  # the very same again
                pass
            case 1:  # with a history that was rewritten
                context = context[: int(rng.integers(1, len(context) + 1))]
            case _:
                context += reply.ids + tuple(rng.integers(2, _LETTERS, int(rng.integers(0, 20))).tolist())


async def _party(engine: Any, seed: int, guests: int) -> list[Said]:
    rng = np.random.default_rng(seed)
    stems = [tuple(rng.integers(2, _LETTERS, int(rng.integers(1, 120))).tolist()) for _ in range(4)]
    stems += [stem + tuple(rng.integers(2, _LETTERS, 40).tolist()) for stem in stems]
    said: list[Said] = []
    visits = [asyncio.create_task(_visits(engine, rng, stems, said)) for _ in range(guests)]
    while any(not visit.done() for visit in visits):
        for _ in range(60):
            await asyncio.sleep(0)
        await (engine.sleep() if rng.random() < 0.5 else engine.load(Weights(seed, lambda: iter(()))))
    await asyncio.gather(*visits)
    return said


def _furthest(model: Any, said: list[Said]) -> float:
    """The largest difference to the log-probabilities of one plain forward over everything."""
    longest = max(len(context) + len(reply.ids) for context, reply in said)
    ids = torch.zeros(len(said), longest, dtype=torch.long)
    for i, (context, reply) in enumerate(said):
        ids[i, : len(context) + len(reply.ids)] = torch.tensor(context + reply.ids)
    with torch.no_grad():
        logp = torch.cat([torch.log_softmax(model(part).logits, -1) for part in ids.split(64)])
    off = 0.0
    for row, tokens, (context, reply) in zip(logp, ids, said, strict=True):
        at = torch.arange(len(context), len(context) + len(reply.ids))
        off = max(off, (row[at - 1, tokens[at]] - torch.tensor(reply.logprobs)).abs().max().item())
    return off


@pytest.mark.parametrize("seed", [0, 1, pytest.param(range(2, 16), marks=pytest.mark.long)])
def test_every_reply_is_the_models_whatever_happens_around_it(
    small: Any, seed: int | range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 90)
    for s in seed if isinstance(seed, range) else [seed]:
        engine = transformers_engine(small, end_id=_END, keep=[0, 300, 3000][s % 3])
        core: Any = engine._core
        said = asyncio.run(_party(engine, s, 60))
        assert engine._core is core, "it died, and was made anew"
        assert len(said) > 60
        assert _furthest(small, said) < 5e-5, "more than the rounding of float32"
        assert (engine._waiting, engine._under_way, core._drafts, core._numbers) == ({}, {}, {}, {})
        if core._rows is not None:
            assert all(row.idle and row.leader is None for row in core._rows._rows)
