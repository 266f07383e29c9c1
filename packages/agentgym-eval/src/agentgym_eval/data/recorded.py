"""Conversations that somebody else wrote down, as episodes.

Such a file has what was said, and little else. What it lacks is asked for (the score) or left open: nobody knows the
actions, the states and, unless functions are called, the agent. The whole reward is the last turn's. Knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym_envs import Episode, Message, Reply, Task, Turn

POLICY = "recorded"
"""Who played, as far as is known."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was said in one conversation."""

    messages: tuple[Message, ...]
    """An optional `system`, then `user` and `assistant` in turns."""
    silent: frozenset[int] = frozenset()
    """Positions of replies in `messages` that imitation doesn't learn from."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions that are called in it."""
    reasoning: Mapping[int, str] = field(default_factory=dict[int, str])
    """What was thought apart from replies, by their positions in `messages`."""


def episode(recording: Recording, task: Task, *, score: float, sample: int, agent: str = "") -> Episode:
    """The episode in a recording. It counts as a success when its score is 1.

    A first reply that isn't learned from, before others, is no action: the "OK" with which recordings begin.

    Raises:
        ValueError: when there is no reply, or roles don't take turns; the message has the position.
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
            raise ValueError(f"message {first + at + 1} is of the {message.role}, where the {expected} should speak")
    if len(messages) < 2:
        raise ValueError("nobody replies in it")
