"""What an article is before it is stored, and the names articles link to each other by."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.region import Region


@dataclass(frozen=True, slots=True)
class Article:
    """One article."""

    title: str
    kind: str
    """Such as `town`, `person`, `list`, `disambiguation`."""
    body: str
    """Paragraphs, `== Headings ==`, `* items`, `| table | rows |`, `[[links|shown so]]`, `{{references}}`."""
    infobox: tuple[tuple[str, str], ...] = ()
    """Rows of label and value; values may link."""
    categories: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    """Other titles that lead here."""


def town_title(name: str) -> str:
    """The title of a town's article: its name, unless a brand has that, too."""
    return f"{name} (town)" if name in BRANDS else name


def link(title: str, shown: str = "") -> str:
    """A link, in markup."""
    return f"[[{title}|{shown}]]" if shown and shown != title else f"[[{title}]]"


def to_town(name: str) -> str:
    """A link to a town."""
    return link(town_title(name), name)


def to_county(name: str) -> str:
    """A link to a county."""
    return link(f"{name} (county)", name)


def to_river(name: str) -> str:
    """A link to a river."""
    return link(f"River {name}")


def to_firm(region: Region, brand: str) -> str:
    """A link to the firm behind a brand."""
    return link(region.firm(brand).name)


def listed(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def number(value: int) -> str:
    """`12,340`."""
    return f"{value:,}"


def a(noun: str) -> str:
    """The noun with its article: `an abbey`, `a bridge`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
