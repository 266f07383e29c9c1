"""The checkout: a form for address, shipping and payment, a review page, and the order."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.basket import Bill, bill, check_stock, set_coupon
from agentgym_envs.worlds.webarena.sites.shop.front import Owner, moment, owner, site
from agentgym_envs.worlds.webarena.sites.shop.rules import METHODS, PAYMENTS
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

ADDRESS = ("recipient", "street", "town", "postcode", "phone")
"""The address fields shared by `addresses` and `orders`."""


@site.get("/checkout")
def checkout(visit: Visit) -> Response:
    """Show the form for address, shipping and payment."""
    return _form(visit, [])


@site.get("/checkout/review")
def review(visit: Visit) -> Response:
    """Show the order for review before it is placed."""
    problems, chosen = _chosen(visit)
    if problems:
        return _form(visit, problems)
    total = bill(visit, owner(visit))
    return visit.render("checkout_review.html", bill=total, chosen=chosen, methods=METHODS, payments=PAYMENTS)


@site.post("/checkout/place")
def place(visit: Visit) -> Response:
    """Place the order."""
    problems, chosen = _chosen(visit)
    buyer = owner(visit)
    total = bill(visit, buyer)
    if problems or buyer is None:
        return _form(visit, problems)
    order = _place(visit, buyer, total, chosen)
    if buyer.column == "account":
        return visit.redirect(f"/checkout/done/{order}")
    asked = urlencode({"number": order, "email": chosen["email"]})
    return visit.redirect(f"/track?{asked}", f"Thank you. Your order number is {order}.")


@site.get("/checkout/done/{order:int}")
def done(visit: Visit, order: int) -> Response:
    """Show the confirmation of an order."""
    account = visit.signed_in()
    row = visit.one("SELECT * FROM orders WHERE id = ? AND account = ?", order, account["id"], what="order")
    return visit.render("checkout_done.html", order=row)


def _form(visit: Visit, problems: list[str]) -> Response:
    total = bill(visit, owner(visit))
    if not total.lines:
        return visit.redirect("/cart", "Your cart is empty.")
    addresses = []
    if visit.account is not None:
        addresses = visit.all(
            "SELECT * FROM addresses WHERE account = ? ORDER BY is_default DESC, id", visit.account["id"]
        )
    return visit.render(
        "checkout.html",
        422 if problems else 200,
        bill=total,
        addresses=addresses,
        methods=METHODS,
        payments=PAYMENTS,
        problems=problems,
    )


def _chosen(visit: Visit) -> tuple[list[str], dict[str, str]]:
    """Return the errors in the submitted form, and its values."""
    chosen = {name: visit.text(name, 120) for name in ("address", "method", "payment", "email", *ADDRESS)}
    problems: list[str] = []
    if visit.account is not None:
        chosen["email"] = visit.account["email"]
        if chosen["address"] not in ("", "new"):
            number = visit.number("address", 0)
            found = visit.all("SELECT * FROM addresses WHERE id = ? AND account = ?", number, visit.account["id"])
            chosen |= {name: found[0][name] for name in ADDRESS} if found else dict.fromkeys(ADDRESS, "")
    if "@" not in chosen["email"]:
        problems.append("Please give an e-mail address.")
    problems += [f"Please fill in the field {name} of the address." for name in ADDRESS[:4] if not chosen[name]]
    if chosen["method"] not in METHODS:
        problems.append("Please choose a shipping method.")
    if chosen["payment"] not in PAYMENTS:
        problems.append("Please choose a payment method.")
    return problems, chosen


def _place(visit: Visit, buyer: Owner, total: Bill, chosen: dict[str, str]) -> int:
    """Write the order, reduce the stock, empty the cart."""
    if not total.lines:
        raise Refused("Your cart is empty.")
    method = METHODS[chosen["method"]]
    used = total.coupon is not None and (total.discount > 0 or total.coupon["kind"] == "shipping")
    code = total.coupon["code"] if total.coupon is not None and used else None
    values = (
        buyer.id if buyer.column == "account" else None,
        chosen["email"],
        *(chosen[name] for name in ADDRESS),
        moment(),
        method.name,
        total.shipping(method.key),
        PAYMENTS[chosen["payment"]],
        code,
        total.discount,
        total.subtotal,
        total.total(method.key),
    )
    order = visit.run(
        "INSERT INTO orders (account, email, recipient, street, town, postcode, phone, status, placed,"
        " shipping_method, shipping, payment_method, coupon, discount, subtotal, total)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?)",
        *values,
    )
    check_stock((line, line["quantity"]) for line in total.lines)
    for line in total.lines:
        item = (order, line["product"], line["options"], line["unit"], line["quantity"])
        visit.run("INSERT INTO order_items (order_id, product, options, price, quantity) VALUES (?, ?, ?, ?, ?)", *item)
        changed = (line["quantity"], line["quantity"], line["product"])
        visit.run("UPDATE products SET stock = stock - ?, sold = sold + ? WHERE id = ?", *changed)
    visit.run("UPDATE coupons SET uses = uses + 1 WHERE code = ?", code)
    visit.run(f"DELETE FROM cart_items WHERE {buyer.column} = ?", buyer.id)
    set_coupon(visit, buyer, None)
    return order
