"""Recorded conversations from other sources, as episodes.

Such files contain little more than the messages. The score has to be provided; actions, states and, unless functions
are called, the agent stay unknown. The last turn gets the whole reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym_envs import Episode, Message, Reply, Task, Turn

POLICY = "recorded"
"""Policy name of recorded episodes."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of one conversation."""

    messages: tuple[Message, ...]
    """An optional `system` message, then `user` and `assistant` alternating."""
    silent: frozenset[int] = frozenset()
    """Positions in `messages` of replies that are excluded from the loss."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the available functions."""
    reasoning: Mapping[int, str] = field(default_factory=dict[int, str])
    """Reasoning outside of the replies, by the replies' positions in `messages`."""


def episode(recording: Recording, task: Task, *, score: float, sample: int, agent: str = "") -> Episode:
    """Convert a recording to an episode. It counts as a success if its score is 1.

    A first reply that is excluded from the loss and followed by others is not an action, but the "OK" with which
    recordings begin.

    Raises:
        ValueError: If there is no reply, or roles don't alternate; the message has the position.
    """
    messages = recording.messages
    first = 1 if messages and messages[0].role == "system" else 0
    _check_roles(messages[first:], first)
    turns = [
        _turn(messages[at - 1].content, messages[at].content, recording.reasoning.get(at), at not in recording.silent)
        for at in range(first + 1, len(messages), 2)
    ]
    if len(turns) > 1 and not turns[0].loss:
        turns[0] = replace(turns[0], kind="talk")
    turns[-1] = replace(turns[-1], reward=score)
    return Episode(
        env=task.env,
        task_id=task.id,
        split=task.split,
        category=task.category,
        difficulty=task.difficulty,
        policy=POLICY,
        sample=sample,
        instructions=messages[0].content if first else "",
        turns=tuple(turns),
        final_observation=messages[-1].content if messages[-1].role == "user" else "",
        stop="terminated",
        score=score,
        success=score == 1,
        agent=agent or ("function-call" if recording.tools else ""),
        tools=recording.tools,
    )


def _turn(observation: str, reply: str, reasoning: str | None, loss: bool) -> Turn:
    return Turn(observation, Reply(reply, reasoning=reasoning), None, valid=True, reward=0.0, state_key="", loss=loss)


def _check_roles(messages: Sequence[Message], first: int) -> None:
    for at, message in enumerate(messages):
        expected = "assistant" if at % 2 else "user"
        if message.role != expected:
            raise ValueError(f"message {first + at + 1} has the role {message.role} instead of {expected}")
    if len(messages) < 2:
        raise ValueError("it has no reply")
