"""WebArena's action grammar, extended by a few actions such as `select_option`, `drag` and `wait`, and its parser.

The parser doesn't look at pages: whether an element exists is checked when the action is performed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from agentgym_envs.worlds.webarena.actions.action_types import (
    MAX_WAIT,
    Action,
    Click,
    CloseTab,
    Drag,
    GoBack,
    GoForward,
    Goto,
    Hover,
    NewTab,
    Point,
    Press,
    Scroll,
    Select,
    SelectText,
    Stop,
    TabFocus,
    Target,
    Type,
    Wait,
)
from agentgym_envs.worlds.webarena.actions.keys import chord

_LINES = {
    "click": "click [id]",
    "type": "type [id] [content] [press_enter_after=0|1]",
    "hover": "hover [id]",
    "double_click": "double_click [id]",
    "right_click": "right_click [id]",
    "drag": "drag [id] [id]",
    "select_text": "select_text [id] [text]",
    "press": "press [key_comb]",
    "scroll": "scroll [down|up]",
    "select_option": "select_option [id] [option]",
    "wait": "wait [seconds]",
    "new_tab": "new_tab",
    "tab_focus": "tab_focus [tab_index]",
    "close_tab": "close_tab",
    "goto": "goto [url]",
    "go_back": "go_back",
    "go_forward": "go_forward",
    "stop": "stop [answer]",
}
GRAMMAR = "\n".join(_LINES.values())
"""The grammar, one line for each action."""

_EXAMPLES = {
    "click": "click [12]",
    "type": "type [12] [red shoes] [1]",
    "hover": "hover [12]",
    "double_click": "double_click [12]",
    "right_click": "right_click [12]",
    "drag": "drag [12] [17]",
    "select_text": "select_text [12] [some words]",
    "press": "press [Ctrl+v]",
    "scroll": "scroll [down]",
    "select_option": "select_option [12] [Medium]",
    "wait": "wait [2]",
    "tab_focus": "tab_focus [0]",
    "goto": "goto [http://home.example/]",
    "stop": "stop [42]",
}
_MEANT = {
    "select": "select_option",
    "dblclick": "double_click",
    "context_click": "right_click",
    "highlight": "select_text",
}
_SHOWN = 60
_XY = r"\d{1,5}(?:\s*,\s*|\s+)\d{1,5}"
_TARGET = rf"\[\s*({_XY}|\d{{1,9}})\s*\]"
_PLACE = rf"[\[(]?\s*({_XY}|\d{{1,9}})\s*[\])]?"
_ID = r"\[?\s*(\d{1,9})\s*\]?"
_TEXT = r"\[(.*)\]"


def parse(text: str) -> Action | str:
    """Parse an action, or return a hint for the agent if `text` is not an action. Never raises.

    Case, blanks and backticks around the action are ignored, and brackets around a number or a point are optional. If
    the text as a whole is no action but has exactly one fenced part (as in WebArena's prompts), that part is parsed.
    """
    parsed = _parse(text.strip().strip("`").strip())
    fenced = re.findall(r"```(.+?)```", text, re.DOTALL)
    return _parse(fenced[0].strip()) if isinstance(parsed, str) and len(fenced) == 1 else parsed


def on_one_line(content: str) -> str:
    r"""Return the content of `type` with `\n` for each line break, since an action in a reply is often one line.

    Backslashes before a line break or an `n` are doubled.
    """
    return re.sub(r"(\\*)(n|\n)", lambda found: found[1] * 2 + ("n" if found[2] == "n" else r"\n"), content)


def _content(written: str) -> str:
    r"""Return the content in which `\n` stands for a line break; `on_one_line` is the inverse."""
    return re.sub(r"(\\+)n", lambda found: found[1][: len(found[1]) // 2] + "n\n"[len(found[1]) % 2], written)


def _parse(text: str) -> Action | str:
    verb, rest = _split(text)
    if verb not in _PARSERS:
        return _unknown(text, verb)
    action = _PARSERS[verb](rest)
    if action is None:
        example = f", such as {_EXAMPLES[verb]}" if verb in _EXAMPLES else ""
        return f"{_short(text)} is not complete or has something left over; write {_LINES[verb]}{example}."
    return action


def _split(text: str) -> tuple[str, str]:
    """Split text into the normalized verb and the rest. `go back` and `Tab-Focus` are accepted spellings."""
    found = re.match(
        r"([a-z]+(?:[ _-](?:tab|focus|back|forward|option|click|text)\b)?)(.*)", text, re.DOTALL | re.IGNORECASE
    )
    if found is None:
        return "", text
    return re.sub("[ -]", "_", found[1].lower()), found[2].strip()


def _unknown(text: str, verb: str) -> str:
    near = [_MEANT[verb]] if verb in _MEANT else get_close_matches(verb, _LINES, 1, 0.5)
    suggestion = f" Did you mean {_LINES[near[0]]}?" if near else ""
    return f"{_short(text)} is not an action.{suggestion} The actions are: {', '.join(_LINES.values())}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")


def _element(make: Callable[[int], Action]) -> Callable[[str], Action | None]:
    def read(rest: str) -> Action | None:
        found = re.fullmatch(_ID, rest)
        return make(int(found[1])) if found else None

    return read


def _target(written: str) -> Target:
    numbers = [int(number) for number in re.findall(r"\d+", written)]
    return numbers[0] if len(numbers) == 1 else Point(*numbers)


def _mouse(make: Callable[[Target], Action]) -> Callable[[str], Action | None]:
    def read(rest: str) -> Action | None:
        found = re.fullmatch(_PLACE, rest)
        return make(_target(found[1])) if found else None

    return read


def _drag(rest: str) -> Action | None:
    found = re.fullmatch(rf"{_TARGET}\s*(?:to\s*)?{_TARGET}", rest, re.IGNORECASE)
    return Drag(_target(found[1]), _target(found[2])) if found else None


def _select_text(rest: str) -> Action | None:
    found = re.fullmatch(rf"\[\s*(\d{{1,9}})\s*\](?:\s*{_TEXT})?", rest, re.DOTALL)
    return SelectText(int(found[1]), (found[2] or "").strip()) if found else None


def _without_arguments(action: Action) -> Callable[[str], Action | None]:
    return lambda rest: action if rest in ("", "[]", "()") else None


def _type(rest: str) -> Action | None:
    # The content ends at the last bracket that is followed by nothing or only by the flag.
    flag = r"(?:\s*\[\s*(?:press_enter_after\s*=\s*)?([01])\s*\])?"
    found = re.fullmatch(rf"{_TARGET}\s*\[(.*?)\]{flag}", rest, re.DOTALL | re.IGNORECASE)
    return Type(_target(found[1]), _content(found[2]), found[3] != "0") if found else None


def _select(rest: str) -> Action | None:
    found = re.fullmatch(rf"{_TARGET}\s*{_TEXT}", rest, re.DOTALL)
    return Select(_target(found[1]), found[2].strip()) if found else None


def _press(rest: str) -> Action | str | None:
    found = re.fullmatch(_TEXT, rest)
    keys = (found[1] if found else rest).strip()
    if not keys:
        return None
    parsed = chord(keys)
    return Press(parsed.keys) if parsed.keys else parsed.hint


def _scroll(rest: str) -> Action | None:
    way = r"\[?\s*(?:direction\s*=\s*)?(up|down)\s*\]?"
    found = re.fullmatch(rf"{way}(?:\s*{_TARGET})?", rest, re.IGNORECASE)
    if found is None:
        return None
    return Scroll("up" if found[1].lower() == "up" else "down", _target(found[2]) if found[2] else None)


def _wait(rest: str) -> Action | str | None:
    if rest in ("", "[]", "()"):
        return Wait()
    found = re.fullmatch(r"\[?\s*(?:seconds\s*=\s*)?([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*s?\s*\]?", rest, re.IGNORECASE)
    if found is None:
        return None
    if float(found[1]) > MAX_WAIT:
        return f"One wait lasts at most {MAX_WAIT:g} seconds; wait [{MAX_WAIT:g}], then wait again if needed."
    return Wait(float(found[1]))


def _goto(rest: str) -> Action | None:
    found = re.fullmatch(_TEXT, rest)
    url = (found[1] if found else rest).strip()
    if not url or any(c.isspace() for c in url):
        return None
    return Goto(f"http://{url}" if re.match(r"(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::\d+)?(?:[/?#]|$)", url) else url)


def _stop(rest: str) -> Action | None:
    found = re.fullmatch(_TEXT, rest, re.DOTALL)
    if found is None and rest:
        return None
    return Stop(found[1].strip() if found else "")


_PARSERS: dict[str, Callable[[str], Action | str | None]] = {
    "click": _mouse(Click),
    "type": _type,
    "hover": _mouse(Hover),
    "double_click": _mouse(lambda target: Click(target, "double")),
    "right_click": _mouse(lambda target: Click(target, "right")),
    "drag": _drag,
    "select_text": _select_text,
    "press": _press,
    "scroll": _scroll,
    "select_option": _select,
    "wait": _wait,
    "new_tab": _without_arguments(NewTab()),
    "tab_focus": _element(TabFocus),
    "close_tab": _without_arguments(CloseTab()),
    "goto": _goto,
    "go_back": _without_arguments(GoBack()),
    "go_forward": _without_arguments(GoForward()),
    "stop": _stop,
}
