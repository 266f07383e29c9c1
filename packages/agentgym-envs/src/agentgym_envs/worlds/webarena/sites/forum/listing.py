"""Lists of posts: filter, order and pagination."""

from __future__ import annotations

from typing import Any

from agentgym_envs.worlds.webarena.sites.forum.orders import ORDERS, PERIODS, SINCE, SORTS
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_TIMELESS = ("hot", "new")
_SIZE = 15
_FROM = """
FROM posts p JOIN communities c ON c.id = p.community JOIN accounts a ON a.id = p.author
LEFT JOIN post_votes v ON v.post = p.id AND v.account = ?1 LEFT JOIN saves s ON s.post = p.id AND s.account = ?1
"""
_SELECT = """
SELECT p.*, c.name AS place_name, c.title AS place_title, a.name AS author_name, coalesce(v.value, 0) AS vote,
    s.post IS NOT NULL AS saved
"""


def listed(visit: Visit, where: str, *values: Any, sort: str = "hot", pinned_first: bool = False) -> dict[str, Any]:
    """Return a template's values for a list of the posts that satisfy `where` (`p` is the post, `c` its community).

    `?1` is the signed-in account; `values` are `?2` and following. `sort` is the default order.
    """
    chosen = visit.text("sort") if visit.text("sort") in SORTS else sort
    timeless = chosen in _TIMELESS
    period = "all" if timeless else visit.text("period") if visit.text("period") in PERIODS else "all"
    me = visit.account["id"] if visit.account else 0
    where = f"WHERE NOT p.removed AND NOT p.deleted AND p.created >= '{SINCE[period]}' AND ({where})"
    counted = f"SELECT count(*) FROM posts p JOIN communities c ON c.id = p.community {where} AND ?1 >= 0"
    part = pages(visit.value(counted, me, *values), _SIZE, visit.number("page"))
    first = "p.pinned DESC, " if pinned_first and chosen == "hot" else ""
    order = f"ORDER BY {first}{ORDERS[chosen]} LIMIT {part['size']} OFFSET {part['offset']}"
    rows = visit.all(_SELECT + _FROM + where + order, me, *values)
    return {"posts": rows, "pages": part, "sort": chosen, "period": period, "timeless": timeless} | _NAMES


def order_read(shown: dict[str, Any], default: str = "hot") -> dict[str, str | None]:
    """Return order and period of a list by `listed` for its canonical address; the defaults are None."""
    sort, period = shown["sort"], shown["period"]
    return {"sort": None if sort == default else sort, "period": None if period == "all" else period}


def one_post(visit: Visit, number: int) -> Any:
    """Return a post with the columns of a list, even if it is deleted or removed.

    Raises:
        NotFound: If there is none.
    """
    me = visit.account["id"] if visit.account else 0
    return visit.one(_SELECT + _FROM + "WHERE p.id = ?2", me, number, what="post")


_NAMES = {"sorts": SORTS, "periods": PERIODS}
