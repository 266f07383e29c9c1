"""Agents: the combination of a reply format and a scaffold, independent of environments and policies.

One name, the same for `collect`, `evaluate` and `train`, specifies an agent: the reply format, followed by the habits
of its scaffold. A custom reply format is named MODULE:CLASS.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field
from importlib.metadata import entry_points

import gymnasium

from agentgym_envs.agents.formats import REPLY_FORMATS, ReplyWrapper
from agentgym_envs.agents.names import GROUP
from agentgym_envs.agents.prompts import PromptFunction
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.util.importing import import_named


@dataclass(frozen=True, slots=True)
class Agent:
    """A reply format with a scaffold."""

    reply_format: str = "react"
    scaffold: Scaffold = field(default_factory=Scaffold)

    def __str__(self) -> str:
        """Return the name that `parse` takes."""
        return f"{self.reply_format}{self.scaffold}"

    @classmethod
    def parse(cls, spec: str) -> Agent:
        """Return the agent called `FORM[+HABIT[:N]]...`, where FORM is one of `REPLY_FORMATS` or MODULE:CLASS.

        Raises:
            ValueError: if there is no such reply format, module or habit; the message lists those that exist.
        """
        return cls(find_reply_format(spec.partition("+")[0]).reply_format, Scaffold.parse(spec))

    def wrap(self, env: gymnasium.Env[str, str], *, instructions: str | PromptFunction | None = None) -> ReplyWrapper:
        """Wrap the environment for this agent; see `ReplyWrapper`."""
        return find_reply_format(self.reply_format)(env, instructions=instructions, scaffold=self.scaffold)


def find_reply_format(name: str) -> type[ReplyWrapper]:
    """Return the reply format called `name`: one of `REPLY_FORMATS`, the imported class for `MODULE:CLASS`, or one that
    an installed package has registered in the group `agentgym.agents`.

    Raises:
        ValueError: if there is none, or the class isn't a concrete `ReplyWrapper`.
    """
    if name in REPLY_FORMATS:
        return REPLY_FORMATS[name]
    if ":" not in name:
        registered = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        if name in registered:
            return find_reply_format(registered[name])
        known = [*REPLY_FORMATS, *sorted(registered)]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"There is no agent {name!r}.{hint} An agent is a reply format ({', '.join(known)}, or "
            "MODULE:CLASS for your own) followed by habits, such as react+plan+window:6."
        )
    module, _, attribute = name.partition(":")
    found = getattr(import_named(module, f"the agent {name}"), attribute, None)
    if not (isinstance(found, type) and issubclass(found, ReplyWrapper)) or inspect.isabstract(found):
        raise ValueError(
            f"{attribute!r} in {module} is not a reply format: a subclass of ReplyWrapper that implements all methods."
        )
    if ":" not in found.reply_format and REPLY_FORMATS.get(found.reply_format) is not found:
        raise ValueError(
            f"{name} sets reply_format = {found.reply_format!r}, a name under which no command finds it. Remove "
            "`reply_format` from the class."
        )
    return found
