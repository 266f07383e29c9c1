"""Text helpers: numbers, lists and names in English, and a deterministic choice among wordings."""

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
    """Hash the text to a number that does not depend on the process, the hash seed or the machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def choose(key: str, options: Sequence[T]) -> T:
    """Choose one of the options, always the same for the same key."""
    return options[stable(key) % len(options)]


def shuffled(key: str, items: Sequence[T]) -> list[T]:
    """Return the items in an order that depends only on the key."""
    return [items[i] for i in sorted(range(len(items)), key=lambda i: stable(f"{key}#{i}"))]


@lru_cache(maxsize=1 << 16)
def plain(name: str) -> str:
    """Replace letters by their ASCII base where they have one: `Málaga` gives `Malaga`."""
    if name.isascii():
        return name
    flat = unicodedata.normalize("NFKD", name.translate(_LETTERS))
    return "".join(letter for letter in flat if not unicodedata.combining(letter))


@lru_cache(maxsize=1 << 16)
def folded(name: str) -> str:
    """Normalize a name for comparison: lower-case ASCII, letters and digits only."""
    return " ".join(re.findall(r"\w+", plain(name).casefold()))


def number(value: int) -> str:
    """Format a number with separators: `1,234,567`."""
    return f"{value:,}"


def numeral(value: int) -> str:
    """Spell out numbers up to twelve, and format larger ones in digits."""
    return _SMALL[value] if value < len(_SMALL) else number(value)


def ordinal(value: int) -> str:
    """Format an ordinal: `1st`, `2nd`, `113th`."""
    suffix = "th" if 10 <= value % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{number(value)}{suffix}"


def listed(names: Sequence[str]) -> str:
    """Join names: `A`, `A and B`, `A, B and C`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """Format a count: `1 county`, `12 counties`. The plural is `many`, or `one` with an s."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def article(word: str) -> str:
    """Prepend the indefinite article: `a city`, `an autonomous region`, `a unitary authority`."""
    vowel = word[0].lower() in "aeiou" and not word.lower().startswith(("uni", "euro"))
    return f"{'an' if vowel else 'a'} {word}"


def capitalised(sentence: str) -> str:
    """Capitalize the first letter of a sentence."""
    return sentence[:1].upper() + sentence[1:]


def plural(noun: str) -> str:
    """Return the plural of a noun phrase by its first noun: `provinces`, `cities`, `cities with county rights`."""
    head, *tail = re.split(r"( with | of | under | in )", noun, maxsplit=1)
    first, _, last = head.rpartition(" ")
    if last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ie"
    many = last if last.endswith("s") else f"{last}s"
    return f"{first} {many}".strip() + "".join(tail)
