"""How people read an episode: the thought in a reply apart from its action, the goal, what is new in an observation,
the passages that a search found and where they are cited. Text in, plain values out; knows no world and no page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from agentgym_envs import Episode, Turn
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.agents.formats.function_calls import CallingWrapper

_CALLING = {name for name, form in REPLY_FORMATS.items() if issubclass(form, CallingWrapper)}
_LABELS = re.compile(r"^\s*(?:Thought:|<think>)\s*|\s*(?:</think>|Action:)\s*$")
_CALL = re.compile(r'<tool_call>|```|\{\s*"')
_GOAL = re.compile(r"^(?:Your goal|Goal|Question|OBJECTIVE):\s*(.+)$|^(Your task is .+)$", re.MULTILINE)
_LONGEST_GOAL = 300
_INFORMATION = re.compile(r"<information>(.*)</information>", re.DOTALL)
_PASSAGE = re.compile(r"^Doc (\d+)\(Title: ((?:[^()\n]|\([^()\n]*\))*)\) (.*)$", re.MULTILINE)
_ON_ELEMENT = re.compile(r"[\s`]*(?:click|type|hover|select_option)\s*\[\s*(\d{1,9})\s*\]", re.IGNORECASE)
_ALIKE = 1 / 3
"""Of the lines of a text, so many must have stood before, or the others aren't news but another text."""


@dataclass(frozen=True, slots=True)
class Said:
    """A reply in its parts."""

    thought: str
    """What stands before the action without the marks around it; all of a reply that isn't an action."""
    action: str | None
    rest: str = ""
    """What stands behind the action and isn't a mark."""


def said(turn: Turn, form: str = "") -> Said:
    """The parts of a turn's reply, which was given in this form. The action itself is known, the marks differ."""
    text = turn.reply.text
    if turn.kind != "act" or turn.action is None:
        return Said(text.strip(), None)
    if form in _CALLING:
        return Said(_before_call(text), turn.action)
    at = text.rfind(turn.action)
    if at < 0:  # it was written over several lines
        return Said(_bare(text.rpartition("</think>")[0]), turn.action)
    return Said(_bare(text[:at]), turn.action, _bare(text[at + len(turn.action) :]))


def _before_call(text: str) -> str:
    """The thought beside a call, which may be a part of it."""
    try:
        record = json.loads(text)
    except ValueError:
        call = _CALL.search(text)
        return _bare(text[: call.start()] if call else text)
    return str(record.get("thought", "")) if isinstance(record, dict) else ""


def _bare(text: str) -> str:
    before = None
    while text != before:
        before, text = text, _LABELS.sub("", text)
    return text.strip()


def goal(episode: Episode) -> str:
    """What the task asks for, in the words of the first observation; its beginning where no line is the goal."""
    first = episode.turns[0].observation if episode.turns else episode.final_observation
    found = _GOAL.search(first)
    words = " ".join(((found[1] or found[2]) if found else first).split())
    return words if len(words) <= _LONGEST_GOAL else f"{words[:_LONGEST_GOAL]}…"


def lines(text: str, before: str | None) -> list[tuple[str, bool]]:
    """The lines of `text`, each with whether it is new beside `before`; none are where the two are different texts."""
    now = text.splitlines()
    if before is None or len(now) < 2:
        return [(line, False) for line in now]
    matching = SequenceMatcher(None, before.splitlines(), now, autojunk=False).get_matching_blocks()
    kept = {at for block in matching for at in range(block.b, block.b + block.size)}
    alike = sum(bool(now[at].strip()) for at in kept) >= _ALIKE * sum(bool(line.strip()) for line in now)
    return [(line, alike and at not in kept and bool(line.strip())) for at, line in enumerate(now)]


def element(action: str | None) -> int | None:
    """The number of the page element that a web action is about: 4 in `click [4]`; None of other actions."""
    found = _ON_ELEMENT.match(action or "")
    return int(found[1]) if found else None


def line_of(number: int | None, text: str) -> int | None:
    """Which line of an accessibility tree is the element with this number; None where none is."""
    if number is None:
        return None
    return next((at for at, line in enumerate(text.splitlines()) if line.lstrip().startswith(f"[{number}] ")), None)


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that a search found."""

    anchor: str
    """Its name on the page."""
    number: int
    """Under which it was shown."""
    title: str
    text: str


def passages(observation: str, name: str) -> list[Passage]:
    """What a search found, in Search-R1's form; nothing in other observations. Anchors begin with `name`."""
    information = _INFORMATION.fullmatch(observation.strip())
    if information is None:
        return []
    found = _PASSAGE.finditer(information[1])
    return [Passage(f"{name}-{one[1]}", int(one[1]), one[2], one[3]) for one in found]


def cited(text: str, known: Sequence[Passage]) -> list[tuple[str, Passage | None]]:
    """`text` in pieces, those that name a passage by `Doc N` or its title with that passage, the last found first."""
    names: dict[str, Passage] = {}
    for passage in known:
        names |= {f"Doc {passage.number}": passage}
        names |= {passage.title: passage} if len(passage.title) > 3 else {}
    if not names:
        return [(text, None)]
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return list(_pieces(text, re.finditer(rf"(?<!\w)(?:{either})(?!\w)", text), names))


def _pieces(
    text: str, found: Iterable[re.Match[str]], names: dict[str, Passage]
) -> Iterator[tuple[str, Passage | None]]:
    at = 0
    for name in found:
        if name.start() > at:
            yield text[at : name.start()], None
        yield name[0], names[name[0]]
        at = name.end()
    if at < len(text):
        yield text[at:], None
