"""The reasons for the gold path's next action: the goal it serves, its purpose, and the last observation.

Uses the remaining actions, the table of goals and the observations. Objects and places that the agent hasn't seen yet
are not named, even though the gold path contains them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

_WAITS = ("wait", "wait1")
_WAITED = "You decide to wait"
"""The start of the observation after a wait."""
_MOVES = re.compile(r"(?:open door to|go to) (.+)")
_MAX_QUOTE = 160
_AHEAD = 12
"""How many actions ahead a purpose is looked for."""
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
    """The inputs of the expert's reasons."""

    left: Sequence[str]
    """The remaining actions of the gold path."""
    progress: str
    """ScienceWorld's table of goals."""
    shown: Sequence[str]
    """The task and all observations so far, in order."""
    asking: bool
    """Whether the game waits for the number of the action that was meant."""

    def thought(self) -> str:
        """Return the reason for the next action, on one line."""
        goals = self._goals()
        number, goal = next(((i, text) for i, (reached, text) in enumerate(goals, 1) if not reached), (0, ""))
        aim = f"Goal {number} of {len(goals)}{f': {goal}' if goal else ''}." if number else ""
        return " ".join(filter(None, (aim, self._seen(), self._reason())))

    def outline(self) -> str:
        """Return the remaining goals, and what is done now."""
        goals = [(i, text) for i, (reached, text) in enumerate(self._goals(), 1) if not reached]
        return "\n".join(
            [*(f"{i}. {text or 'What the task asks for.'}" for i, text in goals), f"Now: {self._reason()}"]
        )

    def _goals(self) -> list[tuple[bool, str]]:
        """Return the ordered goals, each with whether it is reached and ScienceWorld's description."""
        rows = (row.split("\t") for row in self.progress.partition("Unordered")[0].splitlines())
        return [(row[1] == "true", row[-1].strip()) for row in rows if len(row) > 2]

    def _seen(self) -> str:
        last = self.shown[-1].strip()
        brief = len(self.shown) > 1 and "\n" not in last and 0 < len(last) <= _MAX_QUOTE
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
        """Return how often the agent has waited, and what for: the first action after the waits."""
        waited = len(list(takewhile(lambda text: text.startswith(_WAITED), reversed(self.shown))))
        times = f"I have waited {waited} time{'s' * (waited > 1)} in a row. " * bool(waited)
        after = next((action for action in self.left if action not in _WAITS), "")
        known = after and all(map(self._was_shown, _things(after)))
        return f"{times}What goes on here takes time{f' before I can {after}' if known else ''}."

    def _on_the_way(self) -> str:
        """Return where the agent goes, and what for: the first action after the moves."""
        moves = [at for action in self.left if (at := _MOVES.fullmatch(action))]
        after = next((i for i, action in enumerate(self.left) if not _MOVES.fullmatch(action)), len(self.left))
        first, end = moves[0][1], moves[: max(after, 1)][-1][1]
        on = f" and on to the {end}" if end != first and self._was_shown(end) else ""
        for_what = "to look for what I need"
        if after < len(self.left) and self.left[after] == "look around":
            for_what = "to see what is there"
        elif after < len(self.left) and all(map(self._was_shown, _things(self.left[after]))):
            for_what = f"to {self.left[after]}"
        leads = "through the door to" if self.left[0].startswith("open") else "to"
        return f"My way leads {leads} the {first}{on}, {for_what}."

    def _purpose(self, action: str, later: Sequence[str]) -> str:
        """Return the next action that involves the same objects, if the agent has seen all of its objects."""
        things = _things(action)
        for after in later[:_AHEAD]:
            others = _things(after)
            if after != action and things & others and all(map(self._was_shown, others)):
                return f"Then I can {after}."
        return ""

    def _was_shown(self, thing: str) -> bool:
        return any(thing.lower() in text.lower() for text in self.shown)


def _things(action: str) -> set[str]:
    """Return the objects that an action names; the whole action if it matches no pattern."""
    found = next((at for pattern, _ in _WHY if (at := pattern.fullmatch(action))), None)
    return {_plain(thing) for thing in found.groups()} if found else {action}


def _plain(thing: str) -> str:
    return thing.removesuffix(" in inventory")
