"""The eval type `url_match`: compares the URL at which the agent stopped with a reference URL.

`GOLD in PRED` is WebArena's rule: host and path of one of the references (joined by ` |OR| `) must occur in host and
path of the agent's URL, and each query key of the references must have, in the agent's query, one of the values that
the references give it. `EXACT`, used by variants, requires the same URL up to a trailing slash. `SAME PATH`, for our
own tasks, compares the canonical address that a page of the embedded sites names; a page without one doesn't match. The
address has what the page has read from the query, so that a page narrowed by further fields doesn't match. Host and
path must be equal: `/product/1` doesn't match `/product/17`. Query values may be written differently if the site reads
them alike: numbers (`to=30.00`), dates, fields in any case (`url_any_case`), and fields that are left out because the
site has a default for them (`url_defaults`). The order of a list is free unless a reference names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from agentgym_envs.worlds.webarena.evaluation.fields import check_known, string_list
from agentgym_envs.worlds.webarena.sites.dates import iso_day

_RULES = ("GOLD in PRED", "EXACT", "SAME PATH")
CANONICAL_SCRIPT = "() => document.querySelector('head > link[rel=canonical]')?.href ?? ''"
"""JavaScript that returns the canonical address that a page names, or an empty text."""
_ORDERING = ("sort", "dir")
_DECIMAL = re.compile(r"\d+\.\d*")


def reads_canonical(evaluation: Mapping[str, Any]) -> bool:
    """Whether the task's rule compares the page's canonical address; WebArena's rules never do."""
    return evaluation.get("url_note") == "SAME PATH"


def score(evaluation: Mapping[str, Any], url: str, canonical: str = "") -> float:
    """Return 1.0 if the page of the active tab matches the task's `eval`, else 0.0.

    Args:
        evaluation: The task's `eval`.
        url: The page's URL.
        canonical: The canonical address that the page names, if any.
    """
    same_path = reads_canonical(evaluation)
    url = canonical if same_path else url
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
    if same_path:
        if not query.keys() <= {*values, *_ORDERING}:
            return 0.0  # narrowed by what the task doesn't ask for
        return float(
            unquote(location) in {unquote(reference) for reference, _ in expected}
            and all(_alike(key, allowed, query.get(key, ()), evaluation) for key, allowed in values.items())
        )
    located = any(reference in location for reference, _ in expected)
    return float(located and all(allowed & set(query.get(key, ())) for key, allowed in values.items()))


def _alike(key: str, allowed: Collection[str], given: Collection[str], evaluation: Mapping[str, Any]) -> bool:
    """Whether a site reads one of the values `given` to the query field `key` like an allowed one."""
    default: str | None = evaluation.get("url_defaults", {}).get(key)
    given = given or ([] if default is None else [default])
    any_case = key in evaluation.get("url_any_case", ())
    return not {_plain(value, any_case) for value in allowed}.isdisjoint(_plain(value, any_case) for value in given)


def _plain(value: str, any_case: bool) -> str:
    """Normalize a value of a query: a decimal number has no trailing zeros, and a date is written as YYYY-MM-DD."""
    if (day := iso_day(value)) is not None:
        return day
    if _DECIMAL.fullmatch(value):
        return value.rstrip("0").rstrip(".")
    return " ".join(value.casefold().split()) if any_case else value


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
    checked: dict[str, Any] = {"reference_url": reference, "url_note": rule}
    if "url_any_case" in evaluation:
        checked["url_any_case"] = string_list(evaluation["url_any_case"], "eval.url_any_case")
    if "url_defaults" in evaluation:
        defaults = evaluation["url_defaults"]
        if not isinstance(defaults, Mapping):
            raise ValueError(f"`eval.url_defaults` is {defaults!r}; it must be an object with values of query fields.")
        items = cast("Mapping[object, object]", defaults).items()
        checked["url_defaults"] = {str(key): str(value) for key, value in items}
    return checked


def count(evaluation: Mapping[str, Any]) -> int:
    """Return 1: there is one URL."""
    return 1
