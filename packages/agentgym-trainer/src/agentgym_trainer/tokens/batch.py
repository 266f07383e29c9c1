"""Trajectories as tensors without padding: the model's inputs (tokens) and the algorithm's (`TokenBatch`).

See `algorithms/types.py` for the shape suffixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from agentgym_trainer.algorithms.types import TokenBatch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """The concatenated tokens of all segments, with the segments of an episode contiguous, and their `TokenBatch`."""

    ids_S: Tensor
    """Token ids, int64."""
    position_S: Tensor
    """Position of each token in its segment, int64."""
    completion_index_N: Tensor
    """Index into S of each completion token, int64, ascending."""
    starts: tuple[int, ...]
    """Index into S of the start of each segment, then the number of tokens."""
    completion_starts: tuple[int, ...]
    """Index into N of the first completion token of each segment, then the number of completion tokens."""
    episodes: tuple[int, ...]
    """Episode of each segment."""
    tokens: TokenBatch
    """The completion tokens and turns, for the algorithm."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each segment."""
        return [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("ids_S", "position_S", "completion_index_N")}
        optional = {name: getattr(self.tokens, name) for name in TokenBatch.__slots__}
        moved = {name: tensor.to(device) for name, tensor in optional.items() if tensor is not None}
        return replace(self, **tensors, tokens=replace(self.tokens, **moved))


def make_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """Concatenate trajectories into a batch. There may be none, if only other processes have some."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    completion_S = torch.tensor([masked for segment in segments for masked in segment.loss_mask], dtype=torch.bool)
    return Batch(
        ids_S=_int64(token for segment in segments for token in segment.ids),
        position_S=_int64(position for segment in segments for position in range(len(segment.ids))),
        completion_index_N=completion_S.nonzero()[:, 0],
        starts=(0, *accumulate(len(segment.ids) for segment in segments)),
        completion_starts=(0, *accumulate(sum(segment.loss_mask) for segment in segments)),
        episodes=tuple(e for e, trajectory in enumerate(trajectories) for _ in trajectory.segments),
        tokens=_token_batch(trajectories, segments, completion_S),
    )


def _token_batch(trajectories: Sequence[Trajectory], segments: Sequence[Segment], completion_S: Tensor) -> TokenBatch:
    episode_S = _int64(e for e, t in enumerate(trajectories) for s in t.segments for _ in s.ids)
    turn_S = _int64(turn for segment in segments for turn in segment.turns)
    logprob_S = torch.tensor([logprob for segment in segments for logprob in segment.logprobs], dtype=torch.float32)
    E, K = len(trajectories), max((len(t.rewards) for t in trajectories), default=0)
    rewards_EK, played_EK = torch.zeros(E, K), torch.zeros(E, K, dtype=torch.bool)
    state_EK, observation_EK = torch.full((2, E, K), -1, dtype=torch.long)
    groups: dict[str, int] = {}
    states: dict[str, int] = {}
    observations: dict[tuple[str, str], int] = {}
    for e, trajectory in enumerate(trajectories):
        turns = len(trajectory.rewards)
        rewards_EK[e, :turns] = torch.tensor(trajectory.rewards)
        played_EK[e, :turns] = True
        state_EK[e, :turns] = torch.tensor([states.setdefault(state, len(states)) for state in trajectory.states])
        observation_EK[e, :turns] = torch.tensor(
            [observations.setdefault(observation, len(observations)) for observation in trajectory.observations]
        )
        groups.setdefault(trajectory.group, len(groups))
    return TokenBatch(
        episode_N=episode_S[completion_S],
        turn_N=turn_S[completion_S],
        rollout_logprobs_N=logprob_S[completion_S],
        rewards_EK=rewards_EK,
        played_EK=played_EK,
        state_EK=state_EK,
        group_E=_int64(groups[trajectory.group] for trajectory in trajectories),
        observation_EK=observation_EK,
        loss_mask_E=torch.tensor([trajectory.in_loss for trajectory in trajectories], dtype=torch.bool),
    )


def _int64(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.long)
