"""Trajectories as tensors without padding: the model's inputs (tokens) and the algorithm's (`TokenBatch`).

See `algorithms/types.py` for the shape suffixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

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
        return [end - start for start, end in pairwise(self.starts)]

    @property
    def completion_counts(self) -> list[int]:
        """Number of completion tokens of each segment."""
        return [end - start for start, end in pairwise(self.completion_starts)]

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("ids_S", "position_S", "completion_index_N")}
        moved = {name: tensor.to(device) for name, tensor in self.tokens.tensors.items()}
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


def take(batch: Batch, episodes: Sequence[int]) -> tuple[Batch, Tensor]:
    """Select episodes of a batch, on the CPU.

    Args:
        batch: The batch.
        episodes: Distinct indices into E, ascending.

    Returns:
        The batch of these episodes, in which groups keep their indices, and the indices into N of its completion
        tokens, int64.
    """
    batch, wanted = batch.to(torch.device("cpu")), {e: number for number, e in enumerate(episodes)}
    segments = [g for g, e in enumerate(batch.episodes) if e in wanted]
    index_S, index_N = (_ranges(starts, segments) for starts in (batch.starts, batch.completion_starts))
    lengths, counts = batch.lengths, batch.completion_counts
    shift_S = torch.zeros(len(batch.ids_S), dtype=torch.long)
    shift_S[index_S] = torch.arange(len(index_S))
    index_E = torch.tensor(episodes, dtype=torch.long)
    tensors = batch.tokens.tensors
    selected = {name: tensor[index_N if name.endswith("_N") else index_E] for name, tensor in tensors.items()}
    selected["episode_N"] = _int64(wanted[e] for e in selected["episode_N"].tolist())
    taken = Batch(
        ids_S=batch.ids_S[index_S],
        position_S=batch.position_S[index_S],
        completion_index_N=shift_S[batch.completion_index_N[index_N]],
        starts=(0, *accumulate(lengths[g] for g in segments)),
        completion_starts=(0, *accumulate(counts[g] for g in segments)),
        episodes=tuple(wanted[batch.episodes[g]] for g in segments),
        tokens=replace(batch.tokens, **selected),
    )
    return taken, index_N


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join at least one batch into one, on the CPU. No group is in two batches."""
    batches = [batch.to(torch.device("cpu")) for batch in batches]
    first_S = [0, *accumulate(len(batch.ids_S) for batch in batches)]
    first_E = [0, *accumulate(len(batch.tokens.group_E) for batch in batches)]
    return Batch(
        ids_S=torch.cat([batch.ids_S for batch in batches]),
        position_S=torch.cat([batch.position_S for batch in batches]),
        completion_index_N=torch.cat([at + b.completion_index_N for at, b in zip(first_S, batches, strict=False)]),
        starts=(0, *accumulate(length for batch in batches for length in batch.lengths)),
        completion_starts=(0, *accumulate(count for batch in batches for count in batch.completion_counts)),
        episodes=tuple(at + e for at, batch in zip(first_E, batches, strict=False) for e in batch.episodes),
        tokens=_concatenate_tokens([batch.tokens for batch in batches]),
    )


def _concatenate_tokens(batches: Sequence[TokenBatch]) -> TokenBatch:
    first_E = [0, *accumulate(len(batch.group_E) for batch in batches)]
    first_group = [0, *accumulate(max(batch.group_E.tolist(), default=-1) + 1 for batch in batches)]
    turns = max(batch.rewards_EK.shape[1] for batch in batches)
    joined: dict[str, Tensor] = {}
    for name in batches[0].tensors:
        parts = [batch.tensors[name] for batch in batches]
        if name.endswith("_EK"):
            filler = -1 if name in ("state_EK", "observation_EK") else 0
            parts = [pad(part, (0, turns - part.shape[1]), value=filler) for part in parts]
        elif name in ("episode_N", "group_E"):
            shifts = first_E if name == "episode_N" else first_group
            parts = [shift + part for shift, part in zip(shifts, parts, strict=False)]
        joined[name] = torch.cat(parts)
    return replace(batches[0], **joined)


def _ranges(starts: Sequence[int], segments: Sequence[int]) -> Tensor:
    """Return the indices of the tokens of segments, given where each segment starts."""
    return torch.cat([torch.arange(0), *(torch.arange(*starts[g : g + 2]) for g in segments)])


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
        score_E=torch.tensor(
            [sum(t.rewards) if t.score is None else t.score for t in trajectories], dtype=torch.float32
        ),
    )


def _int64(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.long)
