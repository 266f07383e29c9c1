"""Template filters that format values as text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence

from agentgym_envs import Reply
from markupsafe import Markup, escape

from agentgym_eval.metrics.failure_causes import LABELS
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.reports.cells import p_value
from agentgym_eval.runs.settings import short_name
from agentgym_eval.viewer.index.run_columns import column_label


def outcome(success: bool | None) -> Markup:
    """Format an episode's success as a coloured label; None is an episode that ended with an error."""
    kind, label = ("failed", "error") if success is None else ("yes", "success") if success else ("no", "failure")
    return Markup('<span class="outcome {}">{}</span>').format(kind, label)


def cause(kind: str) -> str:
    """Format a kind of failure cause."""
    return LABELS.get(kind, kind)


def percent(value: float | None) -> str:
    """Format 0.5 as `50.0%`; None as a dash."""
    return "–" if value is None else f"{value:.1%}"


def cost(value: float | None) -> str:
    """Format an amount of money without a currency; None is unknown."""
    return "unknown" if value is None else f"{value:.4f}"


def reply_usage(reply: Reply, price: Sequence[float] = ()) -> str:
    """Format token counts, cost, latency and finish reason of an endpoint's reply; empty for other replies."""
    usage, parts = reply.usage, list[str]()
    if usage is not None:
        cached = f" ({count(usage.cached_tokens)} cached)" if usage.cached_tokens is not None else ""
        parts += [f"{count(usage.prompt_tokens)} prompt tokens{cached}"]
        parts += [f"{count(usage.completion_tokens)} completion tokens"]
        reply_cost = Usage.of(usage).cost(price)
        parts += [f"cost {cost(reply_cost)}"] if reply_cost is not None else []
    parts += [f"{reply.seconds:.2f} s"] if reply.seconds is not None else []
    parts += [f"finish reason {reply.finish_reason}"] if reply.finish_reason else []
    return " · ".join(parts)


def points(value: float) -> str:
    """Format a difference of shares in percentage points: 0.5 as `+50.0 points`."""
    return f"{100 * value:+.1f} points"


def score(value: float | None) -> str:
    """Format a number with three significant digits, and all digits before the point; None as a dash."""
    if value is None:
        return "–"
    return count(round(value)) if abs(value) >= 100 else f"{value:.3g}"


def setting(value: float | str | None) -> str:
    """Format the value of a setting as in JSON, but text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def cell(value: float | str | None) -> str:
    """Format a value of a chosen column: numbers with four significant digits, None as a dash."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else setting(value)


def size(value: int) -> str:
    """Format a number of bytes in one unit, with three digits."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{value / length:.3g} {unit}"
    return f"{value} B"


def count(value: int) -> str:
    """Format an integer with thin spaces between thousands."""
    return f"{value:,}".replace(",", "\u202f")


def date(seconds: float) -> str:
    """Format a Unix time in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def ago(seconds: float) -> str:
    """Format how long ago a Unix time is, in one unit."""
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed / length:.0f} {unit} ago"
    return "just now"


def breakable(name: str) -> Markup:
    """Allow line breaks after each slash of a name, including those before a digit."""
    return Markup(re.sub(r"/(?=\d)", "/<wbr>", str(escape(name))))


FILTERS: dict[str, Callable[..., str]] = {
    "outcome": outcome,
    "cause": cause,
    "percent": percent,
    "cost": cost,
    "reply_usage": reply_usage,
    "points": points,
    "p_value": p_value,
    "score": score,
    "count": count,
    "cell": cell,
    "size": size,
    "column_label": column_label,
    "date": date,
    "ago": ago,
    "short_name": short_name,
    "breakable": breakable,
}
"""The filters by their names in templates."""
