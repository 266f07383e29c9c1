"""The forum's pages.

Voting without reloading, collapsing comments and previews need JavaScript; votes also work without it.
"""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.forum import (
    comments,
    front,
    mail,
    moderation,
    people,
    posts,
    reading,
    search,
    votes,
)
from agentgym_envs.worlds.webarena.sites.forum.app import site

__all__ = ["comments", "front", "mail", "moderation", "people", "posts", "reading", "search", "site", "votes"]
