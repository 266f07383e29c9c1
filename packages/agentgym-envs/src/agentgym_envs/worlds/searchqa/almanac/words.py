"""Small words: numbers, lists and names in English, and the choice among wordings. Knows no facts."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
_LETTERS = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe"}
    | {"þ": "th", "ð": "d", "ə": "e", "Ə": "E", "‘": "'", "’": "'", "–": "-"}
)
_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def stable(key: str) -> int:
    """A number that follows from the text alone, whatever the process, the hash seed or the machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def choose(key: str, options: Sequence[T]) -> T:
    """One of the options, always the same for the same key."""
    return options[stable(key) % len(options)]


def shuffled(key: str, items: Sequence[T]) -> list[T]:
    """The items in an order that follows from the key."""
    return [items[i] for i in sorted(range(len(items)), key=lambda i: stable(f"{key}#{i}"))]


@lru_cache(maxsize=1 << 16)
def plain(name: str) -> str:
    """The name in ASCII where its letters have an ASCII base: `Málaga` gives `Malaga`."""
    if name.isascii():
        return name
    flat = unicodedata.normalize("NFKD", name.translate(_LETTERS))
    return "".join(letter for letter in flat if not unicodedata.combining(letter))


@lru_cache(maxsize=1 << 16)
def folded(name: str) -> str:
    """What makes two names the same: lower-case ASCII, letters and digits only."""
    return " ".join(re.findall(r"\w+", plain(name).casefold()))


def number(value: int) -> str:
    """`1,234,567`."""
    return f"{value:,}"


def numeral(value: int) -> str:
    """A word up to twelve, digits from there on."""
    return _SMALL[value] if value < len(_SMALL) else number(value)


def ordinal(value: int) -> str:
    """`1st`, `2nd`, `113th`."""
    suffix = "th" if 10 <= value % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{number(value)}{suffix}"


def listed(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """`1 county`, `12 counties`: the plural is `many`, or `one` with an s."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def article(word: str) -> str:
    """`a city`, `an autonomous region`, `a unitary authority`."""
    vowel = word[0].lower() in "aeiou" and not word.lower().startswith(("uni", "euro"))
    return f"{'an' if vowel else 'a'} {word}"


def capitalised(sentence: str) -> str:
    """The sentence with a capital at its start."""
    return sentence[:1].upper() + sentence[1:]


def plural(noun: str) -> str:
    """`provinces`, `cities`, `cities with county rights`: the first noun is what is counted."""
    head, *tail = re.split(r"( with | of | under | in )", noun, maxsplit=1)
    first, _, last = head.rpartition(" ")
    if last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ie"
    many = last if last.endswith("s") else f"{last}s"
    return f"{first} {many}".strip() + "".join(tail)
