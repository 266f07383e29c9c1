"""A customer's own pages: overview, addresses, profile, password, newsletter, reviews."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.checkout import ADDRESS
from agentgym_envs.worlds.webarena.sites.shop.front import moment, site
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit, pages

_SIZE = 8


@site.get("/account")
def account(visit: Visit) -> Response:
    """Show the overview."""
    me = visit.signed_in()["id"]
    recent = visit.all("SELECT * FROM orders WHERE account = ? ORDER BY placed DESC LIMIT 5", me)
    default = visit.all("SELECT * FROM addresses WHERE account = ? AND is_default", me)
    return visit.render(
        "account.html", recent=recent, default=default, subscribed=_subscribed(visit), place_in="account"
    )


@site.get("/account/addresses")
def addresses(visit: Visit) -> Response:
    """Show the address book."""
    rows = visit.all("SELECT * FROM addresses WHERE account = ? ORDER BY is_default DESC, id", visit.signed_in()["id"])
    return visit.render("addresses.html", addresses=rows, place_in="addresses")


@site.get("/account/addresses/new")
def new_address(visit: Visit) -> Response:
    """Show the form for a new address."""
    visit.signed_in()
    values: dict[str, object] = dict.fromkeys((*ADDRESS, "is_default"), "")
    return visit.render("address.html", values=values, number=None, problems=[], place_in="addresses")


@site.get("/account/addresses/{number:int}")
def edit_address(visit: Visit, number: int) -> Response:
    """Show the form for editing an address."""
    row = _own_address(visit, number)
    return visit.render("address.html", values=row, number=number, problems=[], place_in="addresses")


@site.post("/account/addresses/new")
def add_address(visit: Visit) -> Response:
    """Add an address."""
    visit.signed_in()
    return _keep_address(visit, None)


@site.post("/account/addresses/{number:int}")
def change_address(visit: Visit, number: int) -> Response:
    """Save an address."""
    _own_address(visit, number)
    return _keep_address(visit, number)


def _keep_address(visit: Visit, number: int | None) -> Response:
    me = visit.signed_in()["id"]
    values = {name: visit.text(name, 120) for name in ADDRESS}
    problems = [f"Please fill in the field {name}." for name in ADDRESS[:4] if not values[name]]
    if problems:
        values["is_default"] = visit.text("is_default")
        return visit.render("address.html", 422, values=values, number=number, problems=problems, place_in="addresses")
    if number is None:
        number = visit.run(
            "INSERT INTO addresses (account, recipient, street, town, postcode, phone) VALUES (?, ?, ?, ?, ?, ?)",
            me,
            *values.values(),
        )
    else:
        visit.run(
            "UPDATE addresses SET recipient = ?, street = ?, town = ?, postcode = ?, phone = ? WHERE id = ?",
            *values.values(),
            number,
        )
    if visit.text("is_default"):
        _make_default(visit, me, number)
    return visit.redirect("/account/addresses", "The address has been saved.")


@site.post("/account/addresses/{number:int}/default")
def default_address(visit: Visit, number: int) -> Response:
    """Make an address the default for orders."""
    row = _own_address(visit, number)
    _make_default(visit, row["account"], number)
    return visit.redirect("/account/addresses", "Your default address has been changed.")


@site.post("/account/addresses/{number:int}/delete")
def delete_address(visit: Visit, number: int) -> Response:
    """Delete an address other than the default."""
    if _own_address(visit, number)["is_default"]:
        raise Refused("The default address can't be deleted. Make another one the default first.")
    visit.run("DELETE FROM addresses WHERE id = ?", number)
    return visit.redirect("/account/addresses", "The address has been deleted.")


def _make_default(visit: Visit, me: int, number: int) -> None:
    visit.run("UPDATE addresses SET is_default = (id = ?) WHERE account = ?", number, me)


def _own_address(visit: Visit, number: int) -> sqlite3.Row:
    me = visit.signed_in()["id"]
    return visit.one("SELECT * FROM addresses WHERE id = ? AND account = ?", number, me, what="address")


@site.get("/account/profile")
def profile(visit: Visit) -> Response:
    """Show the form for name, e-mail, telephone and password."""
    return visit.render("profile.html", values=visit.signed_in(), problems=[], place_in="profile")


@site.post("/account/profile")
def change_profile(visit: Visit) -> Response:
    """Save name, e-mail and telephone."""
    me = visit.signed_in()["id"]
    values = {name: visit.text(name, 120) for name in ("first_name", "last_name", "email", "phone")}
    problems = [f"Please fill in the field {name.replace('_', ' ')}." for name, text in values.items() if not text]
    if values["email"] and "@" not in values["email"]:
        problems.append("This is not an e-mail address.")
    if visit.value("SELECT count(*) FROM accounts WHERE email = ? AND id <> ?", values["email"], me):
        problems.append("Somebody else has this e-mail address.")
    if problems:
        return visit.render("profile.html", 422, values=values, problems=problems, place_in="profile")
    visit.run("UPDATE newsletter SET email = ? WHERE account = ?", values["email"], me)
    visit.run(
        "UPDATE accounts SET first_name = ?, last_name = ?, email = ?, phone = ? WHERE id = ?", *values.values(), me
    )
    return visit.redirect("/account/profile", "Your profile has been saved.")


@site.post("/account/password")
def change_password(visit: Visit) -> Response:
    """Change the password; requires the old one."""
    me = visit.signed_in()
    new, problems = visit.text("new", 100), list[str]()
    if visit.text("current", 100) != me["password"]:
        problems.append("The current password is not right.")
    if len(new) < 6:
        problems.append("The new password needs six characters or more.")
    if new != visit.text("again", 100):
        problems.append("The new password and its repetition differ.")
    if problems:
        return visit.render("profile.html", 422, values=me, problems=problems, place_in="profile")
    visit.run("UPDATE accounts SET password = ? WHERE id = ?", new, me["id"])
    return visit.redirect("/account/profile", "Your password has been changed.")


@site.get("/account/newsletter")
def newsletter(visit: Visit) -> Response:
    """Show the newsletter subscription."""
    return visit.render("newsletter.html", subscribed=_subscribed(visit), place_in="newsletter")


@site.post("/account/newsletter")
def change_newsletter(visit: Visit) -> Response:
    """Subscribe to the newsletter, or unsubscribe."""
    me = visit.signed_in()
    status = "subscribed" if visit.text("subscribed") else "unsubscribed"
    keep_subscription(visit, me["email"], me["id"], status)
    return visit.redirect("/account/newsletter", f"You are now {status}.")


def keep_subscription(visit: Visit, email: str, account: int | None, status: str) -> None:
    """Set the newsletter subscription of an e-mail address."""
    visit.run(
        "INSERT INTO newsletter VALUES (?, ?, ?, ?) ON CONFLICT (email) DO UPDATE SET status = excluded.status",
        email,
        account,
        status,
        moment()[:10],
    )


def _subscribed(visit: Visit) -> bool:
    email = visit.signed_in()["email"]
    return visit.value("SELECT status FROM newsletter WHERE email = ?", email) == "subscribed"


@site.get("/account/reviews")
def reviews(visit: Visit) -> Response:
    """List the customer's reviews."""
    me = visit.signed_in()["id"]
    shown = pages(visit.value("SELECT count(*) FROM reviews WHERE account = ?", me), _SIZE, visit.number("page"))
    rows = visit.all(
        "SELECT reviews.*, name FROM reviews JOIN products ON products.id = product WHERE account = ?"
        " ORDER BY reviews.created DESC, reviews.id DESC LIMIT ? OFFSET ?",
        me,
        _SIZE,
        shown["offset"],
    )
    return visit.render("reviews.html", reviews=rows, pages=shown, place_in="reviews")
