"""Tests of the evaluation `string_match`: exact, included and fuzzy answers, and our own matches."""

from __future__ import annotations

import asyncio
import string
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.evaluation import string_match
from agentgym_envs.worlds.webarena.evaluation.judge import Judge
from hypothesis import given
from hypothesis import strategies as st


def score(references: dict[str, Any], answer: str, judge: Judge | None = None) -> float:
    task = {
        "task_id": 1,
        "intent": "How many?",
        "eval": {"reference_answers": references, "string_note": "no such thing"},
    }
    return asyncio.run(string_match.score(task, answer, judge))


@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("Quest Lumaflex™ Band", " quest lumaflex™ band\n", 1),
        ("yes", "'Yes'", 1),
        ("yes", '"yes"', 1),
        ("yes", '"yes', 0),
        ("yes", "yes.", 0),
        ("yes", "", 0),
        ("'", "", 1),
    ],
)
def test_exact_match(reference: str, answer: str, expected: float) -> None:
    assert score({"exact_match": reference}, answer) == expected


@pytest.mark.parametrize(
    ("phrases", "answer", "expected"),
    [
        (["0"], "There are 10 of them.", 0),
        (["0"], "0", 1),
        (["0"], "There are 0 of them.", 1),
        (["0"], "The answer is 0.", 1),
        (["0"], "(0)", 1),
        (["0"], "1,000 or 0.5", 0),
        (["5"], "$5", 1),
        (["5"], "5%", 1),
        (["5"], "5-star", 0),
        (["5"], "it is -5 degrees", 0),
        (["5"], "5's", 1),
        (["5"], "[5]; **5**", 1),
        (["5"], "v.5, 5.a, .5, 5:30", 0),
        (["5"], "a:5, b", 0),
        (["0", "1"], "10", 1),  # several phrases match anywhere
        (["81"], "$81.00", 1),
        (["yes"], "yesterday", 1),
        (["Tea", "Milk"], "milk and TEA", 1),
        (["Tea", "Milk"], "tea", 0),
        (["65 |OR| 3"], "it takes 65 minutes", 1),
        (["6 |OR| 3"], "65", 0),
        (["é"], "café", 0),
    ],
)
def test_must_include(phrases: list[str], answer: str, expected: float) -> None:
    assert score({"must_include": phrases}, answer) == expected


class FakeJudge(Judge):
    """A judge that records its questions and accepts answers that contain `yes`."""

    questions: list[tuple[str, str, str, str]] = []  # noqa: RUF012 - emptied by the fixture

    async def correct(self, question: str, reference: str, answer: str) -> bool:
        self.questions.append(("correct", question, reference, answer))
        return "yes" in answer

    async def same_reason(self, task: str, reason: str, report: str) -> bool:
        self.questions.append(("same_reason", task, reason, report))
        return "yes" in report


@pytest.fixture
def judge() -> FakeJudge:
    FakeJudge.questions.clear()
    return FakeJudge("http://nowhere/v1", "none")


def test_fuzzy_match_asks_the_judge(judge: FakeJudge) -> None:
    assert score({"fuzzy_match": ["two", "three"]}, "Oh yes", judge) == 1
    assert judge.questions == [("correct", "How many?", "two", "oh yes"), ("correct", "How many?", "three", "oh yes")]
    assert score({"fuzzy_match": ["two", "three"]}, "no", judge) == 0
    assert len(judge.questions) == 3


def test_obvious_answers_do_not_need_the_judge(judge: FakeJudge) -> None:
    assert score({"fuzzy_match": ["Two"]}, "two", judge) == 1
    assert score({"fuzzy_match": ["Two"]}, " ", judge) == 0
    assert score({"fuzzy_match": "N/A"}, "n/a", judge) == 1
    assert score({"must_include": ["x"], "fuzzy_match": ["two"]}, "yes", judge) == 0
    assert judge.questions == []


def test_unachievable_task_accepts_the_reason(judge: FakeJudge) -> None:
    assert score({"fuzzy_match": "N/A"}, "yes, there is none", judge) == 1
    assert score({"fuzzy_match": "N/A"}, "42", judge) == 0
    assert judge.questions[0] == ("same_reason", "How many?", "no such thing", "yes, there is none")


def test_fuzzy_match_without_a_judge_raises() -> None:
    with pytest.raises(ValueError, match=r"Task 1 .*judge=Judge"):
        score({"fuzzy_match": ["two"]}, "two")


@given(st.text(alphabet=string.printable, max_size=30))
def test_matches_ignore_quotes_and_case(text: str) -> None:
    assert score({"exact_match": text}, f' "{text.swapcase()}" ') == 1
    assert string_match.included(text.replace("|OR|", ""), f"a{string_match.normalised(text.replace('|OR|', ''))}b")


def test_must_state_uses_rivals_and_the_intent() -> None:
    references = {"must_state": ["Ada Birch"], "must_not_state": ["Ben Crane"]}
    assert score(references, "Ada Birch") == 1
    assert score(references, "Ada Birch, " + "many " * 30) == 1  # a word of the intent
    assert score(references, "Ada Birch or Ben Crane") == 0


def test_must_state_uses_terms() -> None:
    assert score({"must_state": ["3"], "terms": ["1", "2"]}, "1 + 2 = 3") == 1
    assert score({"must_state": ["3"]}, "1 + 2 = 3") == 0


def test_must_equal() -> None:
    assert score({"must_equal": "1,200"}, "1200.") == 1
    assert score({"must_equal": "1,200"}, "1200 or so") == 0


@pytest.mark.parametrize(
    ("references", "problem"),
    [
        ({"must_state": ["-"]}, "must have a word or a number"),
        ({"must_equal": "…"}, "must have a word or a number"),
        ({"must_equal": ["a", "b"]}, "must be one string"),
        ({"must_not_state": ["a"]}, "must_not_state without must_state"),
        ({"terms": ["1", "2"]}, "terms without must_state"),
        ({"must_state": ["3"], "terms": ["1", "two"]}, "each term must be a number"),
    ],
)
def test_invalid_references_of_own_matches(references: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        string_match.check({"reference_answers": references})


def test_rivals_and_terms_are_no_checks() -> None:
    references = {"must_state": ["a", "3"], "must_not_state": ["c"], "terms": ["1", "2"]}
    assert string_match.count({"reference_answers": references}) == 2
