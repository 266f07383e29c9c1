"""The policy protocol: given the context of a turn, return the agent's reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from agentgym_envs.episodes.conversation import Conversation
    from agentgym_envs.episodes.episode import Kind, Reply


_RECALLED, _BRIEF = 8, 120
"""Most steps that an expert's summary has, and most characters of an observation in it."""
_CHARACTERS_PER_TOKEN = 4
_PER_PICTURE = 1_200
"""Tokens of a screenshot of 1280 x 720 pixels, in the patches of 28 x 28 pixels of Qwen2-VL and Qwen2.5-VL."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a policy sees when it is the agent's turn."""

    key: int
    """Identifies the episode attempt; the same in all of its turns."""
    conversation: Conversation
    info: dict[str, Any]
    """Returned by the last `reset` or `step`."""
    rng: np.random.Generator
    """Seeded from the episode spec; the same generator in all turns of the attempt."""
    kind: Kind
    """What the reply is for: an action, a plan, a reflection or a summary."""
    acts: int
    """Number of actions taken in this trial; 0 for a reflection on a trial that has ended."""
    tools: tuple[dict[str, Any], ...]
    """JSON schemas of the functions that the agent can call. They are not part of the conversation: chat templates and
    endpoints take them separately."""
    sample: int
    """Index of the episode among those of its task, as in `EpisodeSpec`."""
    env: gymnasium.Env[str, str] | None = None
    """The environment itself, for policies with `needs_env`; None for all others."""
    expert: Callable[[], Awaitable[Reply]] | None = None
    """Returns the reply with which the environment's expert would act in this turn, in environments of this process and
    of a pool. None in a context that was created without an environment."""
    steps: tuple[tuple[str, str], ...] = ()
    """The valid actions of this trial in order, each with the observation that followed it."""


def last_steps(steps: Sequence[tuple[str, str]]) -> str:
    """Return the last steps as an expert sums them up: a line for each, repetitions together, with the observation if
    it is one short line. Empty without steps.
    """
    lines: list[tuple[str, int]] = []
    for action, observation in reversed(steps):
        shown = observation.strip()
        brief = "\n" not in shown and 0 < len(shown) <= _BRIEF
        line = f"{action}: {shown}" if brief else action
        if lines and lines[-1][0] == line:
            lines[-1] = line, lines[-1][1] + 1
        elif len(lines) == _RECALLED:
            break
        else:
            lines.append((line, 1))
    recalled = [f"- {line}{f' ({times} times)' if times > 1 else ''}" for line, times in reversed(lines)]
    return "\n".join(["My last actions:", *recalled]) if recalled else ""


def estimate_tokens(context: TurnContext) -> int:
    """Return about how many tokens a context has: one for four characters, as in English text, and `_PER_PICTURE` for
    each picture.
    """
    pictures = sum(message.picture is not None for message in context.conversation)
    characters = sum(len(message.content) for message in context.conversation)
    return characters // _CHARACTERS_PER_TOKEN + pictures * _PER_PICTURE


class Policy(ABC):
    """A policy. All of its coroutines run in one event loop, many episodes concurrently."""

    name: str
    """The policy's name in reports."""
    needs_env: ClassVar[bool] = False
    """Whether replies need `TurnContext.env`, as those of experts do, which read the simulator's state. Such a policy
    plays environments of this process only, and its `reply` must not wait for anything."""
    sees_pictures: bool = False
    """Whether replies depend on the pictures of messages (`Message.picture`). Where it is False, a run whose agent gets
    pictures is refused, unless the policy has `needs_env`."""

    @abstractmethod
    async def reply(self, context: TurnContext) -> Reply:
        """Return the agent's reply.

        Raises:
            EnvFault: to retry the episode from its beginning, as after a fault of the environment.
            Exception: any other exception ends everything that is being played.
        """

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context, by which agents with a limit on them know when to summarize. The
        default is an estimate: one token for four characters.
        """
        return estimate_tokens(context)

    def forget(self, key: int) -> None:  # noqa: B027 - optional
        """Free what is kept for the attempt `key`, which has ended, possibly before its first turn."""

    async def close(self) -> None:  # noqa: B027 - optional
        """Free all resources. May be called twice."""
