"""Newsletter subscribers, and messages from the contact form."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import get, post
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, listing
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

SUBSCRIBERS = Grid(
    select="""SELECT newsletter.*, newsletter.email AS id,
            coalesce(accounts.first_name || ' ' || accounts.last_name, 'Guest') AS customer
        FROM newsletter LEFT JOIN accounts ON accounts.id = newsletter.account""",
    columns=(
        Column("Email", "email"),
        Column("Customer", "customer"),
        Column("Since", "since"),
        Column("Status", "status"),
        Column("Change"),
    ),
    filters=(
        Filter("email", "Email", "newsletter.email LIKE ? ESCAPE '\\'"),
        Filter(
            "status", "Status", "newsletter.status = ?", "choice",
            (("subscribed", "Subscribed"), ("unsubscribed", "Unsubscribed")),
        ),
        Filter("from", "Since", "newsletter.since >= ?", "day"),
        Filter("to", "Until", "newsletter.since <= ?", "day"),
    ),
    order="since",
)  # fmt: skip
MESSAGES = Grid(
    select="SELECT * FROM messages",
    columns=(
        Column("Received", "created"),
        Column("From", "name"),
        Column("Subject", "subject"),
        Column("Status", "answered"),
    ),
    filters=(
        Filter("name", "Name or email", "name || ' ' || email LIKE ? ESCAPE '\\'"),
        Filter("words", "Words in the message", "subject || ' ' || text LIKE ? ESCAPE '\\'"),
        Filter("answered", "Status", "answered = ?", "choice", (("0", "Open"), ("1", "Answered"))),
    ),
    order="created",
)


@get("/subscribers")
def subscribers(visit: Visit) -> Response:
    """List all current and former subscribers of the newsletter."""
    return visit.render("subscribers.html", list=listing(visit, SUBSCRIBERS))


@post("/subscribers/change")
def change_subscriber(visit: Visit) -> Response:
    """Subscribe, unsubscribe or delete an address."""
    email, action = visit.text("email"), visit.text("action")
    visit.one("SELECT email FROM newsletter WHERE email = ?", email, what="subscriber")
    match action:
        case "subscribe" | "unsubscribe":
            visit.run("UPDATE newsletter SET status = ? WHERE email = ?", f"{action}d", email)
        case "delete":
            visit.run("DELETE FROM newsletter WHERE email = ?", email)
        case _:
            raise Refused("An address is subscribed, unsubscribed or deleted.")
    return visit.redirect(visit.text("back"), f"{email} was {action}d.")


@get("/messages")
def messages(visit: Visit) -> Response:
    """List the messages from the contact form."""
    return visit.render("messages.html", list=listing(visit, MESSAGES))


@get("/messages/{message:int}")
def message_page(visit: Visit, message: int) -> Response:
    """Show a message."""
    found = visit.one("SELECT * FROM messages WHERE id = ?", message, what="message")
    return visit.render("contact.html", message=found)


@post("/messages/{message:int}/answered")
def mark(visit: Visit, message: int) -> Response:
    """Mark a message as answered or unanswered."""
    found = visit.one("SELECT * FROM messages WHERE id = ?", message, what="message")
    visit.run("UPDATE messages SET answered = ? WHERE id = ?", int(not found["answered"]), message)
    return visit.redirect(
        f"/messages/{message}", f"The message is {'open again' if found['answered'] else 'answered'}."
    )
