"""The pages of MiniWoB++ with what an agent needs to see in order to play them, and their selection by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

Needs = Literal["text", "positions", "pixels", "time"]
NEEDS: Final[Mapping[Needs, str]] = {
    "text": "the text of the page",
    "positions": "the text, and where its elements are (`positions=True`)",
    "pixels": "colours, shapes or icons, which only a screenshot shows",
    "time": "a reaction within a second or so, or what is shown only for a moment",
}
"""What a page needs an agent to see: the groups of pages."""
DEFAULT: Final = "text"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of MiniWoB++."""

    name: str
    """Such as `click-button`, the name of its file."""
    needs: Needs
    reason: str
    """Why the text isn't enough; empty if it is."""
    solved: int
    """Of `played` episodes with the page's script, those that succeeded."""
    played: int
    steps: int
    """The median number of the script's actions, rounded up; 1 if it has solved none."""


@cache
def pages() -> dict[str, Page]:
    """Return all pages by name, as `scripts/make_miniwob_pages.py` has recorded them."""
    text = resources.files(__package__ or "").joinpath("pages.json").read_text(encoding="utf-8")
    return {name: Page(name, **fields) for name, fields in json.loads(text).items()}


@cache
def interchangeable_names() -> tuple[tuple[str, ...], ...]:
    """Return the words of the pages' placeholder text without those that are also English, and the first names that the
    pages draw from, all in lower case.
    """
    text = resources.files(__package__ or "").joinpath("interchangeable_names.json").read_text("utf-8")
    return tuple(map(tuple, json.loads(text).values()))


def choose_pages(asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the selected pages, sorted.

    Args:
        asked: Names of pages or of groups (the keys of `NEEDS`, or `all`); None stands for the pages that need nothing
            but text.

    Raises:
        ValueError: for an unknown name or an empty selection.
    """
    names: Any = [asked] if isinstance(asked, str) else [DEFAULT] if asked is None else asked
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"pages must be the name of a page or a list of names, such as 'click-button', not {asked!r}.")
    chosen: set[str] = set()
    for name in names:
        chosen.update(_group(name))
    if not chosen:
        raise ValueError("pages is empty; name at least one, such as 'click-button', or leave it out for all of text.")
    return tuple(sorted(chosen))


def _group(name: str) -> list[str]:
    known = pages()
    if name in known:
        return [name]
    if name == "all" or name in NEEDS:
        return [page.name for page in known.values() if name in ("all", page.needs)]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Groups of pages are {', '.join(NEEDS)} and all."
    raise ValueError(f"There is no page {name!r} among the {len(known)} of MiniWoB++. {hint}")
