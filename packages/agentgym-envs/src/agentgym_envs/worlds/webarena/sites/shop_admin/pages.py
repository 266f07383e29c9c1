"""The admin site's pages: sign-in and the dashboard here, the others in the imported modules."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.shop_admin import (
    categories,
    contacts,
    coupons,
    customers,
    orders,
    products,
    reports,
    reviews,
    settings,
)
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import get, site
from agentgym_envs.worlds.webarena.sites.web import Visit

__all__ = [
    "categories",
    "contacts",
    "coupons",
    "customers",
    "orders",
    "products",
    "reports",
    "reviews",
    "settings",
    "site",
]


@get("/")
def dashboard(visit: Visit) -> Response:
    """Show the key figures, pending work and latest records."""
    month, today = f"{NOW:%Y-%m}-01", f"{NOW:%Y-%m-%d}"
    figures = visit.one(
        "SELECT sum(total) AS revenue, avg(total) AS average, sum(iif(placed >= ?, total, 0)) AS month,"
        " sum(placed >= ?) AS today FROM orders WHERE status <> 'cancelled'",
        month, today,
    )  # fmt: skip
    waiting = visit.one(
        "SELECT (SELECT count(*) FROM orders WHERE status = 'pending') AS orders,"
        " (SELECT count(*) FROM reviews WHERE status = 'pending') AS reviews,"
        " (SELECT count(*) FROM returns WHERE status = 'open') AS returns,"
        " (SELECT count(*) FROM messages WHERE answered = 0) AS messages"
    )
    return visit.render(
        "dashboard.html",
        figures=figures,
        waiting=waiting,
        month=f"{NOW:%B}",
        orders=visit.all(f"{orders.GRID.select} ORDER BY placed DESC, orders.id DESC LIMIT 6"),
        bestsellers=visit.all(
            f"{reports.BESTSELLERS.select} WHERE {reports.BESTSELLERS.where} {reports.BESTSELLERS.group}"
            " ORDER BY quantity DESC, products.id LIMIT 6"
        ),
        searches=visit.all("SELECT * FROM search_terms ORDER BY uses DESC, term LIMIT 6"),
        reviews=visit.all(
            f"{reviews.GRID.select} WHERE reviews.status = 'pending' ORDER BY created DESC, reviews.id DESC LIMIT 6"
        ),
    )


@site.get("/login")
def sign_in_page(visit: Visit) -> Response:
    """Show the sign-in form."""
    return visit.render("login.html", name="", next=visit.text("next"), wrong=False)


@site.post("/login")
def sign_in(visit: Visit) -> Response:
    """Sign in with the password."""
    name, password = visit.text("name"), visit.text("password")
    found = visit.value("SELECT id FROM accounts WHERE name = ? AND password = ? AND role = 'admin'", name, password)
    if found is None:
        return visit.render("login.html", 422, name=name, next=visit.text("next"), wrong=True)
    visit.sign_in(found)
    return visit.redirect(visit.text("next") or "/", "Welcome back.")


@site.post("/logout")
def sign_out(visit: Visit) -> Response:
    """Sign out."""
    visit.sign_out()
    return visit.redirect("/login", "You are signed out.")
