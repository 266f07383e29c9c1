"""An agent is how a conversation is made and how a reply becomes an action. Worlds don't know who plays.

One word names it, the same for `collect`, `evaluate` and `train`: the form of its replies, and its habits behind it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

import gymnasium

from agentgym_envs.habits import Habits
from agentgym_envs.wrappers import FORMS, ReplyWrapper


@dataclass(frozen=True, slots=True)
class Agent:
    """Form and habits."""

    form: str = "react"
    habits: Habits = field(default_factory=Habits)

    def __str__(self) -> str:
        """What `parse` takes."""
        return f"{self.form}{self.habits}"

    @classmethod
    def parse(cls, spec: str) -> Agent:
        """The agent called `FORM[+HABIT[:N]]...`.

        Raises:
            ValueError: when there is no such form or habit; the message says which there are.
        """
        form = spec.partition("+")[0]
        if form not in FORMS:
            near = difflib.get_close_matches(form, FORMS, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"There is no agent {spec!r}.{hint} An agent is the form of its replies ({', '.join(FORMS)}) "
                "with habits behind it, such as react+plan+window:6."
            )
        return cls(form, Habits.parse(spec))

    def seat(self, env: gymnasium.Env[str, str], *, instructions: str | None = None) -> ReplyWrapper:
        """The world as this agent meets it; see `ReplyWrapper`."""
        return FORMS[self.form](env, instructions=instructions, habits=self.habits)
