"""Tasks that the map makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.map import tasks
from agentgym_envs.worlds.webarena.sites.map.finding import find
from agentgym_envs.worlds.webarena.sites.map.task_parts import (
    VISITED,
    in_towns,
    named,
    open_place,
    search,
    shuffled,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, stop, unachievable

_ACHIEVABLE = {template.name: template for template in tasks.TEMPLATES}


def _no_phone(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the phone number of a place without one."""
    db = databases["map"]
    for row in shuffled(db, random):
        steps = open_place(db, row)
        if steps is not None and not row["phone"]:
            judged = unachievable(f"{row['name']} has no phone number.")
            yield Case({"place": named(row)}, in_towns(row["town"]), judged, [*steps, stop("N/A")])


def _no_such_place(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the page of a kind of place that a street doesn't have."""
    db = databases["map"]
    for row in shuffled(db, random):
        kind = random.choice(VISITED)
        query = f"{kind} {row['street']} in {row['town']}"
        streets = db.execute(
            "SELECT DISTINCT street FROM places WHERE town = ? AND kind = ?", (row["town"], kind)
        ).fetchall()
        if streets and row["street"] not in [one["street"] for one in streets] and not find(db, query).found:
            values = {"kind": kind, "street": row["street"], "town": row["town"]}
            judged = unachievable(f"There is no {kind} on {row['street']} in {row['town']}.")
            plan = [search(query), search(f"{kind} in {row['town']}"), stop("N/A")]
            yield Case(values, in_towns(row["town"]), judged, plan)


TEMPLATES = (
    _ACHIEVABLE["map/phone"].unachievable(_no_phone),
    _ACHIEVABLE["map/show-place"].unachievable(_no_such_place),
)
