"""Translate key names as agents write them to Playwright's."""

from __future__ import annotations

from dataclasses import dataclass

_MODIFIERS = {
    "ctrl": "Control",
    "control": "Control",
    "cmd": "Control",  # on a Mac, Cmd is the key for what Ctrl does here
    "command": "Control",
    "shift": "Shift",
    "alt": "Alt",
    "option": "Alt",
    "meta": "Meta",
}
_NAMES = (
    "Enter", "Tab", "Escape", "Backspace", "Delete", "Insert", "Space", "ArrowUp", "ArrowDown", "ArrowLeft",
    "ArrowRight", "Home", "End", "PageUp", "PageDown", "CapsLock", *(f"F{i}" for i in range(1, 13)),
)  # fmt: skip
_OTHERS = {"return": "Enter", "esc": "Escape", "del": "Delete", "ins": "Insert", "spacebar": "Space"}
_ARROWS = {way.lower(): f"Arrow{way}" for way in ("Up", "Down", "Left", "Right")}
_KEYS = {name.lower(): name for name in _NAMES} | _OTHERS | _ARROWS

KNOWN = f"{', '.join(_NAMES)}, single characters, and Ctrl, Shift, Alt, Meta before a +"
"""A description of the keys that can be pressed."""


@dataclass(frozen=True, slots=True)
class Chord:
    """Keys in Playwright's names, joined by `+`; or empty, with a hint for the agent, if there is no such key."""

    keys: str = ""
    hint: str = ""


def chord(written: str) -> Chord:
    """Parse a key combination such as `ctrl+v`, `page down`, `Shift++` or `ArrowDown`."""
    *before, last = _parts(written)
    names = [_MODIFIERS.get(name.lower()) for name in before]
    unknown = next((name for name, found in zip(before, names, strict=True) if found is None), None)
    if unknown is not None:
        return Chord(
            hint=f"{unknown[:20]!r} can't be held while another key is pressed; Ctrl, Shift, Alt and Meta can."
        )
    key = _key(last)
    if key is None:
        return Chord(hint=f"There is no key {last[:20]!r}. The keys are {KNOWN}.")
    if "Shift" in names and len(key) == 1:
        key = key.upper()
    return Chord("+".join([*(name for name in names if name), key]))


def _parts(written: str) -> list[str]:
    """Split at the plus signs; a plus sign at the end is the key itself."""
    if written == "+":
        return ["+"]
    plus = ["+"] if written.endswith("++") else []
    return [part.strip() for part in written.removesuffix("++" if plus else "").split("+")] + plus


def _key(name: str) -> str | None:
    if len(name) == 1:
        return name if name.isascii() and name.isprintable() else None
    plain = "".join(c for c in name.lower() if c not in " _-")
    return _KEYS.get(plain) or _MODIFIERS.get(plain)
