"""How figures are written on pages: filters of the templates, each from a value to text."""

from __future__ import annotations

import re
import time

from agentgym_envs import Reply
from markupsafe import Markup, escape

from agentgym_eval.reports.tables import p_value
from agentgym_eval.runs.settings import short_name

FILTERS = (
    "outcome",
    "share",
    "cost",
    "request",
    "points",
    "chance",
    "score",
    "count",
    "day",
    "ago",
    "world",
    "breakable",
)


def outcome(success: bool | None) -> Markup:
    """How an episode ended, coloured; None is one that broke."""
    kind, word = ("failed", "error") if success is None else ("yes", "success") if success else ("no", "failure")
    return Markup('<span class="outcome {}">{}</span>').format(kind, word)


def share(value: float | None) -> str:
    """0.5 as `50.0%`; a dash for None."""
    return "–" if value is None else f"{value:.1%}"


def cost(value: float | None) -> str:
    """Money, in whatever unit; None is unknown."""
    return "unknown" if value is None else f"{value:.4f}"


def request(reply: Reply) -> str:
    """What an endpoint told of a reply; empty where it is of none."""
    usage, told = reply.usage, list[str]()
    if usage is not None:
        cached = f" ({count(usage.cached_tokens)} cached)" if usage.cached_tokens is not None else ""
        told += [f"{count(usage.prompt_tokens)} prompt tokens{cached}"]
        told += [f"{count(usage.completion_tokens)} completion tokens"]
    told += [f"{reply.seconds:.2f} s"] if reply.seconds is not None else []
    told += [f"finish reason {reply.finish_reason}"] if reply.finish_reason else []
    return " · ".join(told)


def points(value: float) -> str:
    """A difference of shares: 0.5 as `+50.0 points`."""
    return f"{100 * value:+.1f} points"


def chance(p: float) -> str:
    """A p-value, as reports write it."""
    return p_value(p)


def score(value: float | None) -> str:
    """Three digits and no more zeros than needed; a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def count(value: int) -> str:
    """With a thin space between thousands."""
    return f"{value:,}".replace(",", "\u202f")


def day(seconds: float) -> str:
    """A moment, in the time of this machine."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def ago(seconds: float) -> str:
    """How long ago a moment is, roughly."""
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed / length:.0f} {unit} ago"
    return "just now"


def world(env: str) -> str:
    """A world's short name."""
    return short_name(env)


def breakable(name: str) -> Markup:
    """A name that may go on in the next line behind each slash, also where a number follows it."""
    return Markup(re.sub(r"/(?=\d)", "/<wbr>", str(escape(name))))
