"""How a reply becomes an action. Worlds take actions; a language model says more than that.

A `ReplyWrapper` is an ordinary Gymnasium wrapper whose actions are replies. Parsing is total: every text is either an
action or `Malformed`. `format` is the other direction, for experts: `parse(format(a)) == a` for every one-line action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, SupportsFloat

import gymnasium

from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.core.text_env import Malformed
from agentgym_envs.core.text_space import TextSpace

MAX_REPLY_CHARS = 65_536


class ReplyWrapper(gymnasium.Wrapper[str, str, str, str], ABC):
    """A world that takes replies. `info["action"]` is the action found in the reply, or None."""

    reply_format: ClassVar[str]
    """What command lines, recipes and episodes call it: MODULE:CLASS, unless it is one of `FORMS` and has a name."""
    thinks: ClassVar[bool] = True
    """Whether there is room for a thought beside the action."""
    format_instructions: ClassVar[str]
    """What an agent is told about the form of its replies; appended to the world's instructions."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reply_format" not in cls.__dict__:
            cls.reply_format = f"{cls.__module__}:{cls.__qualname__}"

    def __init__(
        self, env: gymnasium.Env[str, str], *, instructions: str | None = None, scaffold: Scaffold | None = None
    ) -> None:
        """Wrap a world.

        Args:
            env: The world.
            habits: What else the agent does; `play` and `play_pool` see to it. None: it acts, and remembers all.
            instructions: What the agent is told instead of the world's instructions and the form of a reply; the
                empty string tells it nothing, for agents that were trained without.
        """
        super().__init__(env)
        self.action_space = TextSpace(MAX_REPLY_CHARS)
        self._instructions = instructions
        self.scaffold = scaffold or Scaffold()

    @property
    def agent(self) -> str:
        """Form and habits, as `Agent.parse` takes them."""
        return f"{self.reply_format}{self.scaffold}"

    def turns_told(self, horizon: int | None = None) -> int | None:
        """The most actions of a trial, as an agent with the habit `turns_left` is told: the lower one of `horizon` and
        the limit that the world was made with. None for agents without it.

        Raises:
            ValueError: when there is neither.
        """
        if not self.scaffold.turns_left:
            return None
        spec = self.env.spec
        # A world elsewhere is truncated there, after the turns that it was made with.
        limits = [spec.max_episode_steps, spec.kwargs.get("horizon")] if spec else []
        known = [limit for limit in (horizon, *limits) if limit is not None]
        if not known:
            raise ValueError(
                f"The agent {self.agent} is told how many turns are left, but neither a horizon nor the world says how "
                "many there are; give a horizon, or make the world with max_episode_steps."
            )
        return min(known)

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """JSON schemas of the functions that a reply can call, in forms that leave it to a chat template or an endpoint
        to show them; `instructions` don't have them.
        """
        return ()

    @abstractmethod
    def parse(self, reply: str) -> str | Malformed:
        """The action in `reply`, or `Malformed` with a hint."""

    @abstractmethod
    def format(self, action: str, thought: str = "") -> str:
        """A reply from which `parse` gets `action`."""

    @property
    def instructions(self) -> str:
        """The world's instructions, and the form of a reply."""
        return self.told(self.env.get_wrapper_attr("instructions"))

    def told(self, instructions: str) -> str:
        """What an agent is told when those of the world are `instructions`: the form of a reply with them."""
        return f"{instructions}\n\n{self.format_instructions}" if self._instructions is None else self._instructions

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the action that the reply holds; a malformed one costs a turn and is answered with what was expected."""
        parsed = self.parse(action)
        observation, reward, terminated, truncated, info = self.env.step(parsed)
        info["action"] = None if isinstance(parsed, Malformed) else parsed
        return observation, reward, terminated, truncated, info
