"""Tasks about customers, the newsletter and coupons."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.shop_admin.rules import GROUPS
from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    customer_page,
    drawn,
    listed,
    money,
    number,
    one,
    section,
    spoken,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, choose, click, fill, rows, said, stop

_CUSTOMERS = """SELECT id, first_name, last_name, first_name || ' ' || last_name AS name, email, phone, customer_group
    FROM accounts WHERE role = 'customer' AND id > 2 ORDER BY id"""
_OCCASIONS = ("Harvest", "Midsummer", "Back to school", "Moving house", "Anniversary", "Clearance", "Rainy days")


def _by_phone(databases: Databases, random: Random) -> Iterator[Case]:
    for customer in drawn(databases, random, _CUSTOMERS):
        if number(databases, "SELECT count(*) FROM accounts WHERE phone = ?", customer["phone"]) == 1:
            answer = [customer["name"], customer["email"]]
            plan = section("Customers", fill("textbox", "Phone", customer["phone"], enter=True))
            judged = said(*answer)
            entities = one(f"account:{customer['id']}")
            yield Case({"phone": customer["phone"]}, entities, judged, [*plan, stop(listed(answer))])


def _email(databases: Databases, random: Random) -> Iterator[Case]:
    for customer in drawn(databases, random, _CUSTOMERS):
        email = f"{customer['first_name'][0]}{customer['last_name']}{random.randint(10, 99)}@letters.example".lower()
        phone = f"555-{random.randint(1000, 9999)}"
        plan = [
            *customer_page(customer["name"]),
            click("link", "Edit customer"),
            fill("textbox", "Email", email),
            fill("textbox", "Phone", phone),
            click("button", "Save customer"),
            stop(),
        ]
        if number(databases, "SELECT count(*) FROM accounts WHERE phone = ?", phone) == 0:
            judged = edited(
                databases["shop"], "shopping_admin", "account_contents", customer["id"], email=email, phone=phone
            )
            values = {"customer": customer["name"], "email": email, "phone": phone}
            yield Case(values, one(f"account:{customer['id']}"), judged, plan)


def _group(databases: Databases, random: Random) -> Iterator[Case]:
    for customer in drawn(databases, random, _CUSTOMERS):
        group = random.choice([name for name in GROUPS[:3] if name != customer["customer_group"]])
        plan = [
            *section("Customers", fill("textbox", "Email", customer["email"], enter=True)),
            click("link", customer["name"]),
            click("link", "Edit customer"),
            choose("Group", group),
            click("button", "Save customer"),
            stop(),
        ]
        values = {"email": customer["email"], "group": group}
        judged = edited(databases["shop"], "shopping_admin", "account_contents", customer["id"], customer_group=group)
        yield Case(values, one(f"account:{customer['id']}"), judged, plan)


def _note(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM customer_notes")
    for customer in drawn(databases, random, _CUSTOMERS):
        weekday = random.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"))
        text = f"Call back on {weekday} about {random.choice(_OCCASIONS).lower()}"
        mine = f"(SELECT text FROM customer_notes WHERE account = {customer['id']} ORDER BY id DESC)"
        judged = rows("shopping_admin", f"SELECT count(*), {mine} FROM customer_notes", [before + 1, text])
        plan = [
            *customer_page(customer["name"]),
            fill("textbox", "New note", text),
            click("button", "Add note"),
            stop(),
        ]
        yield Case({"customer": customer["name"], "text": text}, one(f"account:{customer['id']}"), judged, plan)


def _unsubscribe(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM newsletter WHERE status = 'unsubscribed'")
    for row in drawn(databases, random, "SELECT email FROM newsletter WHERE status = 'subscribed' ORDER BY email"):
        email = row["email"]
        mine = f"(SELECT status FROM newsletter WHERE email = '{email}')"
        query = f"SELECT count(*), {mine} FROM newsletter WHERE status = 'unsubscribed'"
        plan = [
            *section("Newsletter", fill("textbox", "Email", email, enter=True)),
            click("button", f"Unsubscribe {email}"),
            stop(),
        ]
        judged = rows("shopping_admin", query, [before + 1, "unsubscribed"])
        yield Case({"email": email}, one(f"email:{email}"), judged, plan)


def _coupon(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM coupons")
    for brand in random.sample(BRANDS, len(BRANDS)):
        percent, minimum = random.choice((5, 8, 12, 15, 18, 25)), random.choice((20_00, 35_00, 50_00, 80_00, 120_00))
        code, description = f"{brand.upper()}{percent}", random.choice(_OCCASIONS)
        starts = date(2025, 7, 1) + timedelta(days=random.randrange(120))
        ends = starts + timedelta(days=random.randint(6, 60))
        query = (
            "SELECT description, kind, value, minimum, starts, ends, active, (SELECT count(*) FROM coupons)"
            f" FROM coupons WHERE code = '{code}'"
        )
        typed = {
            "Code": code,
            "Description": description,
            "Discount": str(percent),
            "First day (YYYY-MM-DD)": f"{starts}",
            "Last day (YYYY-MM-DD)": f"{ends}",
            "Least subtotal": f"{minimum / 100:.2f}",
        }
        plan = [
            click("link", "Coupons"),
            click("link", "Add coupon"),
            *(fill("textbox", label, text) for label, text in typed.items()),
            click("button", "Save coupon"),
            stop(),
        ]
        values = {"code": code, "description": description, "percent": percent, "minimum": f"${money(minimum)}"}
        values |= {"first": spoken(str(starts)), "last": spoken(str(ends))}
        row = [description, "percent", percent, minimum, str(starts), str(ends), 1, before + 1]
        yield Case(values, one(f"coupon:{code}"), rows("shopping_admin", query, row), plan)


TEMPLATES = (
    Template(
        "admin/customer-by-phone", SITES,
        "Someone rang from {{phone}}. Which customer is that? Give me the name and the email address.", _by_phone,
    ),
    Template(
        "admin/edit-customer", SITES,
        "{{customer}} has a new email address, {{email}}, and a new phone number, {{phone}}. Update the account.",
        _email,
    ),
    Template(
        "admin/customer-group", SITES,
        "Put the customer with the email address {{email}} into the group {{group}}.", _group, held_out=True,
    ),
    Template(
        "admin/customer-note", SITES,
        "Leave a note on the customer {{customer}} that says \"{{text}}\"", _note,
    ),
    Template(
        "admin/unsubscribe", SITES,
        "{{email}} doesn't want our newsletter any more. Unsubscribe that address.", _unsubscribe, held_out=True,
    ),
    Template(
        "admin/new-coupon", SITES,
        "Create the coupon {{code}} with the description \"{{description}}\": {{percent}} percent off from a subtotal "
        "of {{minimum}}, valid from {{first}} to {{last}}.", _coupon,
    ),
)  # fmt: skip
