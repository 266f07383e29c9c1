"""The eval type `url_match`: compares the URL at which the agent stopped with a reference URL.

`GOLD in PRED` is WebArena's rule: host and path of one of the references (joined by ` |OR| `) must occur in host and
path of the agent's URL, and each query key of the references must have, in the agent's query, one of the values that
the references give it. `EXACT`, used by variants, requires the same URL up to a trailing slash. `SAME PATH`, for our
own tasks, is WebArena's rule except that host and path must be equal: `/product/1` doesn't match `/product/17`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from agentgym_envs.worlds.webarena.evaluation.fields import check_known

_RULES = ("GOLD in PRED", "EXACT", "SAME PATH")


def score(evaluation: Mapping[str, Any], url: str) -> float:
    """Return 1.0 if `url`, that of the active tab, matches the task's `eval`, else 0.0."""
    references = [reference.strip().rstrip("/") for reference in evaluation["reference_url"].split(" |OR| ")]
    url = url.rstrip("/")
    if evaluation["url_note"] == "EXACT":
        return float(url in references)
    location, query = _parsed(url)
    expected = [_parsed(reference) for reference in references]
    values: dict[str, set[str]] = {}
    for _, reference_query in expected:
        for key, allowed in reference_query.items():
            values.setdefault(key, set()).update(allowed)
    same = evaluation["url_note"] == "SAME PATH"
    if same:
        location, expected = unquote(location), [(unquote(reference), parameters) for reference, parameters in expected]
    located = any(reference == location if same else reference in location for reference, _ in expected)
    return float(located and all(allowed & set(query.get(key, ())) for key, allowed in values.items()))


def _parsed(url: str) -> tuple[str, dict[str, list[str]]]:
    """Split a URL into host with path, and query."""
    parts = urlsplit(url)
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


def check(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and normalize the reference URL of an `eval` and its rule. See `parts.Part`."""
    reference = evaluation.get("reference_url")
    if not isinstance(reference, str) or not reference.strip():
        raise ValueError(f"`eval.reference_url` is {reference!r}; it must be a URL.")
    rule = evaluation.get("url_note") or _RULES[0]
    check_known([str(rule)], _RULES, "eval.url_note")
    return {"reference_url": reference, "url_note": rule}


def count(evaluation: Mapping[str, Any]) -> int:
    """Return 1: there is one URL."""
    return 1
