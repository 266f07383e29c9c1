"""Tests of `must_state` and `must_equal`: right answers in other notations, sentences and lists, and hedges."""

from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.evaluation.stated_answer import equals, states

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("phrases", "answer", "stated"),
    [
        (["5.00"], "$5.00", True),
        (["5.00"], "It costs $5.00.", True),
        (["5.00"], "5", True),
        (["5.00"], "15.00", False),
        (["5"], "-5", False),
        (["12"], "1,512", False),
        (["Ada Birch", "3"], "ada birch has 3", True),
        (["Ada Birch", "3"], "Ada Birch", False),
        (["Ada Birch", "Ada Crane"], "Ada Birch", False),
        (["art"], "Party", False),
        (["13,975"], "13975 people", True),
        (["313.3"], "313.30 km", True),
        (["2 h 11 min"], "about 2 hours and 11 minutes by car, 150 km", True),
        (["2 h 11 min"], "2h 11min, so 131 minutes", True),
        (["Daily 09:30–16:30"], "It is open daily from 09:30 to 16:30.", True),
        (["Daily 09:30–16:30"], "daily 9:30 – 16:30", True),
        (["Fenn P."], "Fenn P", True),
        (["01711 475564"], "Call 01711475564.", True),
        (["A x", "B x", "C x"], "1. A x\n2. B x\n3. C x", True),
        (["A x", "B x", "C x"], "1. A x 2. B x 3. C x", True),
        (["A x", "B x", "C x"], "A x ($812.00), B x ($700.10), C x ($650.00)", True),
        (["A x", "4,575"], "1) A x\n2) 4,575", True),
    ],
)
def test_right_answers_in_any_notation(phrases: list[str], answer: str, stated: bool) -> None:
    assert states(phrases, answer) is stated


@pytest.mark.parametrize(
    ("phrases", "answer"),
    [
        (["1721"], "1719 1720 1721 1722"),
        (["66.09"], "66.09 or 99.99"),
        (["66.09"], "66.09, 70.00, 80.00, 90.00"),
        (["2 h 11 min"], "2 h 11 min or 2 h 12 min"),
        (["2 h 11 min"], "2 h 11 min or 2 h 5 min"),  # the question's example of the form
        (["RP64422286"], "RP64422286, SX32834550"),
        (["WAN-07481-0310"], "WAN-07481-0310 and WAN-07481-0311"),
        (["a@post.example"], "a@post.example b@post.example"),
        (["01711 475564"], "01711 475564 or 01711 475565"),
        (["Daily 09:30–16:30"], "Daily 09:30–16:30 or Daily 10:00–17:00"),
        (["5"], "one of " + " ".join(map(str, range(60)))),
        (["5"], "5. " * 3 + "6."),
        (["Bramble"], "Bramble Sandpiper Halcyon Fenwick Timber Osprey Hearth Wicker Rook Sable Tallow Wander Vesper"),
        (["Bramble"], ""),
    ],
)
def test_hedges_are_refused(phrases: list[str], answer: str) -> None:
    assert not states(phrases, answer, question="How long? Answer in the form 2 h 5 min.")


@pytest.mark.parametrize(
    ("required", "terms", "answer"),
    [
        ("313.3", ["151.2", "162.1"], "The total distance is 313.3 km (151.2 km + 162.1 km)."),
        ("313.3", ["151.2", "162.1"], "162.1 km and 151.2 km, so 313.3 km"),
        ("66.09", ["99.00", "32.91"], "99.00 - 32.91 = $66.09"),
        ("66.09", ["99.00", "32.91"], "66.09 (99 -32.91)"),
        ("100", ["50", "50"], "50 + 50 = 100"),
        ("10", ["5", "5", "0"], "5 + 5 + 0 = 10"),
        ("15", ["1", "2", "12"], "1 + 2 + 12 = 15"),  # 2 is in the question
        ("641.25", ["103.53", "28.40", "199.92", "115.65", "193.75"], "103.53+28.40+199.92+115.65+193.75 = 641.25"),
    ],
)
def test_terms_of_a_required_sum_or_difference_may_be_stated(required: str, terms: list[str], answer: str) -> None:
    assert states([required], answer, terms=terms, question="How much are the 2?")
    assert not states([required], answer, question="How much are the 2?")


@pytest.mark.parametrize(
    "answer",
    [
        "313.3 (151.2)",
        "313.3 or 151.2 or 162.1 or 10.9",
        "313.3 or 100.0 or 213.3",
        "313.3 or 400.0 or 86.7",
        "311.1 312.2 313.3 314.4 1251",
    ],
)
def test_other_numbers_that_add_up_are_refused(answer: str) -> None:
    assert not states(["313.3"], answer, terms=["151.2", "162.1"])
    assert not states(["313.3"], answer)


def test_other_candidates_are_refused() -> None:
    assert states(["Elias Pike"], "Elias Pike", rivals=["Greta Hurst", "Elias Pike"])
    assert not states(["Elias Pike"], "Elias Pike or greta hurst", rivals=["Greta Hurst"])
    assert not states(["Elias Pike"], "Greta-Hurst, Elias Pike", rivals=["Greta Hurst"])


def test_longest_candidate_counts() -> None:
    assert not states(["Wicker Chair"], "Wicker Chair Deluxe", rivals=["Wicker Chair Deluxe"])
    assert states(["Wicker Chair Deluxe"], "Wicker Chair Deluxe", rivals=["Wicker Chair"])
    assert not states(["Wicker Chair Deluxe"], "Wicker Chair Deluxe, Wicker Chair", rivals=["Wicker Chair"])


def test_words_and_values_of_the_question_are_free() -> None:
    question = "What is the most expensive product of the brand Wicker at Larkspur on May 1, and what does it cost?"
    answer = (
        "The most expensive product of the brand Wicker at Larkspur on May 1 is the Elm Boots, which costs $161.95."
    )
    assert states(["Elm Boots", "161.95"], answer, question=question)
    assert not states(["Elm Boots", "161.95"], answer + " Or 162.", question=question)


def test_long_answers_are_refused() -> None:
    assert states(["Bramble"], "Bramble " + "word " * 11)
    assert not states(["Bramble"], "Bramble " + "word " * 12)


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("90", "90.", True),
        ("9481", "9,481", True),
        ("90", "90 orders", False),
        ("90", "90 91", False),
        ("17 Jun 2025", "June 17, 2025", True),
        ("Half a Bridge", '"half a bridge"', True),
        ("90", "", False),
    ],
)
def test_must_equal(reference: str, answer: str, equal: bool) -> None:
    assert equals(reference, answer) is equal
