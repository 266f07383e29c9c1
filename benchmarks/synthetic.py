"""Models with random weights and ragged multi-turn episodes, for `learner.py`, `gpu_rollout.py` and `gpu_train.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from numpy.typing import NDArray

Lengths = tuple[int, int]
"""The least length, and the length below which all are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 architecture; by default that of Qwen2.5-0.5B."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864
    vocab: int = 151_936
    context: int = 4096


def random_qwen2(shape: Shape, *, use_cache: bool = False) -> Any:
    """Return a Qwen2 in float32 with random weights, the same each time, and tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {"attn_implementation": "sdpa", "use_cache": use_cache}
    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        **settings,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def log_uniform(least: float, most: float, count: int, rng: np.random.Generator) -> list[int]:
    """Draw lengths uniformly on a logarithmic scale."""
    return np.exp(rng.uniform(np.log(least), np.log(most), count)).astype(int).tolist()


def draw_turns(
    length: int, prompt: int, reply: Lengths, observation: Lengths, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int_]]:
    """Divide an episode of `length` tokens after its prompt into replies and observations of random lengths.

    Returns:
        The mask of completion tokens, and the turn of each of them (-1 for the other tokens).
    """
    loss_mask, turns = np.zeros(length, dtype=bool), np.full(length, -1)
    at, turn = prompt, 0
    while at < length:
        end = min(length, at + int(rng.integers(*reply)))
        loss_mask[at:end], turns[at:end] = True, turn
        at, turn = end + int(rng.integers(*observation)), turn + 1
    return loss_mask, turns


def one_segment(
    ids: NDArray[Any], loss_mask: NDArray[Any], logprobs: NDArray[Any], turns: NDArray[Any], score: float, group: str
) -> Trajectory:
    """Return an episode as one segment, with its score as the reward of the last turn."""
    columns: Sequence[NDArray[Any]] = (ids, loss_mask, logprobs, turns)
    segment = Segment(*(tuple(column.tolist()) for column in columns))
    count = int(turns.max()) + 1
    return Trajectory(
        (segment,),
        (0.0,) * (count - 1) + (score,),
        states=("",) * count,
        observations=(("act", ""),) * count,
        group=group,
    )
