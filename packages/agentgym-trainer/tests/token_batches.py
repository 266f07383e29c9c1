"""Episodes written down by hand or drawn by hypothesis, and the same as an algorithm sees them; and several
processes that sum over each other."""

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
    """One that was said."""

    value: float = 0.0
    """What a critic expected before it."""
    penalty: float = 0.0


@dataclass
class Step:
    """One turn."""

    reward: float = 0.0
    tokens: list[Token] = field(default_factory=lambda: [Token()])
    state: int = 0
    seen: int = 0
    """Number of the observation."""


@dataclass
class Play:
    """One episode."""

    group: int
    steps: list[Step]
    beyond: float = 0.0
    """What a critic expected where it would have gone on."""
    in_loss: bool = True

    @property
    def said(self) -> list[Token]:
        return [token for step in self.steps for token in step.tokens]


def experience_of(plays: Sequence[Play]) -> TokenBatch:
    """What an algorithm sees of them."""
    E, K = len(plays), max((len(play.steps) for play in plays), default=0)
    said = [(e, k, t) for e, play in enumerate(plays) for k, step in enumerate(play.steps) for t in step.tokens]
    rewards_EK, played_EK = torch.zeros(E, K), torch.zeros(E, K, dtype=torch.bool)
    state_EK, observation_EK = torch.full((2, E, K), -1)
    for e, play in enumerate(plays):
        for k, step in enumerate(play.steps):
            rewards_EK[e, k], played_EK[e, k] = step.reward, True
            state_EK[e, k], observation_EK[e, k] = step.state, step.seen
    return TokenBatch(
        episode_N=torch.tensor([e for e, _, _ in said], dtype=torch.long),
        turn_N=torch.tensor([k for _, k, _ in said], dtype=torch.long),
        rollout_logprobs_N=torch.zeros(len(said)),
        rewards_EK=rewards_EK,
        played_EK=played_EK,
        state_EK=state_EK,
        group_E=torch.tensor([play.group for play in plays], dtype=torch.long),
        observation_EK=observation_EK,
        loss_mask_E=torch.tensor([play.in_loss for play in plays], dtype=torch.bool),
        bootstrap_E=torch.tensor([play.beyond for play in plays], dtype=torch.float32),
        values_N=torch.tensor([token.value for _, _, token in said], dtype=torch.float32),
    )


def penalty_of(plays: Sequence[Play]) -> Tensor:
    """Penalty of each completion token."""
    return torch.tensor([token.penalty for play in plays for token in play.said], dtype=torch.float32)


eighths = st.integers(-16, 16).map(lambda n: n / 8)
"""Exact in float32."""


def plays(
    *, min_size: int = 0, max_size: int = 7, tokens: int = 3, least: int = 0, groups: int = 3, masked: bool = False
) -> st.SearchStrategy[list[Play]]:
    """Some episodes of up to 4 turns of `least` to `tokens` tokens, a few groups, a few states; some may be out of the
    loss where they are `masked`.
    """
    token = st.builds(Token, value=eighths, penalty=eighths)
    step = st.builds(
        Step,
        reward=eighths,
        tokens=st.lists(token, min_size=least, max_size=tokens),
        state=st.integers(0, 2),
        seen=st.integers(0, 1),
    )
    play = st.builds(
        Play,
        group=st.integers(0, groups - 1),
        steps=st.lists(step, min_size=1, max_size=4),
        beyond=st.sampled_from([0.0, -1.5, 0.25]),
        in_loss=st.booleans() if masked else st.just(True),
    )
    return st.lists(play, min_size=min_size, max_size=max_size)


def alone(value: Tensor) -> Tensor:
    """The sum over the one process there is."""
    return value


def slow_normalised(values: Sequence[float]) -> list[float]:
    """Each value minus their mean, over their standard deviation; 0 where all are the same."""
    spread = statistics.pstdev(values) if values else 0.0
    return [(value - statistics.fmean(values)) / spread if spread > 1e-9 else 0.0 for value in values]


def at_once(work: Callable[[int, Total], T], processes: int = 2) -> list[T]:
    """What `work` gives as process 0, as process 1 and so on, which wait for each other at every sum."""
    barrier, shared = threading.Barrier(processes, timeout=60), [torch.zeros(())] * processes

    def process(rank: int) -> T:
        def total(value: Tensor) -> Tensor:
            shared[rank] = value
            barrier.wait()
            whole = torch.stack(shared).sum(0)
            barrier.wait()
            return whole

        return work(rank, total)

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(process, range(processes)))
