"""Formats times and numbers for the pages."""

from __future__ import annotations

from datetime import datetime

from agentgym_envs.worlds.webarena.sites.directory import NOW


def day(stamp: str) -> str:
    """Format the day of a database timestamp: `3 March 2025`."""
    return f"{datetime.fromisoformat(stamp):%-d %B %Y}"


def moment(stamp: str) -> str:
    """Format day and minute: `3 March 2025, 00:23`."""
    return f"{datetime.fromisoformat(stamp):%-d %B %Y, %H:%M}"


def ago(stamp: str) -> str:
    """Format the elapsed time in the largest unit that fits: `3 months ago`."""
    minutes = int((NOW - datetime.fromisoformat(stamp)).total_seconds() // 60)
    for size, name in ((525_600, "year"), (43_200, "month"), (10_080, "week"), (1_440, "day"), (60, "hour")):
        if minutes >= size:
            return f"{minutes // size} {name}{'s' if minutes >= 2 * size else ''} ago"
    return "just now" if minutes < 2 else f"{minutes} minutes ago"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: `1 comment`, `2 comments`, `1 reply`, `2 replies`."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"
