"""An article before it is stored, and links between articles."""

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
    """Markup: paragraphs, `== Headings ==`, `* items`, `| table | rows |`, `[[links|shown so]]`, `{{references}}`."""
    infobox: tuple[tuple[str, str], ...] = ()
    """Rows of label and value; values may contain links."""
    categories: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    """Other titles that redirect here."""


def town_title(name: str) -> str:
    """Return the title of a town's article: its name, with a suffix if a brand has the same name."""
    return f"{name} (town)" if name in BRANDS else name


def link(title: str, shown: str = "") -> str:
    """Return a link in markup."""
    return f"[[{title}|{shown}]]" if shown and shown != title else f"[[{title}]]"


def to_town(name: str) -> str:
    """Return a link to a town."""
    return link(town_title(name), name)


def to_county(name: str) -> str:
    """Return a link to a county."""
    return link(f"{name} (county)", name)


def to_river(name: str) -> str:
    """Return a link to a river."""
    return link(f"River {name}")


def to_firm(region: Region, brand: str) -> str:
    """Return a link to the firm behind a brand."""
    return link(region.firm(brand).name)


def listed(items: list[str]) -> str:
    """Join items: `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def number(value: int) -> str:
    """Format an integer with thousands separators: `12,340`."""
    return f"{value:,}"


def a(noun: str) -> str:
    """Prefix a noun with its article: `an abbey`, `a bridge`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
