"""The base class of reply formats, which extract an action from a language model's reply.

A `ReplyWrapper` is an ordinary Gymnasium wrapper whose actions are replies. Parsing is total: every text is either an
action or `Malformed`. `format` is the inverse, for experts: `parse(format(a)) == a` for every one-line action.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, SupportsFloat

import gymnasium

from agentgym_envs.agents.prompts import PromptFunction
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.core.feedback import EnvFault, Malformed, faulting
from agentgym_envs.core.text_space import TextSpace

MAX_REPLY_CHARS = 65_536


class ReplyWrapper(gymnasium.Wrapper[str, str, str, str], gymnasium.utils.RecordConstructorArgs, ABC):
    """An environment that takes replies. `info["action"]` is the action found in the reply, or None."""

    reply_format: ClassVar[str]
    """The name in command lines, recipes and episodes: MODULE:CLASS, except for those in `REPLY_FORMATS`."""
    thinks: ClassVar[bool] = True
    """Whether a reply can contain a thought besides the action."""
    format_instructions: ClassVar[str]
    """The description of the reply format for the agent, which follows the environment's instructions."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reply_format" not in cls.__dict__:
            cls.reply_format = f"{cls.__module__}:{cls.__qualname__}"

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        instructions: str | PromptFunction | None = None,
        scaffold: Scaffold | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            instructions: Text for the agent in place of the environment's instructions and the description of the
                reply format, or a prompt that makes it of these two; see `find_prompt`. An empty string omits
                instructions, for agents that were trained without them.
            scaffold: The agent's habits, which `play` and `play_pool` implement. None: no habits and an unlimited
                context.
        """
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, instructions=instructions, scaffold=scaffold
        )
        gymnasium.Wrapper.__init__(self, env)  # pyright: ignore[reportUnknownMemberType]
        self.action_space = TextSpace(MAX_REPLY_CHARS)
        self._instructions = instructions
        self.scaffold = scaffold or Scaffold()

    @property
    def agent(self) -> str:
        """The reply format and scaffold, as `Agent.parse` takes them."""
        return f"{self.reply_format}{self.scaffold}"

    def turn_limit(self, horizon: int | None = None) -> int | None:
        """Return the number of actions per attempt that an agent with the habit `turns_left` counts down from.

        This is the lower one of `horizon` and the environment's own limit, and None for agents without the habit.

        Raises:
            ValueError: if there is neither a horizon nor a limit.
        """
        if not self.scaffold.turns_left:
            return None
        spec = self.env.spec
        # The server truncates a remote environment after the number of turns in its options.
        limits = [spec.max_episode_steps, spec.kwargs.get("horizon")] if spec else []
        known = [limit for limit in (horizon, *limits) if limit is not None]
        if not known:
            raise ValueError(
                f"The agent {self.agent} needs a limit of turns to count down from, but there is neither a horizon nor "
                "a limit of the environment. Give a horizon, or make the environment with max_episode_steps."
            )
        return min(known)

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """JSON schemas of the functions that a reply can call, for formats in which a chat template or an endpoint
        shows them to the model. `instructions` does not contain them.
        """
        return ()

    @abstractmethod
    def parse(self, reply: str) -> str | Malformed:
        """Return the action in `reply`, or `Malformed` with a hint."""

    @abstractmethod
    def format(self, action: str, thought: str = "") -> str:
        """Return a reply from which `parse` extracts `action`."""

    def action_in(self, reply: str) -> str | Malformed:
        """Return what `parse` finds in `reply`.

        Raises:
            EnvFault: if `parse` raises anything or returns something else; the message names the reply format.
        """
        name = f"The reply format {self.reply_format}"
        with faulting(name):
            parsed = self.parse(reply)
        if not isinstance(parsed, str):
            raise EnvFault(
                f"{name} returned {reprlib.repr(parsed)} ({type(parsed).__name__}) from `parse`, which must return the "
                "action as text (str), or Malformed(reply, hint) if there is none."
            )
        return parsed

    @property
    def instructions(self) -> str:
        """The text that the agent gets first: what it was given, or else the environment's instructions and the
        description of the reply format.

        Raises:
            ValueError: if the given prompt fails.
        """
        return self.system_message(self.env.get_wrapper_attr("instructions"))

    def system_message(self, instructions: str) -> str:
        """Return the text that the agent gets first, for the environment's `instructions`.

        Raises:
            ValueError: if the given prompt fails.
        """
        if self._instructions is None:
            return self.full_instructions(instructions)
        given = self._instructions
        return given if isinstance(given, str) else given(instructions, self.full_format_instructions)

    @property
    def full_format_instructions(self) -> str:
        """The description of the reply format, with what it needs to know of the environment, for prompts."""
        return self.format_instructions

    def full_instructions(self, instructions: str) -> str:
        """Return the agent's own text: the environment's `instructions` and the description of the reply format."""
        return f"{instructions}\n\n{self.full_format_instructions}"

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the action in a reply. A malformed reply costs a turn; its observation explains what was expected.

        Raises:
            EnvFault: as `action_in`, and if the environment broke.
        """
        parsed = self.action_in(action)
        observation, reward, terminated, truncated, info = self.env.step(parsed)
        info["action"] = None if isinstance(parsed, Malformed) else parsed
        return observation, reward, terminated, truncated, info
