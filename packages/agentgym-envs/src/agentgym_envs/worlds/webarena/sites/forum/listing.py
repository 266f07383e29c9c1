"""Lists of posts: which ones, in which order, which page of them."""

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
    """What a template shows as a list of posts: those for which `where` holds (`p` is the post, `c` its community).

    `?1` is who is signed in; `values` are `?2` and so on. `sort` is the order where the address names none.
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


def one_post(visit: Visit, number: int) -> Any:
    """A post as lists show it, deleted and removed ones too.

    Raises:
        NotFound: when there is none.
    """
    me = visit.account["id"] if visit.account else 0
    return visit.one(_SELECT + _FROM + "WHERE p.id = ?2", me, number, what="post")


_NAMES = {"sorts": SORTS, "periods": PERIODS}
