"""Why the next action of ScienceWorld's solution comes next: the goal it serves, what it is for, what was just seen.

Knows the actions that are left, the table of goals and what the agent was shown. Things and places that were never
shown are not named before their time, though the solution knows where they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

_WAITS = ("wait", "wait1")
_WAITED = "You decide to wait"
"""How the answer to a wait begins."""
_MOVES = re.compile(r"(?:open door to|go to) (.+)")
_LONGEST = 160
_AHEAD = 12
"""How far ahead, in actions, a purpose is looked for."""
_WHY: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"focus on (.+)", "The task wants me to point out what it is about, and that is the {}."),
        (r"pick up (.+)", "I need the {} with me."),
        (r"(?:put down|drop) (.+)", "I don't need the {} in my hands any more."),
        (r"move (.+) to (.+)", "I want the {} to be in or on the {}."),
        (r"pour (.+) into (.+)", "I want what is in the {} to be in the {}."),
        (r"mix (.+)", "I want what is in the {} to become one."),
        (r"activate (.+)", "I need the {} to be on."),
        (r"deactivate (.+)", "I don't need the {} to be on any more."),
        (r"open (.+)", "Only when the {} is open can I see and use what is in it."),
        (r"close (.+)", "I want the {} to be closed."),
        (r"connect (.+) to (.+)", "The circuit needs the {} and the {} to be connected."),
        (r"use (.+) on (.+)", "I want to know what the {} shows for the {}."),
        (r"(?:look at|look in|examine) (.+)", "I want to see how it stands with the {}."),
        (r"read (.+)", "I want to know what the {} says."),
        (r"look around", "I want to see what is here."),
    )
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the expert goes by."""

    left: Sequence[str]
    """The actions of the solution that are still to come."""
    progress: str
    """ScienceWorld's table of goals."""
    shown: Sequence[str]
    """The task and every observation, from first to last."""
    asking: bool
    """Whether the game waits for the number of the action that was meant."""

    def thought(self) -> str:
        """Why the next action comes next. On one line."""
        goals = self._goals()
        number, goal = next(((i, text) for i, (reached, text) in enumerate(goals, 1) if not reached), (0, ""))
        aim = f"Goal {number} of {len(goals)}{f': {goal}' if goal else ''}." if number else ""
        return " ".join(filter(None, (aim, self._seen(), self._reason())))

    def outline(self) -> str:
        """The goals that are left, and what is done now."""
        goals = [(i, text) for i, (reached, text) in enumerate(self._goals(), 1) if not reached]
        return "\n".join(
            [*(f"{i}. {text or 'What the task asks for.'}" for i, text in goals), f"Now: {self._reason()}"]
        )

    def _goals(self) -> list[tuple[bool, str]]:
        """The goals that have to be reached one after the other: whether they are, and what ScienceWorld calls them."""
        rows = (row.split("\t") for row in self.progress.partition("Unordered")[0].splitlines())
        return [(row[1] == "true", row[-1].strip()) for row in rows if len(row) > 2]

    def _seen(self) -> str:
        last = self.shown[-1].strip()
        brief = len(self.shown) > 1 and "\n" not in last and 0 < len(last) <= _LONGEST
        return f"I have just seen: {last.rstrip('.')}." if brief else ""

    def _reason(self) -> str:
        if not self.left:
            return "I have done all that I know to do, so I wait."
        action, *later = self.left
        if self.asking:
            meant = re.search(rf"^{action}:\s*(.+)", self.shown[-1], re.MULTILINE)
            return f"Of what I am asked I mean: {meant[1].strip()}." if meant else "I am asked which one I mean."
        if action in _WAITS:
            return self._waiting()
        if _MOVES.fullmatch(action):
            return self._on_the_way()
        found = next(((at, why) for pattern, why in _WHY if (at := pattern.fullmatch(action))), None)
        if found is None:
            return f"It is time to {action}."
        return " ".join(filter(None, (found[1].format(*map(_plain, found[0].groups())), self._purpose(action, later))))

    def _waiting(self) -> str:
        """How often already, and what for: the first action after the waits."""
        waited = len(list(takewhile(lambda text: text.startswith(_WAITED), reversed(self.shown))))
        times = f"I have waited {waited} time{'s' * (waited > 1)} in a row. " * bool(waited)
        after = next((action for action in self.left if action not in _WAITS), "")
        known = after and all(map(self._was_shown, _things(after)))
        return f"{times}What goes on here takes time{f' before I can {after}' if known else ''}."

    def _on_the_way(self) -> str:
        """Where to, and what for: the first action after the moves."""
        moves = [at for action in self.left if (at := _MOVES.fullmatch(action))]
        deed = next((i for i, action in enumerate(self.left) if not _MOVES.fullmatch(action)), len(self.left))
        first, end = moves[0][1], moves[: max(deed, 1)][-1][1]
        on = f" and on to the {end}" if end != first and self._was_shown(end) else ""
        for_what = "to look for what I need"
        if deed < len(self.left) and self.left[deed] == "look around":
            for_what = "to see what is there"
        elif deed < len(self.left) and all(map(self._was_shown, _things(self.left[deed]))):
            for_what = f"to {self.left[deed]}"
        leads = "through the door to" if self.left[0].startswith("open") else "to"
        return f"My way leads {leads} the {first}{on}, {for_what}."

    def _purpose(self, action: str, later: Sequence[str]) -> str:
        """The next action that has to do with the same things, if the agent can know of it."""
        things = _things(action)
        for after in later[:_AHEAD]:
            others = _things(after)
            if after != action and things & others and all(map(self._was_shown, others)):
                return f"Then I can {after}."
        return ""

    def _was_shown(self, thing: str) -> bool:
        return any(thing.lower() in text.lower() for text in self.shown)


def _things(action: str) -> set[str]:
    """The things that an action names, as far as one can tell."""
    found = next((at for pattern, _ in _WHY if (at := pattern.fullmatch(action))), None)
    return {_plain(thing) for thing in found.groups()} if found else {action}


def _plain(thing: str) -> str:
    return thing.removesuffix(" in inventory")
