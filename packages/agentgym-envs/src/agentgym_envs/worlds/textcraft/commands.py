"""What an agent may say, and what it means: text to `Get`, `Craft` or `Look`. Knows no inventory.

Reading is forgiving where nothing is lost: case, spaces, underscores, a `minecraft:` before a name and a full stop at
the end don't matter. Everything else is answered with a `Refusal` that says what would be understood.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from agentgym_envs.worlds.textcraft.recipes import load_table

MAX_AMOUNT = 999
"""The most that one command gathers or crafts."""

_GET = re.compile(r"get (?:([0-9]+) )?(.+)")
_CRAFT = re.compile(r"craft (?:([0-9]+) )?(.+?)(?: using (.+))?")
_ENTRY = re.compile(r"(?:([0-9]+) )?(.+)")
_TAGS = {
    "coals": "charcoal or coal",
    "soul fire base blocks": "soul sand or soul soil",
    "stone crafting materials": "blackstone or cobblestone",
    "stone tool materials": "blackstone or cobblestone",
}
"""What the game itself calls sets of alternatives that are called by their members here."""
_HELP = "The commands are: get N ITEM; craft N ITEM using N ITEM, N ITEM; inventory."
_ECHO = 40


class Refusal(Exception):
    """A command that can't be understood or carried out. Its text tells the agent why, and what could be."""


@dataclass(frozen=True, slots=True)
class Get:
    """Gather `amount` of `item`."""

    item: str
    amount: int


@dataclass(frozen=True, slots=True)
class Craft:
    """Make `amount` of `item` out of `using`, whose names are items or sets of alternatives."""

    item: str
    amount: int
    using: dict[str, int]


@dataclass(frozen=True, slots=True)
class Look:
    """Look into the inventory."""


Command = Get | Craft | Look


def read(text: str) -> Command:
    """The command in `text`.

    Raises:
        Refusal: when there is none.
    """
    said = " ".join(text.lower().replace("minecraft:", "").replace("_", " ").split()).removesuffix(".")
    if said == "inventory":
        return Look()
    if found := _GET.fullmatch(said):
        return Get(_gathered(found[2]), _amount(found[1], said))
    if found := _CRAFT.fullmatch(said):
        if found[3] is None:
            raise Refusal(f"Say what to craft it from: craft {found[1] or 'N'} {_echo(found[2])} using N ITEM, N ITEM.")
        return Craft(_item(found[2]), _amount(found[1], said), _using(found[3]))
    raise Refusal(f"I don't understand '{_echo(said)}'. {_HELP}")


def _using(said: str) -> dict[str, int]:
    using: dict[str, int] = {}
    for part in said.split(","):
        found = _ENTRY.fullmatch(part.strip())
        if found is None:
            raise Refusal("There is an empty place in what you use. Write: using N ITEM, N ITEM.")
        name = _TAGS.get(found[2], found[2])
        name = name if name in load_table().sets else _item(name)
        using[name] = using.get(name, 0) + _amount(found[1], part.strip())
    return using


def _amount(digits: str | None, said: str) -> int:
    if digits is None:
        raise Refusal(f"Say how many in '{_echo(said)}': a number comes before every item.")
    if len(digits) > len(str(MAX_AMOUNT)) or int(digits) == 0:
        raise Refusal(f"An amount is a number from 1 to {MAX_AMOUNT}, not {_echo(digits)}.")
    return int(digits)


def _gathered(name: str) -> str:
    """The item that `get` gives: of a set the plainest that can be gathered."""
    table = load_table()
    members = table.sets.get(_TAGS.get(name, name), ())
    plain = sorted((member for member in members if member in table.gathered), key=lambda item: (len(item), item))
    return plain[0] if plain else _item(name)


def _item(name: str) -> str:
    table = load_table()
    if name in table.items:
        return name
    if name in table.sets:
        raise Refusal(f"'{name}' stands for any of {', '.join(table.sets[name])}. Name one of them.")
    near = _near(name[:_ECHO])
    hint = f"Did you mean {' or '.join(near)}?" if near else "Names are as in the crafting commands."
    raise Refusal(f"There is no item '{_echo(name)}'. {hint}")


@lru_cache(maxsize=1024)
def _near(name: str) -> list[str]:
    """Items of a similar name. A search takes as long as a thousand steps do, and who errs errs again."""
    return difflib.get_close_matches(name, sorted(load_table().items), n=3)


def _echo(said: str) -> str:
    """What the agent said, in a length and form that can be repeated."""
    short = said if len(said) <= _ECHO else f"{said[:_ECHO]}…"
    return short.encode(errors="replace").decode()
