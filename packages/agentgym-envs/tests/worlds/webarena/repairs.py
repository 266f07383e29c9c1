"""How a visitor undoes what the plan of a task has done, by the sites' own pages.

An undo is a list of steps from the page where the plan ended: addresses to open and names of buttons to press, with the
task's values in braces, or steps of a plan.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.tasks import Step, choose, click, fill, go
from form_player import Player

Task = Mapping[str, Any]
Undo = Callable[[Player, Task], Sequence[str | Step]]
_SHOP, _ADMIN, _FORUM, _CODE = (PLACES[key].url for key in ("shopping", "shopping_admin", "reddit", "gitlab"))


def presses(*steps: str | Step) -> Undo:
    return lambda player, task: steps


def inverse(before: str, after: str) -> Undo:
    """Press `after` for each button whose name began with `before`."""

    def undo(player: Player, task: Task) -> list[str | Step]:
        names = [step["name"] for step in task["plan"] if step["do"] == "click" and step["role"] == "button"]
        return [after + name.removeprefix(before) for name in names if name.startswith(before)]

    return undo


def _value(name: str, sql: str, *values: Any) -> Any:
    """Return a value from a database as episodes begin with it."""
    with closing(sqlite3.connect(store.database(name))) as db:
        return db.execute(sql, values).fetchone()[0]


def _last_link(task: Task) -> str:
    """Return the name of the last link that the plan clicks."""
    return next((step["name"] for step in reversed(task["plan"]) if step.get("role") == "link"), "")


def _cancel_order(player: Player, task: Task) -> list[str | Step]:
    with closing(sqlite3.connect(player.files["shopping"])) as db:
        number = db.execute("SELECT max(id) FROM orders").fetchone()[0]
    return [f"{_SHOP}/account/orders/{number}", "Cancel order"]


def _from_cart(player: Player, task: Task) -> list[str | Step]:
    items = task["eval"]["database"][0]["rows"]
    return [f"Remove {name}{f', {options}' if options else ''} from cart" for name, options, _ in items]


def _old_price(player: Player, task: Task) -> list[str | Step]:
    product = task["instantiation_dict"]["product"]
    price = _value("shop", "SELECT price FROM products WHERE name = ?", product)
    plan = [step for step in task["plan"] if step["do"] != "stop"]
    return [go(_ADMIN), *plan[:-2], fill("textbox", "Price", f"{price / 100:.2f}"), "Save product"]


def _old_stock(player: Player, task: Task) -> list[str | Step]:
    stock = _value("shop", "SELECT stock FROM products WHERE sku = ?", task["instantiation_dict"]["sku"])
    return [fill("textbox", task["plan"][-2]["name"], str(stock), enter=True)]


def _old_customer(player: Player, task: Task) -> list[str | Step]:
    values = task["instantiation_dict"]
    sql = "SELECT {} FROM accounts WHERE first_name || ' ' || last_name = ? AND role = 'customer'"
    email, phone = (_value("shop", sql.format(column), values["customer"]) for column in ("email", "phone"))
    typed = [fill("textbox", "Email", email), fill("textbox", "Phone", phone)]
    return [click("link", "Edit customer"), *typed, "Save customer"]


def _old_group(player: Player, task: Task) -> list[str | Step]:
    group = _value("shop", "SELECT customer_group FROM accounts WHERE email = ?", task["instantiation_dict"]["email"])
    return [click("link", "Edit customer"), choose("Group", group), "Save customer"]


def _enable(player: Player, task: Task) -> list[str | Step]:
    return [step | {"option": "Enable"} if step.get("name") == "Action" else step for step in task["plan"][-4:-1]]


def _pend(player: Player, task: Task) -> list[str | Step]:
    ids = re.findall(r"\d+", re.findall(r"id IN \((.*?)\)", task["eval"]["database"][0]["query"])[0])
    return [step for review in ids for step in (f"{_ADMIN}/reviews/{review}", "Set to pending")]


def _old_title(player: Player, task: Task) -> list[str | Step]:
    return [
        click("link", "Edit post"), fill("textbox", "Title", task["instantiation_dict"]["old"]), "Save changes",
    ]  # fmt: skip


def _restore_posts(player: Player, task: Task) -> list[str | Step]:
    ids = [row[0] for row in task["eval"]["database"][0]["rows"]]
    return [step for post in ids for step in (f"{_FORUM}/c/books/{post}", "Restore post")]


def _unpin(player: Player, task: Task) -> list[str | Step]:
    return [
        {"Pin": "Unpin post", "Lock": "Unlock post", "Remove": "Restore post"}[task["instantiation_dict"]["action"]]
    ]


def _unsubscribe(player: Player, task: Task) -> list[str | Step]:
    names = re.split(", | and ", task["instantiation_dict"]["communities"])
    return [step for name in names for step in (f"{_FORUM}/c/{name}", f"Unsubscribe from {name}")]


def _unstar(player: Player, task: Task) -> list[str | Step]:
    projects = [step["name"] for step in task["plan"] if step.get("role") == "link" and " / " in step["name"]]
    paths = [
        _value("code", "SELECT namespace || '/' || path FROM projects WHERE namespace || ' / ' || name = ?", name)
        for name in projects
    ]
    return [step for path in paths for step in (f"{_CODE}/{path}", "Unstar")]


def _untick(player: Player, task: Task) -> list[str | Step]:
    return [step for step in task["plan"][-5:-1] if step["role"] in ("checkbox", "button")]


def _old_plan(player: Player, task: Task) -> list[str | Step]:
    (_, *old), columns = task["eval"]["database"][0]["rows"][1], _columns("code", "issue_contents")
    due, weight = (old[columns.index(name)] for name in ("due", "weight"))
    typed = [
        fill("textbox", "Due date (YYYY-MM-DD)", due or ""),
        fill("textbox", "Weight", "" if weight is None else str(weight)),
    ]
    return [click("link", "Edit issue"), *typed, "Save changes"]


def _columns(name: str, view: str) -> list[str]:
    with closing(sqlite3.connect(store.database(name))) as db:
        return [column[0] for column in db.execute(f"SELECT * FROM {view} LIMIT 0").description]


def _old_reviewer(player: Player, task: Task) -> list[str | Step]:
    old = task["eval"]["database"][0]["rows"][1][1:][_columns("code", "merge_contents").index("reviewer")]
    name = _value("code", "SELECT full_name FROM accounts WHERE id = ?", old) if old else "Nobody"
    return [choose("Reviewer", name), "Save assignee and reviewer"]


def _delete_project(player: Player, task: Task) -> list[str | Step]:
    path = player.page.url.removeprefix(f"{_CODE}/")
    confirm = fill("textbox", "Confirm by typing the project path", path)
    return [f"{_CODE}/{path}/-/settings", confirm, "Delete project"]


def _old_visibility(player: Player, task: Task) -> list[str | Step]:
    old = task["eval"]["database"][0]["rows"][1][1:][_columns("code", "project_contents").index("visibility")]
    return [click("radio", old.capitalize()), "Save visibility"]


def _old_topics(player: Player, task: Task) -> list[str | Step]:
    old = task["eval"]["database"][0]["rows"][1][1:][_columns("code", "project_contents").index("topics")]
    return [fill("textbox", "Topics (with commas between)", (old or "").replace(",", ", ")), "Save naming and topics"]


def _old_role(player: Player, task: Task) -> list[str | Step]:
    role = task["eval"]["database"][0]["rows"][1][3]
    person = task["instantiation_dict"]["person"]
    name = {10: "Guest", 20: "Reporter", 30: "Developer", 40: "Maintainer"}[role]
    return [choose(f"Role of {person}", name), f"Save role of {person}"]


def _invite_again(player: Player, task: Task) -> list[str | Step]:
    (_, _, _, role, expires) = task["eval"]["database"][0]["rows"][0]
    name = {10: "Guest", 20: "Reporter", 30: "Developer", 40: "Maintainer"}[role]
    return [
        fill("textbox", "User name, full name or e-mail", task["instantiation_dict"]["person"]),
        choose("Role", name),
        fill("textbox", "Access expires on (YYYY-MM-DD, may be empty)", expires or ""),
        "Invite",
    ]


def _old_text(player: Player, task: Task) -> list[str | Step]:
    project, path, _ = task["eval"]["database"][0]["rows"][0]
    sql = "SELECT text FROM files JOIN contents ON contents.id = content WHERE project = ? AND path = ?"
    return [
        click("link", "Edit file"),
        fill("textbox", "Content", _value("code", sql, project, path)),
        "Commit changes",
    ]


def _own_comment(player: Player, task: Task) -> list[str | Step]:
    names = [player.page.name(button) for button in player.page.root.iter("button")]
    return [[name for name in names if name.startswith("Delete comment")][-1]]


def _last_comment(player: Player, task: Task) -> list[str | Step]:
    count = len(player.page.find("button", "Delete comment"))
    return [click("button", "Delete comment", nth=count - 1)]


UNDOS: Mapping[str, Undo] = {
    "shop/add-with-option": _from_cart,
    "shop/use-coupon": presses("Remove {product} from cart"),
    "shop/cheapest-to-cart": _from_cart,
    "shop/reorder": _from_cart,
    "shop/this-to-cart": _from_cart,
    "shop/most-reviewed-of-tabs": _from_cart,
    "shop/buy": _cancel_order,
    "shop/present": _cancel_order,
    "shop/cart-and-wish": presses("Remove {other} from wish list", f"{_SHOP}/cart", "Remove {one} from cart"),
    "shop/wish-with-note": presses("Remove {product} from wish list"),
    "shop/new-address": presses("Delete {name}, {street}"),
    "shop/compare": presses("Remove {one} from comparison", "Remove {other} from comparison"),
    "admin/change-price": _old_price,
    "admin/set-stock": _old_stock,
    "admin/disable-sold-out": _enable,
    "admin/approve-review": presses("Set to pending"),
    "admin/reject-reviews": _pend,
    "admin/edit-customer": _old_customer,
    "admin/customer-group": _old_group,
    "admin/unsubscribe": presses("Subscribe {email}"),
    "admin/new-coupon": presses(f"{_ADMIN}/coupons/{{code}}", "Delete coupon"),
    "forum/ask-where-it-fits": presses("Delete post"),
    "forum/share-link": presses("Delete post"),
    "forum/reply-to-comment": _own_comment,
    "forum/comment-on-top-post": _own_comment,
    "forum/vote": presses("{word} {title}"),
    "forum/upvote-all-of-member": inverse("Upvote ", "Upvote "),
    "forum/save-newest": inverse("Save ", "Unsave "),
    "forum/subscribe": _unsubscribe,
    "forum/retitle-own-post": _old_title,
    "forum/block-author": inverse("Block ", "Unblock "),
    "forum/moderate-post": _unpin,
    "forum/ban-member": presses("Lift the ban of {member}"),
    "forum/clear-posts-of-member": _restore_posts,
    "code/new-issue": presses("Close issue"),
    "code/close-issue": presses("Reopen issue"),
    "code/comment-on-issue": _last_comment,
    "code/label-issue": _untick,
    "code/assign-issue": _untick,
    "code/plan-issue": _old_plan,
    "code/new-milestone": presses("Close milestone"),
    "code/new-label": presses("Delete the label {label}"),
    "code/close-merge": presses("Reopen merge request"),
    "code/comment-commit-count": _last_comment,
    "code/set-reviewer": _old_reviewer,
    "code/new-merge": presses("Close merge request"),
    "code/star-top": _unstar,
    "code/fork": _delete_project,
    "code/new-project": _delete_project,
    "code/visibility": _old_visibility,
    "code/add-topic": _old_topics,
    "code/invite": presses("Remove {person}"),
    "code/change-role": _old_role,
    "code/remove-member": _invite_again,
    "code/deploy-key": presses("Remove the deploy key {title}"),
    "code/follow": presses("Unfollow"),
    "code/ssh-key": presses("Delete the key {title}"),
    "code/todo-done": presses(f"{_CODE}/dashboard/todos?state=done", "Undo: {title}"),
    "code/set-default": _old_text,
    "code/readme-part": _old_text,
    "code/fix-typo": _old_text,
    "forum/repost-picture": presses("Delete post"),
    "forum/repost-top-picture": presses("Delete post"),
    "across/post-phone": presses("Delete post"),
    "across/post-population": presses("Delete post"),
    "across/post-cheaper": presses("Delete post"),
    "across/open-issue": presses("Close issue"),
    "across/new-address": presses("Delete Emma Holt, {street}"),
    "across/wish-for": presses("Remove {product} from wish list"),
}
"""The undo of each template whose plan can be undone."""
OVERWRITING = {"shop/moved", "forum/biography", "code/status", "across/move-house"}
"""Templates that set one value, so that a task's plan repairs the plan of another."""
FINAL = {
    *("shop/review", "shop/message", "shop/return", "admin/ship-order", "admin/cancel-order", "admin/invoice-order"),
    *("admin/hold-one-of-tabs", "admin/refund-order", "admin/refund-item", "admin/note-here"),
    *("admin/hold-order", "admin/brand-prices", "admin/add-product", "admin/delete-review", "admin/customer-note"),
    *("forum/send-message", "forum/answer-message", "forum/create-community", "forum/withdraw-comment"),
    *("code/approve-and-merge", "code/new-group", "across/message-author"),
}
"""Templates whose plan can't be undone, or not entirely."""


def undo(player: Player, task: Task) -> None:
    """Undo the plan of a task, which the player has just played."""
    values = {
        **task["instantiation_dict"],
        "product": task["instantiation_dict"].get("product") or _last_link(task),
        "street": task["instantiation_dict"].get("street")
        or next((step["text"] for step in task["plan"] if step.get("name") == "Street and number"), ""),
    }
    for step in UNDOS[task["template"]](player, task):
        if isinstance(step, str):
            text = step.format(**values) if "{" in step else step
            step = go(text) if text.startswith("http://") else click("button", text)
        player.play([step])
