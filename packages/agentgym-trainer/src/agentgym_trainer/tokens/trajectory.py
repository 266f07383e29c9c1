"""Episodes as tokens: the context, the mask of completion tokens and the turn of each completion token.

They are built from the sampled ids, never from text. Plans, reflections and summaries are turns like any other. The
turns of an expert before the policy's (`Reply.expert`) are not turns of the trajectory: it begins with the policy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from agentgym_envs import Episode, Turn


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of one context. The four sequences have one entry per token."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Whether the token is a completion token, in a turn that is trained on."""
    logprobs: tuple[float, ...]
    """Log-probability that the token was sampled with; 0 for other tokens."""
    turns: tuple[int, ...]
    """Index of the turn of each completion token; -1 for other tokens."""

    def within(self, longest: int) -> Segment:
        """Return the segment up to the last turn that ends within `longest` tokens; empty if there is none.

        A partial turn is cut, since training on it would teach the policy to stop in the middle of a reply.
        """
        ends = [i for i, (turn, after) in enumerate(pairwise((*self.turns, -1)), 1) if turn >= 0 and turn != after]
        end = max((end for end in ends if end <= longest), default=0)
        return Segment(self.ids[:end], self.loss_mask[:end], self.logprobs[:end], self.turns[:end])


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The maximum number of tokens of a context that is trained on; as text, with what sets it."""

    tokens: int
    of_model: bool = False
    """Whether the model sets it, and not `generation.max_context`."""

    @property
    def remedy(self) -> str:
        """How to raise it, as an imperative."""
        return "Choose a model with a longer one" if self.of_model else "Raise it"

    def __str__(self) -> str:
        """What sets the limit, and the limit."""
        return f"{'the context of the model' if self.of_model else 'generation.max_context'}, {self.tokens:,} tokens"


@dataclass(slots=True)
class Trimming:
    """Statistics on segments that are trimmed to a token limit."""

    limit: ContextLimit
    """Maximum length of a context."""
    contexts: int = 0
    """Number of segments with completion tokens, before trimming."""
    cut: int = 0
    """Number of segments that lost some of their completion tokens."""
    dropped: int = 0
    """Number of segments that lost all of their completion tokens."""
    total: int = 0
    """Number of completion tokens before trimming."""
    lost: int = 0
    """Number of completion tokens that were cut."""

    def trim(self, segment: Segment) -> Segment:
        """Trim the segment to the limit (see `Segment.within`) and count it."""
        kept, tokens = segment.within(self.limit.tokens), sum(segment.loss_mask)
        lost = tokens - sum(kept.loss_mask)
        self.contexts += tokens > 0
        self.cut += 0 < lost < tokens
        self.dropped += 0 < lost == tokens
        self.total += tokens
        self.lost += lost
        return kept

    def __str__(self) -> str:
        """One sentence on what is lost; empty if nothing is."""
        if not self.lost:
            return ""
        sentence = (
            f"{self.limit}, cuts {self.cut} of {self.contexts} contexts and drops {self.dropped}: "
            f"{self.lost / self.total:.1%} of the completion tokens are not trained on. {self.limit.remedy} to keep "
            "more."
        )
        return f"T{sentence[1:]}" if self.limit.of_model else sentence


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode for the learner."""

    segments: tuple[Segment, ...]
    """One segment, unless the chat template rewrote the history or the agent began a new conversation."""
    rewards: tuple[float, ...]
    """Reward of each turn."""
    states: tuple[str, ...]
    """Key of the simulator's state at the start of each turn."""
    observations: tuple[tuple[str, str], ...]
    """Kind of each turn, and the last observation before it."""
    group: str
    """The task; trajectories of one group are compared with each other."""
    in_loss: bool = True
    """Whether it is in the loss; otherwise it only counts in its group's baseline and in statistics."""
    score: float | None = None
    """Final score by the environment, whatever the rewards are that the episode trains on. None: the sum of the
    rewards."""

    @property
    def tokens(self) -> int:
        """Number of tokens over all segments."""
        return sum(len(segment.ids) for segment in self.segments)


def own_turns(episode: Episode) -> list[int]:
    """Return the indices of the turns that aren't an expert's, which are the turns of its trajectory."""
    return [number for number, turn in enumerate(episode.turns) if not turn.reply.expert]


def own_rewards(episode: Episode, rewards: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the rewards of the turns that aren't an expert's.

    The rewards of an expert before the policy's first turn are left out: they are the same in all episodes of a group,
    and not the policy's. Those in later trials are added to the policy's turn before, because the reset of the score at
    the start of a trial includes those of the trial before.

    Args:
        episode: The episode.
        rewards: A reward for each of its turns; None takes the environment's. An expert's turns have the environment's.
    """
    kept: list[float] = []
    for turn, reward in zip(episode.turns, rewards or [turn.reward for turn in episode.turns], strict=True):
        if not turn.reply.expert:
            kept.append(reward)
        elif kept:
            kept[-1] += turn.reward
    return tuple(kept)


def trajectory(episode: Episode) -> Trajectory:
    """Convert an episode to a trajectory.

    Raises:
        ValueError: The episode failed, which excludes it from training, or its replies have no sampled ids.
    """
    if episode.failed:
        raise ValueError(f"The episode of {episode.task_id} failed ({episode.error}); a failed episode never trains.")
    segments: list[list[tuple[int, Turn]]] = []
    indices = {number: index for index, number in enumerate(own_turns(episode))}
    for number, turn in enumerate(episode.turns):
        if turn.reply.sample is None and turn.reply.expert:
            continue  # part of the next prompt
        if turn.reply.sample is None:
            raise ValueError(
                f"Turn {number} of {episode.task_id} by {episode.policy} has no sampled ids; encode the episode first."
            )
        if turn.reply.sample.fresh:
            segments.append([])
        segments[-1].append((indices.get(number, -1), turn))
    return replace(outline(episode), segments=tuple(_segment(turns) for turns in segments))


def outline(episode: Episode) -> Trajectory:
    """Return a trajectory with everything but the tokens: completion tokens have id 0, and prompt tokens are left out.
    A reply without sampled ids counts as one token.
    """
    turns = [episode.turns[number] for number in own_turns(episode)]
    sizes = [1 if turn.reply.sample is None else len(turn.reply.sample.ids) for turn in turns]
    numbers = tuple(k for k, turn in enumerate(turns) if turn.loss for _ in range(sizes[k]))
    tokens = len(numbers)
    return Trajectory(
        (Segment((0,) * tokens, (True,) * tokens, (0.0,) * tokens, numbers),),
        rewards=own_rewards(episode),
        states=tuple(turn.state_key for turn in turns),
        observations=tuple((turn.kind, turn.observation) for turn in turns),
        group=episode.task_id,
        score=episode.score,
    )


def single_reply_trajectory(context: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Trajectory:
    """Return a trajectory of a single reply to a context, with reward 0."""
    prompt, completion = len(context), len(ids)
    segment = Segment(
        ids=context + ids,
        loss_mask=(False,) * prompt + (True,) * completion,
        logprobs=(0.0,) * prompt + logprobs,
        turns=(-1,) * prompt + (0,) * completion,
    )
    return Trajectory((segment,), rewards=(0.0,), states=("",), observations=(("act", ""),), group="")


def _segment(turns: Sequence[tuple[int, Turn]]) -> Segment:
    ids: list[int] = []
    loss_mask: list[bool] = []
    logprobs: list[float] = []
    numbers: list[int] = []
    for number, turn in turns:
        sample, in_loss = turn.reply.sample, turn.loss and number >= 0
        assert sample is not None
        prompt, completion = len(sample.prompt), len(sample.ids)
        ids += sample.prompt + sample.ids
        loss_mask += [False] * prompt + [in_loss] * completion
        logprobs += [0.0] * prompt + (list(sample.logprobs) if in_loss else [0.0] * completion)
        numbers += [-1] * prompt + [number if in_loss else -1] * completion
    return Segment(tuple(ids), tuple(loss_mask), tuple(logprobs), tuple(numbers))
