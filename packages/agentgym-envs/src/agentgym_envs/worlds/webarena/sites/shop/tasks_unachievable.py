"""Tasks that the shop makes impossible, each with the wording of an achievable one; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.shop.task_helpers import about, goods, open_category, open_order, own_orders
from agentgym_envs.worlds.webarena.sites.shop.task_helpers import values as column
from agentgym_envs.worlds.webarena.sites.shop.tasks_reading import READING
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, stop, unachievable

_ACHIEVABLE = {template.name: template for template in READING}


def _absent_brand(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for a brand that the shop has, but not in this category."""
    db = databases["shop"]
    brands = column(db, "SELECT DISTINCT brand FROM products ORDER BY brand")
    for row in goods(databases, random):
        names = " ".join(column(db, "SELECT brand || ' ' || name FROM products WHERE category = ?", row["category"]))
        brand = random.choice([brand for brand in brands if brand not in names])
        judged = unachievable(f"The category {row['category_name']} has no product by {brand}.")
        holes = {"brand": brand, "category": row["category_name"]}
        entities = frozenset({f"shelf:{row['category_name']}/{brand}"})
        yield Case(holes, entities, judged, [*open_category(row), stop("N/A")])


def _not_shipped(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the parcel with a product that was ordered, but not shipped."""
    where = "NOT EXISTS (SELECT 1 FROM shipments WHERE order_id = orders.id)"
    for row in random.sample(found := own_orders(databases, where), len(found)):
        judged = unachievable(f"The order of the {row['name']} is {row['status']}; nothing was shipped.")
        plan = [*open_order(row["name"], row["id"]), stop("N/A")]
        yield Case({"product": row["name"]}, about(row), judged, plan)


TEMPLATES = (
    _ACHIEVABLE["shop/cheapest-of-brand"].unachievable(_absent_brand),
    _ACHIEVABLE["shop/tracking"].unachievable(_not_shipped),
)
"""Templates of this module."""
