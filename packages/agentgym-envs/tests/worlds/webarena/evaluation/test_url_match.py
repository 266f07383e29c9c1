from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.evaluation import url_match

pytestmark = pytest.mark.quick


def score(reference: str, url: str, rule: str = "GOLD in PRED") -> float:
    return url_match.score({"reference_url": reference, "url_note": rule}, url)


@pytest.mark.parametrize(
    ("reference", "url", "worth"),
    [
        ("http://a/x", "http://a/x", 1),
        ("http://a/x/", "http://a/x", 1),
        ("http://a/x", "https://a/x/y?z=1#w", 1),  # the scheme doesn't count, and more path is as good
        ("http://a/x/y", "http://a/x", 0),
        ("http://a/x", "http://b/x", 0),
        ("http://a:1/x", "http://a:2/x", 0),
        ("http://a/x?q=1", "http://a/x?p=2&q=1", 1),
        ("http://a/x?q=1", "http://a/x?q=2", 0),
        ("http://a/x?q=1", "http://a/x", 0),
        ("http://a/x?q=1&q=2", "http://a/x?q=2", 1),
        ("http://a/x |OR| http://a/y", "http://a/y", 1),
        ("http://a/x |OR| http://a/y", "http://a/z", 0),
        ("http://a/x?q=1 |OR| http://a/y?q=2", "http://a/x?q=2", 1),  # queries are pooled, as in WebArena
        ("http://a/x", "about:blank", 0),
        ("http://a/x", "", 0),
    ],
)
def test_gold_in_pred(reference: str, url: str, worth: float) -> None:
    assert score(reference, url) == worth


def test_exactly() -> None:
    assert score("http://a/x", "http://a/x/", "EXACT") == 1
    assert score("http://a/x", "http://a/x/y", "EXACT") == 0
    assert score("http://a/x |OR| http://a/y", "http://a/y", "EXACT") == 1


@pytest.mark.parametrize(
    ("url", "worth"),
    [
        ("http://a/x/1?q=2", 1),
        ("http://a/x/1/?p=3&q=2#w", 1),
        ("http://a/x/17?q=2", 0),
        ("http://a/x/1/y?q=2", 0),
        ("http://b/a/x/1?q=2", 0),
        ("http://b.a/x/1?q=2", 0),
        ("http://a/x/1", 0),
    ],
)
def test_the_same_path(url: str, worth: float) -> None:
    assert score("http://a/x/1?q=2", url, "SAME PATH") == worth


def test_the_rule_is_webarenas_where_none_is_said() -> None:
    assert url_match.check({"reference_url": "http://a", "url_note": None})["url_note"] == "GOLD in PRED"
