"""Tasks about the cart and the checkout."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from random import Random

from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES, TOWNS
from agentgym_envs.worlds.webarena.sites.shop.people import postcode
from agentgym_envs.worlds.webarena.sites.shop.rules import METHODS, PAYMENTS, PRICE, Method, dollars, shipping_cost
from agentgym_envs.worlds.webarena.sites.shop.task_helpers import (
    CART,
    ORDERED,
    PLAIN,
    SHOPPING,
    about,
    amount,
    goods,
    open_category,
    open_order,
    open_product,
    own_orders,
)
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Step,
    Template,
    both,
    choose,
    click,
    fill,
    rows,
    stop,
)

_ADDRESSES = {
    "my default address": ("Emma Holt", "14 Harbour Street", "Fairhaven"),
    "Rosa Holt": ("Rosa Holt", "31 Mill Lane", "Thornbury"),
    "Oscar Holt": ("Oscar Holt", "8 Orchard Road", "Winterset"),
}
_COUPONS = ("JUNE15", "WELCOME10", "FIVEOFF", "GARDENPARTY")


def _add_with_option(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in goods(databases, random, f"stock > 20 AND NOT {PLAIN}"):
        options = db.execute("SELECT * FROM product_options WHERE product = ? ORDER BY id", (row["id"],)).fetchall()
        by_kind = {option["kind"]: [o for o in options if o["kind"] == option["kind"]] for option in options}
        chosen = {kind: random.choice(found) for kind, found in by_kind.items()}
        quantity = random.randint(2, 9)
        plan = [
            *open_product(row["name"]),
            *(choose(kind, _label(option)) for kind, option in chosen.items()),
            fill("textbox", "Quantity", str(quantity)),
            click("button", "Add to cart"),
            stop(),
        ]
        words = ", ".join(f"{kind}: {option['value']}" for kind, option in chosen.items())
        holes = {"quantity": quantity, "product": row["name"], "options": words}
        yield Case(holes, about(row), rows("shopping", CART, [row["name"], words, quantity]), plan)


def _label(option: sqlite3.Row) -> str:
    """Return the label of an option."""
    if not option["extra"]:
        return option["value"]
    sign = "+" if option["extra"] > 0 else ""
    return f"{option['value']} ({sign}{dollars(option['extra'])})"


def _use_coupon(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, f"stock > 10 AND {PLAIN} AND {PRICE} > 5000"):
        code = random.choice(_COUPONS)
        plan = [
            *open_product(row["name"]),
            click("button", "Add to cart"),
            fill("textbox", "Coupon code", code),
            click("button", "Apply coupon"),
            stop(),
        ]
        applied = rows("shopping", "SELECT coupon FROM cart_coupons WHERE account = 1", [code])
        check = both(rows("shopping", CART, [row["name"], "", 1]), applied)
        yield Case({"product": row["name"], "code": code}, about(row), check, plan)


def _cheapest_to_cart(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in goods(databases, random):
        of_material = (row["category"], row["material"])
        found = db.execute(
            f"SELECT products.*, {PRICE} AS cost, ({PLAIN}) AS plain FROM products"
            " WHERE category = ? AND material = ? AND active ORDER BY cost",
            of_material,
        ).fetchall()
        stocked = [other for other in found if other["stock"]]
        if len(stocked) > 2 and stocked[0]["cost"] < stocked[1]["cost"] and stocked[0]["plain"]:
            name = stocked[0]["name"]
            plan = [
                *open_category(row),
                choose("Material", f"{row['material']} ({len(found)})"),
                click("checkbox", "In stock only"),
                click("button", "Apply filters"),
                choose("Sort by", "Price: low to high"),
                click("button", "Sort"),
                click("link", name),
                click("button", "Add to cart"),
                stop(),
            ]
            holes = {"category": row["category_name"], "material": row["material"]}
            yield Case(holes, about(stocked[0]), rows("shopping", CART, [name, "", 1]), plan)


def _reorder(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in random.sample(found := own_orders(databases), len(found)):
        items = db.execute(
            "SELECT name, options, quantity, stock FROM order_items JOIN products ON products.id = product"
            " WHERE order_id = ? ORDER BY order_items.id",
            (row["id"],),
        ).fetchall()
        if all(item["stock"] >= item["quantity"] for item in items):
            plan = [*open_order(row["name"], row["id"]), click("button", "Reorder"), stop()]
            check = rows("shopping", CART, *sorted(tuple(item)[:3] for item in items))
            yield Case({"product": row["name"]}, about(row), check, plan)


def _buy(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, f"stock > 10 AND {PLAIN}"):
        quantity = random.randint(2, 4)
        recipient, (name, street, town) = random.choice(list(_ADDRESSES.items()))
        method, payment = METHODS[random.choice(("standard", "express"))], random.choice(list(PAYMENTS.values()))
        shown = f"{name}, {street}, {postcode(town)} {town}"
        plan = [
            *open_product(row["name"]),
            fill("textbox", "Quantity", str(quantity)),
            click("button", "Add to cart"),
            *_checkout([] if name == "Emma Holt" else [click("radio", shown)], method, payment, row["cost"] * quantity),
        ]
        wanted = [row["name"], "", quantity, name, street, postcode(town), town, method.name, payment, "pending"]
        holes = {
            "quantity": quantity,
            "product": row["name"],
            "recipient": recipient,
            "method": method.name.lower(),
            "payment": payment.lower(),
        }
        yield Case(holes, about(row), rows("shopping", ORDERED, wanted), plan)


def _checkout(where: Sequence[Step], method: Method, payment: str, subtotal: int) -> list[Step]:
    """Return the steps from the cart to the placed order."""
    cost = amount(shipping_cost(method.key, subtotal))
    return [
        click("link", "Proceed to checkout"),
        *where,
        click("radio", f"{method.name} (${cost}, {method.days})"),
        click("radio", payment),
        click("button", "Continue to review"),
        click("button", "Place order"),
        stop(),
    ]


def _present(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, f"stock > 10 AND {PLAIN}"):
        town = random.choice(TOWNS)
        name = f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
        street = f"{random.randint(2, 90)} Abbey Row"
        where = [
            click("radio", "Another address"),
            fill("textbox", "Recipient", name),
            fill("textbox", "Street and number", street),
            fill("textbox", "Postcode", postcode(town)),
            fill("textbox", "Town", town),
        ]
        plan = [
            *open_product(row["name"]),
            click("button", "Add to cart"),
            *_checkout(where, METHODS["express"], "Credit card", row["cost"]),
        ]
        wanted = [row["name"], "", 1, name, street, postcode(town), town, "Express delivery", "Credit card", "pending"]
        holes = {"product": row["name"], "name": name, "street": street, "postcode": postcode(town), "town": town}
        yield Case(holes, about(row), rows("shopping", ORDERED, wanted), plan)


def _wish_to_cart(databases: Databases, random: Random) -> Iterator[Case]:
    free = f"stock > 10 AND {PLAIN} AND products.id NOT IN (SELECT product FROM wish_items WHERE account = 1)"
    drawn = list(goods(databases, random, free, most=300))
    for first, second in zip(drawn[::2], drawn[1::2], strict=False):
        plan = [
            *open_product(first["name"]),
            click("button", "Add to cart"),
            *open_product(second["name"]),
            click("button", "Add to wish list"),
            stop(),
        ]
        wished = rows(
            "shopping",
            f"SELECT count(*), sum(product = {second['id']}) FROM wish_items WHERE account = 1",
            [17, 1],
        )
        check = both(rows("shopping", CART, [first["name"], "", 1]), wished)
        holes = {"one": first["name"], "other": second["name"]}
        yield Case(holes, about(first) | about(second), check, plan)


BUYING = (
    Template(
        "shop/add-with-option",
        SHOPPING,
        "Put {{quantity}} pieces of the {{product}} ({{options}}) into my cart.",
        _add_with_option,
    ),
    Template(
        "shop/use-coupon",
        SHOPPING,
        "Put one {{product}} into my cart and apply the coupon {{code}} to it. Don't order yet.",
        _use_coupon,
    ),
    Template(
        "shop/cheapest-to-cart",
        SHOPPING,
        "In the category {{category}}, find the cheapest product made of {{material}} that is in stock,"
        " and put one into my cart.",
        _cheapest_to_cart,
        held_out=True,
    ),
    Template(
        "shop/reorder",
        SHOPPING,
        "Put everything from my earlier order with the {{product}} into the cart once more.",
        _reorder,
    ),
    Template(
        "shop/buy",
        SHOPPING,
        "Order {{quantity}} of the {{product}}, sent to {{recipient}} by {{method}},"
        " with the payment method '{{payment}}'.",
        _buy,
    ),
    Template(
        "shop/present",
        SHOPPING,
        "Order a {{product}} as a present for {{name}}, {{street}}, {{postcode}} {{town}},"
        " by express delivery, and pay with the credit card.",
        _present,
        held_out=True,
    ),
    Template(
        "shop/cart-and-wish",
        SHOPPING,
        "I'll take the {{one}} now, so put one into the cart; the {{other}} can wait on my wish list.",
        _wish_to_cart,
    ),
)
"""Templates of this module."""
