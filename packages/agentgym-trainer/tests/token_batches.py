"""Small episodes, handwritten or drawn by hypothesis, as token batches; and simulated processes that sum over all."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from agentgym_trainer.algorithms.types import TokenBatch
from hypothesis import strategies as st
from torch import Tensor

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total

T = TypeVar("T")


@dataclass
class Token:
    """A completion token."""

    value: float = 0.0
    """The critic's estimate before the token."""
    penalty: float = 0.0


@dataclass
class Step:
    """A turn."""

    reward: float = 0.0
    tokens: list[Token] = field(default_factory=lambda: [Token()])
    state: int = 0
    observation: int = 0
    """The observation, as a number."""


@dataclass
class EpisodeSketch:
    """An episode."""

    group: int
    steps: list[Step]
    bootstrap_value: float = 0.0
    """The critic's estimate at the point of truncation."""
    in_loss: bool = True

    @property
    def completion_tokens(self) -> list[Token]:
        return [token for step in self.steps for token in step.tokens]


def token_batch_of(episodes: Sequence[EpisodeSketch]) -> TokenBatch:
    """Return episodes as a token batch."""
    E, K = len(episodes), max((len(episode.steps) for episode in episodes), default=0)
    tokens = [
        (e, k, t) for e, episode in enumerate(episodes) for k, step in enumerate(episode.steps) for t in step.tokens
    ]
    rewards_EK, played_EK = torch.zeros(E, K), torch.zeros(E, K, dtype=torch.bool)
    state_EK, observation_EK = torch.full((2, E, K), -1)
    for e, episode in enumerate(episodes):
        for k, step in enumerate(episode.steps):
            rewards_EK[e, k], played_EK[e, k] = step.reward, True
            state_EK[e, k], observation_EK[e, k] = step.state, step.observation
    return TokenBatch(
        episode_N=torch.tensor([e for e, _, _ in tokens], dtype=torch.long),
        turn_N=torch.tensor([k for _, k, _ in tokens], dtype=torch.long),
        rollout_logprobs_N=torch.zeros(len(tokens)),
        rewards_EK=rewards_EK,
        played_EK=played_EK,
        state_EK=state_EK,
        group_E=torch.tensor([episode.group for episode in episodes], dtype=torch.long),
        observation_EK=observation_EK,
        loss_mask_E=torch.tensor([episode.in_loss for episode in episodes], dtype=torch.bool),
        bootstrap_E=torch.tensor([episode.bootstrap_value for episode in episodes], dtype=torch.float32),
        values_N=torch.tensor([token.value for _, _, token in tokens], dtype=torch.float32),
    )


def penalty_of(episodes: Sequence[EpisodeSketch]) -> Tensor:
    """Return the penalty of each completion token."""
    return torch.tensor(
        [token.penalty for episode in episodes for token in episode.completion_tokens], dtype=torch.float32
    )


eighths = st.integers(-16, 16).map(lambda n: n / 8)
"""Exact in float32."""


def episode_sketches(
    *, min_size: int = 0, max_size: int = 7, tokens: int = 3, least: int = 0, groups: int = 3, masked: bool = False
) -> st.SearchStrategy[list[EpisodeSketch]]:
    """Draw episodes of up to 4 turns, each of `least` to `tokens` tokens, with few groups and states.

    If `masked`, some of them may be out of the loss.
    """
    token = st.builds(Token, value=eighths, penalty=eighths)
    step = st.builds(
        Step,
        reward=eighths,
        tokens=st.lists(token, min_size=least, max_size=tokens),
        state=st.integers(0, 2),
        observation=st.integers(0, 1),
    )
    play = st.builds(
        EpisodeSketch,
        group=st.integers(0, groups - 1),
        steps=st.lists(step, min_size=1, max_size=4),
        bootstrap_value=st.sampled_from([0.0, -1.5, 0.25]),
        in_loss=st.booleans() if masked else st.just(True),
    )
    return st.lists(play, min_size=min_size, max_size=max_size)


def single_process_total(value: Tensor) -> Tensor:
    """Return the sum over the only process."""
    return value


def reference_normalize(values: Sequence[float]) -> list[float]:
    """Normalize values to mean 0 and standard deviation 1; return zeros if all are equal."""
    spread = statistics.pstdev(values) if values else 0.0
    return [(value - statistics.fmean(values)) / spread if spread > 1e-9 else 0.0 for value in values]


def run_processes(work: Callable[[int, Total], T], processes: int = 2) -> list[T]:
    """Return the results of `work(rank, total)` as each of several processes, which wait for each other in `total`."""
    barrier, values = threading.Barrier(processes, timeout=60), [torch.zeros(())] * processes

    def process(rank: int) -> T:
        def total(value: Tensor) -> Tensor:
            values[rank] = value
            barrier.wait()
            summed = torch.stack(values).sum(0)
            barrier.wait()
            return summed

        return work(rank, total)

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(process, range(processes)))
