"""Reviews: the list with pending reviews, the page of one, and decisions on one or several."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import get, post, selected
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, listing
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

GRID = Grid(
    select="""SELECT reviews.*, products.name AS product_name
        FROM reviews JOIN products ON products.id = reviews.product""",
    columns=(
        Column("ID", "id"),
        Column("Created", "created"),
        Column("Product", "product_name"),
        Column("Nickname", "nickname"),
        Column("Title"),
        Column("Stars", "stars"),
        Column("Status", "status"),
    ),
    filters=(
        Filter("product", "Product", "products.name LIKE ? ESCAPE '\\'"),
        Filter("nickname", "Nickname", "reviews.nickname LIKE ? ESCAPE '\\'"),
        Filter("words", "Words in the review", "reviews.title || ' ' || reviews.text LIKE ? ESCAPE '\\'"),
        Filter(
            "status", "Status", "reviews.status = ?", "choice",
            (("pending", "Pending"), ("approved", "Approved"), ("rejected", "Rejected")),
        ),
        Filter("stars", "Stars", "reviews.stars = ?", "choice", tuple((str(n), str(n)) for n in range(1, 6))),
        Filter("from", "Created from", "reviews.created >= ?", "day"),
        Filter("to", "Created to", "reviews.created <= ?", "day"),
    ),
    order="created",
)  # fmt: skip
_DECISIONS = {"approve": "approved", "reject": "rejected", "pend": "pending"}


@get("/reviews")
def reviews(visit: Visit) -> Response:
    """List all reviews."""
    return visit.render("reviews.html", list=listing(visit, GRID))


@get("/reviews/{review:int}")
def review_page(visit: Visit, review: int) -> Response:
    """Show a review in full."""
    found = visit.one(f"{GRID.select} WHERE reviews.id = ?", review, what="review")
    author = visit.db.execute("SELECT * FROM accounts WHERE id = ?", (found["account"],)).fetchone()
    return visit.render("review.html", review=found, author=author)


@post("/reviews/mass")
def decide(visit: Visit) -> Response:
    """Approve, reject, delete or postpone all selected reviews."""
    chosen, action = selected(visit), visit.text("action")
    if not chosen:
        raise Refused("No review was selected: tick the boxes in front of the reviews first.")
    holes = ", ".join("?" * len(chosen))
    many = "1 review was" if len(chosen) == 1 else f"{len(chosen)} reviews were"
    if action == "delete":
        visit.run(f"DELETE FROM reviews WHERE id IN ({holes})", *chosen)
        return visit.redirect(visit.text("back"), f"{many} deleted.")
    if action not in _DECISIONS:
        raise Refused("Choose what to do with the selected reviews.")
    status = _DECISIONS[action]
    visit.run(f"UPDATE reviews SET status = ? WHERE id IN ({holes})", status, *chosen)
    return visit.redirect(visit.text("back"), f"{many} {'set to pending' if status == 'pending' else status}.")
