"""Tests that exact match and F1 equal those of SQuAD."""

from __future__ import annotations

import pytest
from agentgym_envs.util.qa_metrics import exact_match, f1, normalise
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

ANSWERS = st.text() | st.lists(st.sampled_from(["the", "An", "cat", "Cat.", "sat", "-", "  "])).map(" ".join)


@pytest.mark.parametrize(
    ("answer", "aliases", "expected"),
    [
        ("The Beatles", ["Beatles"], True),
        ("beatles!", ["The  Beatles"], True),
        ("Beatles, the", ["The Beatles"], True),
        ("U.S.A.", ["USA"], True),
        ("anthem", ["them"], False),  # articles are removed only as whole words
        ("two cats", ["cats two"], False),
        ("Zürich", ["Zürich", "Zurich"], True),
        ("Zurich", ["Zürich"], False),
        ("4.1", ["41"], True),  # SQuAD's own rule, on which published results depend
        ("A", ["A"], True),
        ("the", ["A"], False),
        ("", ["A"], False),
        ("?!", ["The"], False),
    ],
)
def test_exact_match(answer: str, aliases: list[str], expected: bool) -> None:
    assert exact_match(answer, aliases) is expected


@pytest.mark.parametrize(
    ("answer", "aliases", "score"),
    [
        ("the black cat", ["black cat"], 1.0),
        ("a black cat sat", ["the cat"], 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("cat cat", ["cat"], 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("dog", ["cat", "black dog"], 2 / 3),
        ("", ["cat"], 0.0),
        ("cat", ["the"], 0.0),
        ("A", ["a"], 1.0),
    ],
)
def test_f1(answer: str, aliases: list[str], score: float) -> None:
    assert f1(answer, aliases) == pytest.approx(score)


@given(answer=ANSWERS, alias=ANSWERS)
def test_metrics_are_bounded_symmetric_and_consistent(answer: str, alias: str) -> None:
    assert normalise(normalise(answer)) == normalise(answer)
    assert 0.0 <= f1(answer, [alias]) <= 1.0
    assert f1(answer, [alias]) == pytest.approx(f1(alias, [answer]))
    assert exact_match(answer, [alias, answer])
    if exact_match(answer, [alias]) and answer.split():
        assert f1(answer, [alias]) == 1.0
