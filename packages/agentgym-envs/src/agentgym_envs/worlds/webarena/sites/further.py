"""What the rough skin adds on the server: blocks of further links and texts, which make pages as long as those of large
sites, and suggestions for search fields. Both come from the site's own database and show only what everyone may see.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import Response

    from agentgym_envs.worlds.webarena.sites.web import Visit

MARK = "<!-- more -->"
"""Where the blocks go in a rendered page."""

_RATIOS = {"shopping": 3.0, "shopping_admin": 3.3, "reddit": 4.2, "gitlab": 2.8, "map": 1.9, "wikipedia": 2.2}
"""Length of the blocks relative to the estimated length of the page in the plain skin, so that whole pages become about
four times as long; `benchmarks/webarena_skins.py` measures it."""
_ITEMS = 12
_LINE, _ITEM = 32, 56  # characters of the tree besides the texts: of a line, and of the two lines of an item
_LEAST, _MOST = 3_000, 60_000  # characters; pages of more than 5,000 nodes are only read near the viewport
_ABOUT = 160
_SUGGESTIONS = 6
_UNSEEN = re.compile(r"<(script|style|svg|head|dialog)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_FIELD = re.compile(r"<(?:input|textarea|select)\b(?![^>]*type=.hidden)")
_MARKUP = re.compile(r"\[\[(?:[^\]|]*\|)?([^\]]*)\]\]|\{\{.+?\}\}")

# Texts differ from the names of all links on the sites' own pages, which therefore stay unambiguous.
_SOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    "shopping": (
        (
            "You may also like",
            "SELECT id, printf('%s for $%.2f', name, coalesce(sale_price, price) / 100.0) AS text,"
            " '/product/' || id AS href, description AS about FROM products WHERE active",
        ),
        (
            "What customers say",
            "SELECT id, stars || ' of 5: ' || title AS text, '/product/' || product AS href, text AS about"
            " FROM reviews WHERE status = 'approved'",
        ),
        (
            "Browse the store",
            "SELECT id, 'Shop for ' || lower(name) AS text, '/category/' || slug AS href, '' AS about FROM categories",
        ),
    ),
    "shopping_admin": (
        (
            "Latest activity",
            "SELECT id, printf('Order %d by %s for $%.2f', id, recipient, total / 100.0) AS text,"
            " '/orders/' || id AS href, 'To ' || street || ', ' || town || ', by ' || shipping_method || ', paid by '"
            " || payment_method || ', placed ' || placed AS about FROM orders",
        ),
        (
            "Stock watch",
            "SELECT id, stock || ' left of ' || name AS text, '/products/' || id AS href, description AS about"
            " FROM products",
        ),
        (
            "From the reviews",
            "SELECT id, nickname || ' wrote: ' || title AS text, '/reviews/' || id AS href, text AS about FROM reviews",
        ),
    ),
    "reddit": (
        (
            "More discussions",
            "SELECT posts.id, posts.title || ' (replies: ' || posts.comments || ')' AS text,"
            " '/c/' || communities.name || '/' || posts.id AS href, body AS about"
            " FROM posts JOIN communities ON communities.id = community WHERE NOT removed AND NOT deleted",
        ),
        (
            "Places to explore",
            "SELECT id, 'Visit ' || title AS text, '/c/' || name AS href, about FROM communities",
        ),
        (
            "Heard here",
            "SELECT comments.id, 'A reply to ' || posts.title AS text,"
            " '/c/' || communities.name || '/' || posts.id AS href, comments.body AS about FROM comments"
            " JOIN posts ON posts.id = post JOIN communities ON communities.id = community"
            " WHERE NOT comments.removed AND NOT comments.deleted AND NOT posts.removed AND NOT posts.deleted",
        ),
    ),
    "gitlab": (
        (
            "Explore more projects",
            "SELECT id, name || ', written in ' || language AS text, '/' || namespace || '/' || path AS href,"
            " description AS about FROM projects WHERE visibility = 'public'",
        ),
        (
            "Activity elsewhere",
            "SELECT issues.id, issues.title || ', in ' || projects.name AS text,"
            " '/' || namespace || '/' || path || '/-/issues/' || iid AS href, body AS about"
            " FROM issues JOIN projects ON projects.id = project WHERE visibility = 'public' AND NOT confidential",
        ),
        (
            "Recent commits",
            "SELECT commits.id, message || ' (' || substr(sha, 1, 8) || ')' AS text,"
            " '/' || namespace || '/' || projects.path || '/-/commit/' || sha AS href, '' AS about"
            " FROM commits JOIN projects ON projects.id = project WHERE visibility = 'public'",
        ),
    ),
    "map": (
        (
            "Places people look for",
            "SELECT id, name || ', a ' || kind || ' in ' || town AS text, '/place/' || id AS href,"
            " trim(street || ' ' || coalesce(number, '') || ', ' || postcode || ' ' || town || '. ' || hours || '. '"
            " || note) AS about FROM places WHERE kind <> 'town'",
        ),
        (
            "Towns of the region",
            "SELECT id, 'Map of ' || name AS text, '/town/' || name AS href, note AS about FROM places"
            " WHERE kind = 'town'",
        ),
    ),
    "wikipedia": (
        (
            "Articles you may like",
            "SELECT id, title || ', an article on a ' || kind AS text, '/wiki/' || replace(title, ' ', '_') AS href,"
            " substr(body, 1, 600) AS about FROM articles",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Item:
    """A link, and a text about it."""

    text: str
    href: str
    about: str


@dataclass(frozen=True, slots=True)
class Block:
    """A titled list."""

    title: str
    items: tuple[Item, ...]


def further_blocks(visit: Visit, page: str) -> list[Block]:
    """Return blocks that make a rendered page three to five times longer; the same page always gets the same."""
    sources = _visible_sources(visit)
    if not sources:
        return []
    totals = [visit.value(f"SELECT count(*) FROM ({sql})") for _, sql in sources]
    wanted = min(max(_RATIOS[visit.site.place.key] * _length(page), _LEAST), _MOST)
    blocks: list[Block] = []
    while wanted > 0:
        turn, which = divmod(len(blocks), len(sources))
        title, sql = sources[which]
        items = tuple(_items(visit, sql, totals[which], turn))
        block = Block(title if turn == 0 else f"{title} ({turn + 1})", items)
        blocks.append(block)
        wanted -= 50 + sum(len(item.text) + len(item.about) + _ITEM for item in block.items)
    return blocks


def suggestions(visit: Visit) -> Response:
    """Suggest links whose texts contain what is typed, as JSON; for the rough skin only."""
    if not visit.rough:
        return visit.site.not_found(visit.request)
    words, found = visit.text("q", 100), list[dict[str, Any]]()
    for _, sql in _visible_sources(visit) if len(words) > 1 else ():
        rows = visit.all(f"SELECT text, href FROM ({sql}) WHERE instr(lower(text), lower(?)) LIMIT ?", words, 3)
        found += [{"text": row["text"], "href": row["href"]} for row in rows]
    return visit.json(found[:_SUGGESTIONS])


def _visible_sources(visit: Visit) -> tuple[tuple[str, str], ...]:
    """Return the sources of the site's items; of the administration only for its staff."""
    if visit.site.place.key == "shopping_admin" and (visit.account is None or visit.account["role"] != "admin"):
        return ()
    return _SOURCES.get(visit.site.place.key, ())


def _items(visit: Visit, sql: str, total: int, turn: int) -> Iterator[Item]:
    draw = hashlib.sha256(f"{visit.request.url.path} {sql} {turn}".encode()).digest()
    offset = int.from_bytes(draw[:4], "big") % max(1, total - _ITEMS)
    for row in visit.all(f"SELECT text, href, about FROM ({sql}) ORDER BY id LIMIT ? OFFSET ?", _ITEMS, offset):
        about = " ".join(_MARKUP.sub(r"\1", row["about"].partition("==")[0]).split())
        yield Item(row["text"], row["href"], about if len(about) <= _ABOUT else f"{about[:_ABOUT]}…")


def _length(page: str) -> int:
    """Estimate the length of a page's accessibility tree, in characters."""
    seen = _UNSEEN.sub("", page)
    texts = [text.strip() for text in _TAG.split(seen)]
    return sum(len(text) + _LINE for text in texts if text) + _LINE * len(_FIELD.findall(seen))
