"""The sort orders of lists of posts."""

from __future__ import annotations

SORTS = {"hot": "Hot", "new": "New", "top": "Top", "comments": "Most commented", "controversial": "Controversial"}
"""Label of each value of `sort`."""
PERIODS = {"day": "Past 24 hours", "week": "Past week", "month": "Past month", "year": "Past year", "all": "All time"}
"""Label of each value of `period`, for the orders that take a period."""
SINCE = {
    "day": "2025-06-15 09:30:00",
    "week": "2025-06-09 09:30:00",
    "month": "2025-05-16 09:30:00",
    "year": "2024-06-16 09:30:00",
    "all": "",
}
"""Start of each period."""
ORDERS = {
    "hot": "julianday(p.created) + min(p.score, 60) * 0.1 DESC, p.id DESC",
    "new": "p.created DESC, p.id DESC",
    "top": "p.score DESC, p.id DESC",
    "comments": "p.comments DESC, p.id DESC",
    "controversial": "min(p.ups, p.downs) * 1.0 / max(p.ups, p.downs, 1) * (p.ups + p.downs) DESC, p.id DESC",
}
"""SQL of each order."""
