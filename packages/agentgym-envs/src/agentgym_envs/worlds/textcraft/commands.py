"""Parses an agent's text to a `Get`, `Craft` or `Look` command. Does not depend on the inventory.

Parsing is lenient where this is unambiguous: case, spaces, underscores, a `minecraft:` prefix and a final full stop are
ignored. For any other text the `Refusal` explains what would be understood.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from agentgym_envs.worlds.textcraft.recipes import load_table

MAX_AMOUNT = 999
"""The maximum amount that one command gathers or crafts."""

_GET = re.compile(r"get (?:([0-9]+) )?(.+)")
_CRAFT = re.compile(r"craft (?:([0-9]+) )?(.+?)(?: using (.+))?")
_ENTRY = re.compile(r"(?:([0-9]+) )?(.+)")
_TAGS = {
    "coals": "charcoal or coal",
    "soul fire base blocks": "soul sand or soul soil",
    "stone crafting materials": "blackstone or cobblestone",
    "stone tool materials": "blackstone or cobblestone",
}
"""The game's names of sets of alternatives that this environment names by their members."""
_HELP = "The commands are: get N ITEM; craft N ITEM using N ITEM, N ITEM; inventory."
_MAX_ECHO = 40


class Refusal(Exception):
    """Raised for a command that can't be parsed or executed. Its text tells the agent why, and what is possible."""


@dataclass(frozen=True, slots=True)
class Get:
    """Gather `amount` of `item`."""

    item: str
    amount: int


@dataclass(frozen=True, slots=True)
class Craft:
    """Craft `amount` of `item` from `using`, amounts by name of an item or a set of alternatives."""

    item: str
    amount: int
    using: dict[str, int]


@dataclass(frozen=True, slots=True)
class Look:
    """Show the inventory."""


Command = Get | Craft | Look


def read(text: str) -> Command:
    """Parse the command in `text`.

    Raises:
        Refusal: if `text` is not a command.
    """
    command = " ".join(text.lower().replace("minecraft:", "").replace("_", " ").split()).removesuffix(".").rstrip()
    if command == "inventory":
        return Look()
    if found := _GET.fullmatch(command):
        return Get(_gathered(found[2]), _amount(found[1], command))
    if found := _CRAFT.fullmatch(command):
        if found[3] is None:
            raise Refusal(f"Say what to craft it from: craft {found[1] or 'N'} {_echo(found[2])} using N ITEM, N ITEM.")
        return Craft(_item(found[2]), _amount(found[1], command), _using(found[3]))
    raise Refusal(f"I don't understand '{_echo(command)}'. {_HELP}")


def _using(ingredients: str) -> dict[str, int]:
    using: dict[str, int] = {}
    for part in ingredients.split(","):
        found = _ENTRY.fullmatch(part.strip())
        if found is None:
            raise Refusal("There is an empty place in what you use. Write: using N ITEM, N ITEM.")
        name = _TAGS.get(found[2], found[2])
        name = name if name in load_table().sets else _item(name)
        using[name] = using.get(name, 0) + _amount(found[1], part.strip())
    return using


def _amount(digits: str | None, context: str) -> int:
    if digits is None:
        raise Refusal(f"Say how many in '{_echo(context)}': a number comes before every item.")
    if len(digits) > len(str(MAX_AMOUNT)) or int(digits) == 0:
        raise Refusal(f"An amount is a number from 1 to {MAX_AMOUNT}, not {_echo(digits)}.")
    return int(digits)


def _gathered(name: str) -> str:
    """Return the item that `get` gives; for a set, its gatherable member with the shortest name."""
    table = load_table()
    members = table.sets.get(_TAGS.get(name, name), ())
    options = sorted((member for member in members if member in table.gathered), key=lambda item: (len(item), item))
    return options[0] if options else _item(name)


def _item(name: str) -> str:
    table = load_table()
    if name in table.items:
        return name
    if name in table.sets:
        raise Refusal(f"'{name}' stands for any of {', '.join(table.sets[name])}. Name one of them.")
    near = _near(name[:_MAX_ECHO])
    hint = f"Did you mean {' or '.join(near)}?" if near else "Names are as in the crafting commands."
    raise Refusal(f"There is no item '{_echo(name)}'. {hint}")


@lru_cache(maxsize=1024)
def _near(name: str) -> list[str]:
    """Return items with similar names. Cached: a search takes as long as 1,000 steps, and agents repeat mistakes."""
    return difflib.get_close_matches(name, sorted(load_table().items), n=3)


def _echo(text: str) -> str:
    """Truncate the agent's text and replace characters that can't be encoded, to quote it in a message."""
    short = text if len(text) <= _MAX_ECHO else f"{text[:_MAX_ECHO]}…"
    return short.encode(errors="replace").decode()
