"""What an agent does beside acting, as data, and how that is written in the name of an agent.

Knows neither conversations nor worlds; `dialogue` is what habits come to.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

_WRITTEN = {
    "plan": "plan[:N]",
    "window": "window:N",
    "reflect": "reflect:N",
    "retry": "retry[:K]",
    "turns_left": "turns_left",
}
_UNSAID = {"plan": 0, "retry": 1, "turns_left": True}
"""What a habit without a number means."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What an agent does beside acting. Each is a turn of its own with tokens like any other, so all can be trained."""

    plan: int | None = None
    """It writes a plan before its first action, and with a number above 0 anew after every so many."""
    window: int = 0
    """The most actions it has in sight when it chooses the next. Where there would be more, it is asked for a summary;
    then the conversation begins anew with that and the last half of the window. 0: it sees all."""
    reflect: int = 0
    """Number of actions after which it looks back, again and again; 0 is never."""
    retry: int = 0
    """How often it begins the task again after an attempt that ended without success, having looked back (Shinn et al.
    2023, Reflexion, arXiv 2303.11366)."""
    turns_left: bool = False
    """It is told with every observation how many actions are left to it in this attempt (time awareness, Pardo et al.
    2018, arXiv 1712.00378). This is no turn of its own."""

    def __post_init__(self) -> None:
        for name in _WRITTEN:
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"The number of {name} is at least 0, not {number}.")

    def __str__(self) -> str:
        """As it stands behind the form in the name of an agent: `+plan:8+window:6`."""
        return "".join(f"+{word}" for word in self._words())

    def _words(self) -> Iterator[str]:
        for name in _WRITTEN:
            number = getattr(self, name)
            if number != getattr(_NONE, name):
                yield name if number == _UNSAID.get(name) else f"{name}:{number}"

    @classmethod
    def parse(cls, agent: str) -> Scaffold:
        """The habits in `[FORM][+HABIT[:N]]...`, the name of an agent; their order doesn't matter.

        Raises:
            ValueError: for a word that is no habit or a second time the same, or a number that is missing or below 1.
        """
        habits, seen = cls(), set[str]()
        for word in agent.split("+")[1:]:
            name, number = _read(word)
            if name in seen:
                raise ValueError(f"The habit {name} stands twice in {agent!r}; write it once.")
            seen.add(name)
            habits = replace(habits, **{name: number})
        return habits


_NONE = Scaffold()


def _read(word: str) -> tuple[str, int]:
    name, colon, number = word.partition(":")
    if name not in _WRITTEN:
        near = difflib.get_close_matches(name, _WRITTEN, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"There is no habit {word!r}.{hint} Habits: {', '.join(_WRITTEN.values())}.")
    if not colon and name in _UNSAID:
        return name, _UNSAID[name]
    if name == _WRITTEN[name]:
        raise ValueError(f"The habit {name} takes no number; write {name}, not {word}.")
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(f"The habit {word!r} needs a whole number from 1, as in {name}:5; it is {_WRITTEN[name]}.")
    return name, int(number)
