"""Episodes as tokens: what stood in the context, what of it the agent said, and which turn each said token is of.

Built from the ids that were sampled, never from text. Plans, looks back and summaries are turns like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from agentgym_envs import Episode, Turn


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that stood in one context. The four sequences have one entry per token."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Whether the agent sampled the token, in a turn that is to be learned from."""
    logprobs: tuple[float, ...]
    """Log-probability the token was sampled with; 0 where it wasn't said."""
    turns: tuple[int, ...]
    """Number of the turn that said the token; -1 where it wasn't said."""

    def within(self, longest: int) -> Segment:
        """Its beginning, up to the last turn that ends within `longest` tokens: half a turn would teach to end in the
        middle of it. Empty when none does.
        """
        ends = [i for i, (turn, after) in enumerate(pairwise((*self.turns, -1)), 1) if turn >= 0 and turn != after]
        end = max((end for end in ends if end <= longest), default=0)
        return Segment(self.ids[:end], self.loss_mask[:end], self.logprobs[:end], self.turns[:end])


@dataclass(slots=True)
class Trimming:
    """What a budget of tokens for each context leaves of what was said, counted as segments are trimmed."""

    longest: int
    contexts: int = 0
    """Segments with something to learn from, before they were trimmed."""
    cut: int = 0
    """Those of which only a beginning is left."""
    dropped: int = 0
    """Those of which nothing is left."""
    said: int = 0
    """Said tokens in all of them."""
    lost: int = 0
    """Said tokens beyond the budget."""

    def trim(self, segment: Segment) -> Segment:
        """What of the segment is `within` the budget."""
        kept, said = segment.within(self.longest), sum(segment.loss_mask)
        lost = said - sum(kept.loss_mask)
        self.contexts += said > 0
        self.cut += 0 < lost < said
        self.dropped += 0 < lost == said
        self.said += said
        self.lost += lost
        return kept

    def __str__(self) -> str:
        """One sentence on what is lost; empty where nothing is."""
        if not self.lost:
            return ""
        return (
            f"generation.max_context, {self.longest:,} tokens, cuts {self.cut} of {self.contexts} contexts and drops "
            f"{self.dropped}: {self.lost / self.said:.1%} of what was said is not learned from. Raise it to keep more."
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode for the learner."""

    segments: tuple[Segment, ...]
    """One, unless the chat template rewrote history or the conversation began anew."""
    rewards: tuple[float, ...]
    """Reward of each turn."""
    states: tuple[str, ...]
    """Key of the simulator's state that each turn began in."""
    observations: tuple[tuple[str, str], ...]
    """What each turn is for, and what the world had shown last before it."""
    group: str
    """The task; trajectories of one group are compared with each other."""
    in_loss: bool = True
    """Whether it is trained on, and not only in its group's baseline and in statistics."""

    @property
    def tokens(self) -> int:
        """Number of tokens over all segments."""
        return sum(len(segment.ids) for segment in self.segments)


def trajectory(episode: Episode) -> Trajectory:
    """Line up the tokens of an episode.

    Raises:
        ValueError: for a failed episode, which never trains, and for one whose replies carry no sampled ids.
    """
    if episode.failed:
        raise ValueError(f"The episode of {episode.task_id} failed ({episode.error}); a failed episode never trains.")
    segments: list[list[tuple[int, Turn]]] = []
    for number, turn in enumerate(episode.turns):
        if turn.reply.sample is None:
            raise ValueError(
                f"Turn {number} of {episode.task_id} by {episode.policy} has no sampled ids; encode the episode first."
            )
        if turn.reply.sample.fresh:
            segments.append([])
        segments[-1].append((number, turn))
    return replace(outline(episode), segments=tuple(_segment(turns) for turns in segments))


def outline(episode: Episode) -> Trajectory:
    """An episode in as little as tells it from others: its completion tokens, all with id 0 and without their contexts.
    A reply without sampled ids counts as one token.
    """
    sizes = [1 if turn.reply.sample is None else len(turn.reply.sample.ids) for turn in episode.turns]
    numbers = tuple(k for k, turn in enumerate(episode.turns) if turn.loss for _ in range(sizes[k]))
    tokens = len(numbers)
    return Trajectory(
        (Segment((0,) * tokens, (True,) * tokens, (0.0,) * tokens, numbers),),
        rewards=tuple(turn.reward for turn in episode.turns),
        states=tuple(turn.state_key for turn in episode.turns),
        observations=tuple((turn.kind, turn.observation) for turn in episode.turns),
        group=episode.task_id,
    )


def single_reply_trajectory(context: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Trajectory:
    """A single reply that was sampled in a context, in an episode of its own that paid nothing."""
    seen, new = len(context), len(ids)
    segment = Segment(
        ids=context + ids,
        loss_mask=(False,) * seen + (True,) * new,
        logprobs=(0.0,) * seen + logprobs,
        turns=(-1,) * seen + (0,) * new,
    )
    return Trajectory((segment,), rewards=(0.0,), states=("",), observations=(("act", ""),), group="")


def _segment(turns: Sequence[tuple[int, Turn]]) -> Segment:
    ids: list[int] = []
    said: list[bool] = []
    logprobs: list[float] = []
    numbers: list[int] = []
    for number, turn in turns:
        sample = turn.reply.sample
        assert sample is not None
        seen, new = len(sample.prompt), len(sample.ids)
        ids += sample.prompt + sample.ids
        said += [False] * seen + [turn.loss] * new
        logprobs += [0.0] * seen + (list(sample.logprobs) if turn.loss else [0.0] * new)
        numbers += [-1] * seen + [number if turn.loss else -1] * new
    return Segment(tuple(ids), tuple(said), tuple(logprobs), tuple(numbers))
