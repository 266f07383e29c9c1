"""The forum's `Site`, which the page modules register with, and the helpers of all its templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.forum.markup import markup
from agentgym_envs.worlds.webarena.sites.forum.pictures import picture
from agentgym_envs.worlds.webarena.sites.forum.wording import ago, day, moment, plural
from agentgym_envs.worlds.webarena.sites.web import Refused, Site, Visit

site = Site("reddit", Path(__file__).parent)
STAMP = f"{NOW}"
"""The current time in the database's format."""


def post_path(post: Any) -> str:
    """Return the URL path of a row of posts (with `place_name`)."""
    return f"/c/{post['place_name']}/{post['id']}"


def community(visit: Visit, name: str) -> Any:
    """Return the row of a community with the visitor's `subscribed` and `moderated` flags."""
    me = visit.account["id"] if visit.account else 0
    return visit.one(
        """
        SELECT communities.*,
            EXISTS (SELECT 1 FROM subscriptions WHERE community = communities.id AND account = ?1) AS subscribed,
            EXISTS (SELECT 1 FROM moderators WHERE community = communities.id AND account = ?1) AS moderated
        FROM communities WHERE name = ?2
        """,
        me,
        name,
        what="community",
    )


def refuse_banned(visit: Visit, community_id: int) -> None:
    """Raise `Refused` if the visitor is banned from a community."""
    if visit.value("SELECT 1 FROM bans WHERE community = ? AND account = ?", community_id, visit.signed_in()["id"]):
        raise Refused("You are banned from this community.")


def unread(visit: Visit) -> int:
    """Return the visitor's number of unread replies."""
    if visit.account is None:
        return 0
    return visit.value("SELECT count(*) FROM notifications WHERE account = ? AND NOT seen", visit.account["id"])


_filters = {"day": day, "moment": moment, "ago": ago, "markup": markup, "plural": plural, "picture": picture}
cast("dict[str, Any]", site.templates.filters).update(_filters)
cast("dict[str, Any]", site.templates.globals).update(unread=unread, post_path=post_path)
