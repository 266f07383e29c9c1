"""The scaffold of an agent as data: habits such as planning, and their notation in the name of an agent.

This module does not depend on conversations or environments; `dialogue` implements the habits.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

SYNTAX = {
    "plan": "plan[:N]",
    "window": "window:N",
    "token_window": "token_window:N",
    "compact": "compact:N",
    "reflect": "reflect:N",
    "retry": "retry[:K]",
    "turns_left": "turns_left",
    "pictures": "pictures[:K]",
}
"""Each habit as it is written in the name of an agent."""
_DEFAULTS = {"plan": 0, "retry": 1, "turns_left": True, "pictures": 2}
"""The value of a habit without a number."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The habits of an agent: what it does besides acting.

    Each habit produces turns of its own, whose tokens can be trained like any others.
    """

    plan: int | None = None
    """Write a plan before the first action. With N above 0, also write a new plan after every N actions."""
    window: int = 0
    """The most actions in the context of the next one. Before there would be more, the agent writes a summary, and the
    conversation restarts with the summary and the last half of the window. 0: no limit."""
    token_window: int = 0
    """Like `window`, but the summary is due before the context of an action would have more than this many tokens, and
    the last half of the actions in it is kept. 0: no limit."""
    compact: int = 0
    """Write a summary before the context of an action would have more than this many tokens, and restart the
    conversation with the summary alone (CompactionRL, arXiv 2607.05378). 0: no limit."""
    reflect: int = 0
    """Reflect after every N actions; 0: never."""
    retry: int = 0
    """How often to restart the task after an attempt without success, each time after a reflection (Shinn et al. 2023,
    Reflexion, arXiv 2303.11366)."""
    turns_left: bool = False
    """Append the number of actions left in this attempt to every observation (time awareness, Pardo et al. 2018, arXiv
    1712.00378). This is not a turn of its own."""
    pictures: int = 0
    """Number of screenshots in the context: each of the newest observations comes with its own, older ones are text
    only. 0: none. This is not a turn of its own."""

    def __post_init__(self) -> None:
        for name in SYNTAX:
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"The number of {name} must be at least 0, not {number}.")
        limits = [name for name in ("window", "token_window", "compact") if getattr(self, name)]
        if len(limits) > 1:
            raise ValueError(f"{' and '.join(limits)} both limit the context; choose one of them.")

    @property
    def context_tokens(self) -> int:
        """Number of tokens of an action's context beyond which a summary is due; 0: no limit."""
        return self.token_window or self.compact

    def __str__(self) -> str:
        """Return the suffix that follows the reply format in the name of an agent: `+plan:8+window:6`."""
        return "".join(f"+{word}" for word in self._words())

    def _words(self) -> Iterator[str]:
        for name in SYNTAX:
            number = getattr(self, name)
            if number != getattr(_NONE, name):
                yield name if number == _DEFAULTS.get(name) else f"{name}:{number}"

    @classmethod
    def parse(cls, agent: str) -> Scaffold:
        """Return the habits in the name of an agent, `[FORM][+HABIT[:N]]...`, in any order.

        Raises:
            ValueError: if a habit is unknown or repeated, or its number is missing or below 1.
        """
        habits, seen = cls(), set[str]()
        for word in agent.split("+")[1:]:
            name, number = _read(word)
            if name in seen:
                raise ValueError(f"The habit {name} occurs twice in {agent!r}. Write it once.")
            seen.add(name)
            habits = replace(habits, **{name: number})
        return habits


_NONE = Scaffold()


def _read(word: str) -> tuple[str, int]:
    name, colon, number = word.partition(":")
    if name not in SYNTAX:
        near = difflib.get_close_matches(name, SYNTAX, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"There is no habit {word!r}.{hint} Habits: {', '.join(SYNTAX.values())}.")
    if not colon and name in _DEFAULTS:
        return name, _DEFAULTS[name]
    if name == SYNTAX[name]:
        raise ValueError(f"The habit {name} takes no number; write {name}, not {word}.")
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(
            f"The habit {word!r} needs an integer of at least 1, as in {name}:5. Its syntax is {SYNTAX[name]}."
        )
    return name, int(number)
