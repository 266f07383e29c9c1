"""Extraction of structure from an episode's texts, for display.

Finds the thought and the action in a reply, the goal of the task, the new lines of an observation, and the passages
that a search returned with their citations. Does not depend on environments or pages.
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

_CALL_FORMATS = {name for name, wrapper in REPLY_FORMATS.items() if issubclass(wrapper, CallingWrapper)}
_LABELS = re.compile(r"^\s*(?:Thought:|<think>)\s*|\s*(?:</think>|Action:)\s*$")
_CALL = re.compile(r'<tool_call>|```|\{\s*"')
_GOAL = re.compile(r"^(?:Your goal|Goal|Question|OBJECTIVE):\s*(.+)$|^(Your task is .+)$", re.MULTILINE)
_MAX_GOAL = 300
_INFORMATION = re.compile(r"<information>(.*)</information>", re.DOTALL)
_PASSAGE = re.compile(r"^Doc (\d+)\(Title: ((?:[^()\n]|\([^()\n]*\))*)\) (.*)$", re.MULTILINE)
_VERBS = r"[\s`]*(?:(?:double_|right_)?click|type|hover|select_option|select_text|drag|scroll\s*\[\s*(?:up|down)\s*\])"
_ON_ELEMENT = re.compile(rf"{_VERBS}\s*+\[?\s*+(\d{{1,9}})\s*+(?:\]|$)", re.IGNORECASE)
_NAME = r"""\S+ (?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?: #\d+)?"""
_ON_NAME = re.compile(rf"{_VERBS}\s*\[\s*({_NAME})\s*\]", re.IGNORECASE)
_XY = r"(\d{1,5})(?:\s*,\s*|\s+)(\d{1,5})"
_ON_POINT = re.compile(rf"{_VERBS}\s*+[\[(]?\s*+{_XY}", re.IGNORECASE)
_DRAG_END = re.compile(
    rf"[\s`]*drag\s*\[(?:\s*{_NAME}\s*|[^\]]*)\]\s*(?:to\s*)?\[\s*(?:{_XY}|(\d{{1,9}}|{_NAME}))\s*\]", re.IGNORECASE
)
_MANY = 500  # lines, beyond which frequent ones are not compared, which would take long
_MIN_COMMON = 1 / 3
"""Minimum share of lines in common with the previous text; below it, the texts are unrelated and no line is new."""


@dataclass(frozen=True, slots=True)
class ReplyParts:
    """The parts of a reply."""

    thought: str
    """The text before the action, without labels such as `Thought:`; the whole reply if it has no action."""
    action: str | None
    rest: str = ""
    """The text after the action, without labels."""


def split_reply(turn: Turn, reply_format: str = "") -> ReplyParts:
    """Split a turn's reply. The action is recorded in the turn; the labels around it depend on the reply format."""
    text = turn.reply.text
    if turn.kind != "act" or turn.action is None:
        return ReplyParts(text.strip(), None)
    if reply_format in _CALL_FORMATS:
        return ReplyParts(_call_thought(text), turn.action)
    at = text.rfind(turn.action)
    if at < 0:  # the action spans several lines of the reply
        return ReplyParts(_strip_labels(text.rpartition("</think>")[0]), turn.action)
    return ReplyParts(_strip_labels(text[:at]), turn.action, _strip_labels(text[at + len(turn.action) :]))


def _call_thought(text: str) -> str:
    """Return the thought before a function call, or in its `thought` field if the whole reply is JSON."""
    try:
        record = json.loads(text)
    except ValueError:
        call = _CALL.search(text)
        return _strip_labels(text[: call.start()] if call else text)
    return str(record.get("thought", "")) if isinstance(record, dict) else ""


def _strip_labels(text: str) -> str:
    before = None
    while text != before:
        before, text = text, _LABELS.sub("", text)
    return text.strip()


def goal(episode: Episode) -> str:
    """Return the goal from the first observation, or the beginning of that observation if no line states a goal."""
    first = episode.turns[0].observation if episode.turns else episode.final_observation
    match = _GOAL.search(first)
    text = " ".join(((match[1] or match[2]) if match else first).split())
    return text if len(text) <= _MAX_GOAL else f"{text[:_MAX_GOAL]}…"


def lines(text: str, before: str | None) -> list[tuple[str, bool]]:
    """Return the lines of `text`, each with whether it is new since `before`; none is if the texts are unrelated."""
    now = text.splitlines()
    if before is None or len(now) < 2:
        return [(line, False) for line in now]
    matcher = SequenceMatcher(_is_blank, before.splitlines(), now, autojunk=len(now) > _MANY)
    matching = matcher.get_matching_blocks()
    kept = {at for block in matching for at in range(block.b, block.b + block.size)}
    related = sum(bool(now[at].strip()) for at in kept) >= _MIN_COMMON * sum(bool(line.strip()) for line in now)
    return [(line, related and at not in kept and bool(line.strip())) for at, line in enumerate(now)]


def _is_blank(line: str) -> bool:
    """Return whether a line says nothing. Comparing by blank lines takes minutes, since each is equal to all others."""
    return not line.strip()


def element(action: str | None) -> str | None:
    """Return the number or the name of the page element in a web action, such as `4` in `click [4]` and
    `button 'Save'` in `click [button 'Save']`; None for other actions.
    """
    match = _ON_ELEMENT.match(action or "") or _ON_NAME.match(action or "")
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Target:
    """What a web action is about: an element by its number or name, or a point in pixels of the window."""

    element: str | None = None
    point: tuple[int, int] | None = None


def targets(action: str | None) -> list[Target]:
    """Return what a web action is about: nothing, one element or point, or the two of a drag."""
    text = action or ""
    found: list[Target] = []
    if named := element(text):
        found.append(Target(named))
    elif match := _ON_POINT.match(text):
        found.append(Target(point=(int(match[1]), int(match[2]))))
    if found and (end := _DRAG_END.match(text)):
        found.append(Target(end[3]) if end[3] else Target(point=(int(end[1]), int(end[2]))))
    return found


def line_of(element: str | None, text: str) -> int | None:
    """Return the line of an accessibility tree with this element number or name; None if there is none."""
    if element is None:
        return None
    start = rf"\[{element}\] " if element.isdecimal() else rf"{re.escape(element)}(?! #\d)(?: |$)"
    return next((at for at, line in enumerate(text.splitlines()) if re.match(rf"\s*{start}", line)), None)


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that a search returned."""

    anchor: str
    """Its HTML id on the page."""
    number: int
    """Its number in the search results."""
    title: str
    text: str


def passages(observation: str, prefix: str) -> list[Passage]:
    """Parse search results in Search-R1's format; empty for other observations. Anchors begin with `prefix`."""
    information = _INFORMATION.fullmatch(observation.strip())
    if information is None:
        return []
    matches = _PASSAGE.finditer(information[1])
    return [Passage(f"{prefix}-{match[1]}", int(match[1]), match[2], match[3]) for match in matches]


def cited(text: str, known: Sequence[Passage]) -> list[tuple[str, Passage | None]]:
    """Split `text` at citations, `Doc N` or a title, and pair each piece with the most recent passage it cites."""
    names: dict[str, Passage] = {}
    for passage in known:
        names |= {f"Doc {passage.number}": passage}
        names |= {passage.title: passage} if len(passage.title) > 3 else {}
    if not names:
        return [(text, None)]
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return list(_pieces(text, re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text), names))


def _pieces(
    text: str, matches: Iterable[re.Match[str]], names: dict[str, Passage]
) -> Iterator[tuple[str, Passage | None]]:
    at = 0
    for match in matches:
        if match.start() > at:
            yield text[at : match.start()], None
        yield match[0], names[match[0]]
        at = match.end()
    if at < len(text):
        yield text[at:], None
