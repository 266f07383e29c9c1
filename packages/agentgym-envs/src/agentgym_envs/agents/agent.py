"""An agent is how a conversation is made and how a reply becomes an action. Worlds don't know who plays.

One word names it, the same for `collect`, `evaluate` and `train`: the form of its replies, and its habits behind it.
A form of yours is named MODULE:CLASS.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field

import gymnasium

from agentgym_envs.agents.formats import REPLY_FORMATS, ReplyWrapper
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.util.importing import import_named


@dataclass(frozen=True, slots=True)
class Agent:
    """Form and habits."""

    reply_format: str = "react"
    scaffold: Scaffold = field(default_factory=Scaffold)

    def __str__(self) -> str:
        """What `parse` takes."""
        return f"{self.reply_format}{self.scaffold}"

    @classmethod
    def parse(cls, spec: str) -> Agent:
        """The agent called `FORM[+HABIT[:N]]...`, where FORM is one of `FORMS` or MODULE:CLASS.

        Raises:
            ValueError: when there is no such form, module or habit; the message says which there are.
        """
        return cls(find_reply_format(spec.partition("+")[0]).reply_format, Scaffold.parse(spec))

    def wrap(self, env: gymnasium.Env[str, str], *, instructions: str | None = None) -> ReplyWrapper:
        """The world as this agent meets it; see `ReplyWrapper`."""
        return find_reply_format(self.reply_format)(env, instructions=instructions, scaffold=self.scaffold)


def find_reply_format(name: str) -> type[ReplyWrapper]:
    """The form of replies called `name`: one of `FORMS`, or CLASS of MODULE for `MODULE:CLASS`, which is imported.

    Raises:
        ValueError: when there is none, or the class is no `ReplyWrapper` that can be made.
    """
    module, colon, attribute = name.partition(":")
    if name in REPLY_FORMATS:
        return REPLY_FORMATS[name]
    if not colon:
        near = difflib.get_close_matches(name, REPLY_FORMATS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"There is no agent {name!r}.{hint} An agent is the form of its replies ({', '.join(REPLY_FORMATS)}, or "
            "MODULE:CLASS for a form of yours) with habits behind it, such as react+plan+window:6."
        )
    found = getattr(import_named(module, f"the agent {name}"), attribute, None)
    if not (isinstance(found, type) and issubclass(found, ReplyWrapper)) or inspect.isabstract(found):
        raise ValueError(
            f"{attribute!r} in {module} is no form of replies: a subclass of ReplyWrapper with all methods."
        )
    if ":" not in found.reply_format and REPLY_FORMATS.get(found.reply_format) is not found:
        raise ValueError(
            f"{name} sets reply_format = {found.reply_format!r}, a name under which no command finds it: leave `reply_format` out of the class."
        )
    return found
