"""Creation, editing and deletion of posts."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, community, post_path, refuse_banned, site
from agentgym_envs.worlds.webarena.sites.forum.listing import one_post
from agentgym_envs.worlds.webarena.sites.forum.markup import markup
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_LONGEST_TITLE = 200


@site.get("/submit")
def new_post(visit: Visit) -> Response:
    """Show the form for a post; `c` preselects the community."""
    visit.signed_in()
    return _form(visit, [])


@site.post("/submit")
def submit(visit: Visit) -> Response:
    """Publish a post with its author's upvote."""
    me = visit.signed_in()["id"]
    title, body, url, flair = (
        visit.text("title", 1_000),
        visit.text("body"),
        visit.text("url", 500),
        visit.text("flair"),
    )
    name, address = visit.text("c"), visit.text("picture", 500)
    scene, picture = _picture_at(visit, address)
    errors = _wrong(title, url)
    if address and picture is None:
        errors.append(f"There is no picture at {address}.")
    if not visit.value("SELECT 1 FROM communities WHERE name = ?", name):
        errors.append("Choose a community.")
    if errors:
        return _form(visit, errors)
    place = community(visit, name)
    refuse_banned(visit, place["id"])
    known = visit.value("SELECT name FROM flairs WHERE community = ? AND name = ?", place["id"], flair)
    made = visit.run(
        "INSERT INTO posts (community, author, title, body, url, scene, picture, flair, created, ups)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
        *(place["id"], me, title, body, url or None, scene, picture, known or "", STAMP),
    )
    visit.run("INSERT INTO post_votes VALUES (?, ?, 1)", me, made)
    return visit.redirect(f"/c/{place['name']}/{made}", "Your post was published.")


def _picture_at(visit: Visit, address: str) -> tuple[str | None, int | None]:
    """Return scene and number of the picture at an address such as `http://forum.example/picture/17`, or Nones."""
    found = re.fullmatch(r"(?:https?://)?(?:forum\.example)?/picture/(\d{1,9})/?", address)
    if found is None:
        return None, None
    row = visit.all("SELECT scene, picture FROM posts WHERE picture = ? AND NOT deleted AND NOT removed", found[1])
    return tuple(row[0]) if row else (None, None)


@site.get("/picture/{number:int}")
def picture(visit: Visit, number: int) -> Response:
    """Show a picture by itself."""
    shown = "SELECT id FROM posts WHERE picture = ? AND NOT deleted AND NOT removed ORDER BY id"
    row = visit.one(shown, number, what="picture")
    visit.canonical()
    return visit.render("picture.html", post=one_post(visit, row["id"]))


def _wrong(title: str, url: str) -> list[str]:
    errors = [] if title else ["A post needs a title."]
    if len(title) > _LONGEST_TITLE:
        errors.append(f"A title has at most {_LONGEST_TITLE} characters.")
    if url and not url.startswith(("http://", "https://")):
        errors.append("An address starts with http:// or https://.")
    return errors


def _form(visit: Visit, errors: list[str]) -> Response:
    """Render the form with its current values. Flairs are those of the community it was opened for, else all."""
    name = visit.text("c")
    flairs = visit.all(
        """
        SELECT DISTINCT flairs.name FROM flairs JOIN communities ON communities.id = community
        WHERE communities.name = ?1 OR NOT EXISTS (SELECT 1 FROM communities WHERE name = ?1) ORDER BY 1
        """,
        name,
    )
    communities = visit.all("SELECT name, title FROM communities ORDER BY name")
    given = {key: visit.text(key) for key in ("title", "body", "url", "picture", "flair")}
    shown = {"communities": communities, "flairs": flairs, "errors": errors, "chosen": name}
    return visit.render("submit.html", 400 if errors else 200, **shown, **given)


@site.get("/post/{number:int}/edit")
def edit_post(visit: Visit, number: int) -> Response:
    """Show the form for editing the visitor's post."""
    post = _own(visit, number)
    return visit.render("edit_post.html", post=post, title=post["title"], body=post["body"], errors=[])


@site.post("/post/{number:int}/edit")
def change_post(visit: Visit, number: int) -> Response:
    """Save title and text of the visitor's post."""
    post, title, body = _own(visit, number), visit.text("title", 1_000), visit.text("body")
    errors = _wrong(title, "")
    if errors:
        return visit.render("edit_post.html", 400, post=post, title=title, body=body, errors=errors)
    visit.run("UPDATE posts SET title = ?, body = ?, edited = ? WHERE id = ?", title, body, STAMP, number)
    return visit.redirect(post_path(post), "Your post was changed.")


@site.post("/post/{number:int}/delete")
def delete_post(visit: Visit, number: int) -> Response:
    """Delete the visitor's post; its comments remain under a placeholder."""
    post = _own(visit, number)
    visit.run("UPDATE posts SET deleted = 1 WHERE id = ?", number)
    return visit.redirect(f"/c/{post['place_name']}", "Your post was deleted.")


@site.post("/preview")
def preview(visit: Visit) -> Response:
    """Return a rendered text for the preview script."""
    return visit.json({"html": str(markup(visit.text("body")))})


def _own(visit: Visit, number: int) -> Any:
    me, post = visit.signed_in()["id"], one_post(visit, number)
    if post["author"] != me:
        raise Refused("This is somebody else's post.")
    if post["deleted"] or post["removed"]:
        raise Refused("This post was deleted or removed.")
    return post
