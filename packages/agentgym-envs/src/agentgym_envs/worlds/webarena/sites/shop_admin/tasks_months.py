"""Tasks about numbers by month: tables, and the month with the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    last_day,
    listed,
    month_name,
    months,
    one,
    report,
    span,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, click, said, stop

_ORDERS = "SELECT substr(placed, 1, 7), count(*) FROM orders WHERE status {status} 'cancelled' GROUP BY 1"
_JOINED = "SELECT substr(joined, 1, 7), count(*) FROM accounts WHERE role = 'customer' GROUP BY 1"


def _spans(databases: Databases, random: Random, least: int, most: int) -> Iterator[Sequence[str]]:
    """Yield runs of consecutive months, in random order."""
    every = sorted(months(databases, random))
    found = [every[first : first + n] for n in range(least, most + 1) for first in range(len(every) - n + 1)]
    random.shuffle(found)
    yield from found


def _period(chosen: Sequence[str]) -> frozenset[str]:
    return one(f"period:{chosen[0]}/{chosen[-1]}")


def _days(chosen: Sequence[str]) -> tuple[str, str]:
    return f"{chosen[0]}-01", last_day(chosen[-1])


def _table(counts: Mapping[str, int], chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the rows of the answer, and as rivals all other pairs of a month and a number in it."""
    lines = [f"{month}: {counts[month]}" for month in chosen]
    numbers = sorted({counts[month] for month in chosen} | {int(month[5:]) for month in chosen})
    rivals = [f"{month}: {n}" for month in chosen for n in numbers if n != counts[month]]
    return lines, rivals


def _orders_by_month(databases: Databases, random: Random) -> Iterator[Case]:
    counts = dict(databases["shop"].execute(_ORDERS.format(status="<>")).fetchall())
    for chosen in _spans(databases, random, 3, 5):
        yield from _tabulated(counts, chosen, "Sales")


def _customers_by_month(databases: Databases, random: Random) -> Iterator[Case]:
    counts = dict(databases["shop"].execute(_JOINED).fetchall())
    for chosen in _spans(databases, random, 3, 5):
        yield from _tabulated(counts, chosen, "New customers")


def _tabulated(counts: Mapping[str, int], chosen: Sequence[str], name: str) -> Iterator[Case]:
    """Yield a case about the numbers by month in a report, unless too many of them are the same."""
    lines, rivals = _table(counts, [month for month in chosen if month in counts])
    if len(lines) == len(chosen) and len({counts[month] for month in chosen}) > 2:
        values = {"first": month_name(chosen[0]), "last": month_name(chosen[-1])}
        plan = [*report(name, *span(*_days(chosen))), stop(listed(lines))]
        yield Case(values, _period(chosen), said(*lines, rivals=rivals), plan)


def _peak(databases: Databases, random: Random) -> Iterator[Case]:
    counts = dict(databases["shop"].execute(_ORDERS.format(status="=")).fetchall())
    asked = Counter[str]()  # answers so far: no month should be the answer to most tasks
    for chosen in _spans(databases, random, 5, 14):
        first, second = sorted(chosen, key=lambda month: -counts.get(month, 0))[:2]
        if counts.get(first, 0) > counts.get(second, 0) and asked[first] < 2:
            asked[first] += 1
            answer = [month_name(first), str(counts[first])]
            turn = click("link", "Sort by Cancelled orders")
            plan = [*report("Cancelled orders", *span(*_days(chosen))), turn, turn, stop(listed(answer))]
            values = {"first": month_name(chosen[0]), "last": month_name(chosen[-1])}
            yield Case(values, _period(chosen), said(*answer, rivals=map(month_name, chosen)), plan)


TEMPLATES = (
    Template(
        "admin/orders-by-month", SITES,
        "How many orders were placed in each month from {{first}} to {{last}}, leaving out cancelled ones? Answer with "
        "the months and their numbers only, and write the months like 2024-03.",
        _orders_by_month,
    ),
    Template(
        "admin/new-customers-by-month", SITES,
        "List how many customers opened an account in each month from {{first}} to {{last}}. Answer with the months "
        "and their numbers only, and write the months like 2024-03.",
        _customers_by_month, held_out=True,
    ),
    Template(
        "admin/month-with-most-cancelled", SITES,
        "In which month from {{first}} to {{last}} were the most orders placed that were cancelled, and how many were "
        "they?",
        _peak,
    ),
)  # fmt: skip
