"""Dates as people type them into the sites' forms. Pure functions; imports no web framework."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from agentgym_envs.worlds.webarena.sites.directory import NOW

_FORMS = ("%Y-%m-%d", "%m/%d/%Y", "%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y")
_RELATIVE = {"today": 0, "yesterday": 1}


def iso_day(text: str) -> str | None:
    """Return a date as YYYY-MM-DD, or None if the text isn't one.

    Args:
        text: Such as `2025-03-31`, `3/31/2025` (month first, as in the United States), `March 31, 2025`, `31 Mar 2025`,
            `today` or `yesterday`.
    """
    plain = " ".join(text.replace(",", " ").lower().split())
    if not plain.isascii():
        return None
    if plain in _RELATIVE:
        return (NOW.date() - timedelta(days=_RELATIVE[plain])).isoformat()
    for form in _FORMS:
        with suppress(ValueError):
            return datetime.strptime(plain, form).date().isoformat()
    return None
