"""Tasks that fill in forms: wish list, reviews, addresses, messages, returns."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import changed
from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES, TOWNS
from agentgym_envs.worlds.webarena.sites.shop.people import postcode
from agentgym_envs.worlds.webarena.sites.shop.rules import REASONS
from agentgym_envs.worlds.webarena.sites.shop.task_helpers import (
    SHOPPING,
    about,
    goods,
    open_order,
    open_product,
    own_orders,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, choose, click, fill, rows, stop

_NOT_WISHED = "products.id NOT IN (SELECT product FROM wish_items WHERE account = 1)"
_NOTES = (
    "for the new flat",
    "housewarming for Rosa",
    "only if it gets cheaper",
    "second one for work",
    "ask for advice",
)
_OPINIONS = (
    ("Just right", "It does what I bought it for, and quietly so.", 5),
    ("Happy with it", "A good buy, although the parcel was far too big.", 4),
    ("So and so", "Not bad, but I had hoped for a little more.", 3),
    ("Not again", "The finish was scratched when I opened the box.", 2),
    ("Keep away", "It broke on the second day.", 1),
)
_QUESTIONS = (
    "Could you please check where my parcel is?",
    "Is it possible to have this order wrapped as a present?",
    "Please send me a copy of the invoice by letter.",
    "One of the items arrived without its manual.",
)
_STREETS = ("Chapel Hill", "Lime Avenue", "North Quay", "Rope Walk", "Vine Street", "Weaver's Row")


def _wish_with_note(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, _NOT_WISHED):
        note = random.choice(_NOTES)
        name = row["name"]
        plan = [
            *open_product(name),
            click("button", "Add to wish list"),
            fill("textbox", f"Note on {name}", note),
            click("button", f"Save note on {name}"),
            stop(),
        ]
        query = (
            "SELECT note, (SELECT count(*) FROM wish_items WHERE account = 1) FROM wish_items"
            f" WHERE account = 1 AND product = {row['id']}"
        )
        yield Case({"product": name, "note": note}, about(row), rows("shopping", query, [note, 17]), plan)


def _review(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, "products.id NOT IN (SELECT product FROM reviews WHERE account = 1)"):
        title, text, stars = random.choice(_OPINIONS)
        plan = [
            *open_product(row["name"]),
            click("link", "Write a review"),
            choose("Stars", f"{stars} star{'s' if stars > 1 else ''}"),
            fill("textbox", "Title", title),
            fill("textbox", "Your review", text),
            click("button", "Submit review"),
            stop(),
        ]
        query = "SELECT product, stars, title, text FROM reviews WHERE account = 1 AND created = '2025-06-16'"
        holes = {"product": row["name"], "title": title, "text": text, "stars": stars}
        yield Case(holes, about(row), rows("shopping", query, [row["id"], stars, title, text]), plan)


def _new_address(databases: Databases, random: Random) -> Iterator[Case]:
    for town in random.sample(TOWNS, len(TOWNS)):
        name = f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
        street, phone = f"{random.randint(2, 90)} {random.choice(_STREETS)}", f"555-{random.randint(1000, 9999)}"
        plan = [
            click("link", "My account"),
            click("link", "Address book"),
            click("link", "Add a new address"),
            fill("textbox", "Recipient", name),
            fill("textbox", "Street and number", street),
            fill("textbox", "Postcode", postcode(town)),
            fill("textbox", "Town", town),
            fill("textbox", "Telephone", phone),
            click("button", "Save address"),
            stop(),
        ]
        address = (1, name, street, postcode(town), town, phone, 0, 1)
        holes = {"name": name, "street": street, "postcode": postcode(town), "town": town, "phone": phone}
        yield Case(holes, frozenset({f"town:{town}"}), changed("shopping", "address_contents", new=[address]), plan)


def _moved(databases: Databases, random: Random) -> Iterator[Case]:
    query = "SELECT * FROM address_contents WHERE account = 1 AND is_default"
    before = tuple(databases["shop"].execute(query).fetchone())
    for town in random.sample([town for town in TOWNS if town != "Fairhaven"], len(TOWNS) - 1):
        street = f"{random.randint(2, 90)} {random.choice(_STREETS)}"
        plan = [
            click("link", "My account"),
            click("link", "Address book"),
            click("link", "Edit Emma Holt, 14 Harbour Street"),
            fill("textbox", "Street and number", street),
            fill("textbox", "Postcode", postcode(town)),
            fill("textbox", "Town", town),
            click("button", "Save address"),
            stop(),
        ]
        after = (1, "Emma Holt", street, postcode(town), town, *before[5:])
        check = changed("shopping", "address_contents", new=[after], old=[before])
        holes = {"street": street, "postcode": postcode(town), "town": town}
        yield Case(holes, frozenset({f"town:{town}"}), check, plan)


def _message(databases: Databases, random: Random) -> Iterator[Case]:
    for row in random.sample(found := own_orders(databases), len(found)):
        text, subject = random.choice(_QUESTIONS), f"Order {row['id']}"
        plan = [
            *open_order(row["name"], row["id"]),
            click("link", "Contact us"),
            fill("textbox", "Subject", subject),
            fill("textbox", "Message", text),
            click("button", "Send message"),
            stop(),
        ]
        # The site itself writes order numbers with a #.
        query = "SELECT replace(subject, '#', ''), text FROM messages WHERE account = 1"
        yield Case({"product": row["name"], "text": text}, about(row), rows("shopping", query, [subject, text]), plan)


def _return(databases: Databases, random: Random) -> Iterator[Case]:
    where = "status = 'complete' AND NOT EXISTS (SELECT 1 FROM returns WHERE order_id = orders.id)"
    for row in random.sample(found := own_orders(databases, where), len(found)):
        reason = random.choice(REASONS)
        plan = [
            *open_order(row["name"], row["id"]),
            choose("Reason", reason),
            click("button", "Request return"),
            stop(),
        ]
        query = (
            "SELECT order_id, reason FROM returns JOIN orders ON orders.id = order_id"
            " WHERE account = 1 AND created = '2025-06-16 09:30'"
        )
        check = rows("shopping", query, [row["id"], reason])
        yield Case({"product": row["name"], "reason": reason}, about(row), check, plan)


def _compare(databases: Databases, random: Random) -> Iterator[Case]:
    drawn = list(goods(databases, random, most=1200))
    for first, second in zip(drawn[::2], drawn[1::2], strict=False):
        plan = [
            *open_product(first["name"]),
            click("button", "Add to compare"),
            *open_product(second["name"]),
            click("button", "Add to compare"),
            stop(),
        ]
        query = "SELECT product FROM compare_items WHERE account = 1 ORDER BY product"
        wanted = sorted([[first["id"]], [second["id"]]])
        holes = {"one": first["name"], "other": second["name"]}
        yield Case(holes, about(first) | about(second), rows("shopping", query, *wanted), plan)


WRITING = (
    Template(
        "shop/wish-with-note",
        SHOPPING,
        "Add the {{product}} to my wish list with the note '{{note}}'.",
        _wish_with_note,
    ),
    Template(
        "shop/review",
        SHOPPING,
        "Review the {{product}} for me: {{stars}} of 5 stars, the title '{{title}}' and the text '{{text}}'.",
        _review,
    ),
    Template(
        "shop/new-address",
        SHOPPING,
        "Put {{name}}, {{street}}, {{postcode}} {{town}}, telephone {{phone}}, into my address book;"
        " my default address stays as it is.",
        _new_address,
    ),
    Template(
        "shop/moved",
        SHOPPING,
        "I have moved. Change my default address to {{street}}, {{postcode}} {{town}}, without adding another one.",
        _moved,
    ),
    Template(
        "shop/message",
        SHOPPING,
        "Write to the shop about my order with the {{product}}. The subject is 'Order' and the order's number,"
        " the message: '{{text}}'",
        _message,
    ),
    Template(
        "shop/return",
        SHOPPING,
        "I want to send back the order with the {{product}}. Request the return with the reason '{{reason}}'.",
        _return,
    ),
    Template(
        "shop/compare",
        SHOPPING,
        "Put the {{one}} and the {{other}} side by side in the product comparison.",
        _compare,
        held_out=True,
    ),
)
"""Templates of this module."""
