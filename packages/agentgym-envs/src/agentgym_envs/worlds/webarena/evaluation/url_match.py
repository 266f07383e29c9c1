"""Where the agent stopped, against a reference URL.

`GOLD in PRED` is WebArena's rule: host and path of one of the references (joined by ` |OR| `) must occur in host and
path of the agent's URL, and each query key of the references must have, in the agent's query, one of the values that
the references give it. `EXACT`, which variants use, wants the same URL but for a slash at its end. `SAME PATH`, for our
own tasks, is WebArena's rule but for host and path, which must be the same: `/product/1` is not `/product/17`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from agentgym_envs.worlds.webarena.evaluation.fields import known

_RULES = ("GOLD in PRED", "EXACT", "SAME PATH")


def score(judged: Mapping[str, Any], url: str) -> float:
    """1.0 when `url`, that of the tab in front, is what the task's `eval` wants, else 0.0."""
    references = [reference.strip().rstrip("/") for reference in judged["reference_url"].split(" |OR| ")]
    url = url.rstrip("/")
    if judged["url_note"] == "EXACT":
        return float(url in references)
    place, query = _parsed(url)
    wanted = [_parsed(reference) for reference in references]
    values: dict[str, set[str]] = {}
    for _, reference_query in wanted:
        for key, some in reference_query.items():
            values.setdefault(key, set()).update(some)
    same = judged["url_note"] == "SAME PATH"
    if same:
        place, wanted = unquote(place), [(unquote(reference), some) for reference, some in wanted]
    there = any(reference == place if same else reference in place for reference, _ in wanted)
    return float(there and all(some & set(query.get(key, ())) for key, some in values.items()))


def _parsed(url: str) -> tuple[str, dict[str, list[str]]]:
    """Host with path, and query."""
    parts = urlsplit(url)
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


def check(judged: Mapping[str, Any]) -> dict[str, Any]:
    """The reference URL of an `eval` and its rule, put in order. See `parts.Part`."""
    reference = judged.get("reference_url")
    if not isinstance(reference, str) or not reference.strip():
        raise ValueError(f"`eval.reference_url` is {reference!r}; it must be a URL.")
    rule = judged.get("url_note") or _RULES[0]
    known([str(rule)], _RULES, "eval.url_note")
    return {"reference_url": reference, "url_note": rule}


def count(judged: Mapping[str, Any]) -> int:
    """One: the URL."""
    return 1
