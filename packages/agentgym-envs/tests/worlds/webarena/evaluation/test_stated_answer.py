"""Tests of `must_state` and `must_equal`: right answers in other notations, sentences and lists, and hedges."""

from __future__ import annotations

import itertools

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


# Units.

DRIVE = "I drive from A to B and from there to C. How many kilometres is that in all, adding up the two distances?"
PRICE = "What does the Thistle Cove Griddle cost in diameter 24 cm?"
PEOPLE = "How many people live in the town?"
YEAR = "Who founded the firm, and in which year?"


@pytest.mark.parametrize(
    ("question", "required", "answers"),
    [
        (DRIVE, "313.3", ["313.3", "313.3 km", "313.3km", "313.30 kilometers", "Distance in km: 313.3", "313.3 (km)"]),
        (PRICE, "36.00", ["36", "$36", "36 dollars", "36 USD", "US$36.00", "It costs $36.00 in diameter 24 cm."]),
        (PRICE, "24.00", ["$24", "The one of 24 cm costs $24", "24"]),
        (PEOPLE, "3,722", ["3,722", "3,722 people", "3722 inhabitants"]),
        (YEAR, "1929", ["1929", "Year: 1929", "1929 (year)"]),
        ("How heavy is it?", "5", ["5", "5 kg", "5 pounds"]),
        ("What is the width?", "5", ["5 cm", "5 inches"]),
        ("What is the total of the order?", "5", ["$5", "The total of the month: 5"]),
        ("How much is it in euros?", "5", ["€5", "5 euros", "5"]),
    ],
)
def test_units_of_the_question_are_right(question: str, required: str, answers: list[str]) -> None:
    assert [answer for answer in answers if not states([required], answer, question=question)] == []


@pytest.mark.parametrize(
    ("question", "required", "answers"),
    [
        (DRIVE, "313.3", ["313.3 minutes", "313.3 miles", "$313.3", "313.3 m", "313.3 %", "313.3 (miles)", "€ 313.3"]),
        (DRIVE, "313.3", ["Distance in miles: 313.3", "313.3 km/h", "313.3k", "$313.3 km", "313.3 kg"]),
        (PRICE, "36.00", ["36 km", "36 %", "36 cm", "€36", "36 euros", "£36", "-$36", "36k", "36 cents", "36 million"]),
        (PRICE, "24.00", ["24 cm", "24 km"]),
        (PEOPLE, "3,722", ["3,722 km", "$3,722", "3,722%", "3,722 thousand"]),
        (YEAR, "1929", ["$1929", "1929 km"]),
        ("How heavy is it?", "5", ["5 km", "$5", "5 k"]),
        ("How much is it in euros?", "5", ["$5", "5 dollars"]),
        ("", "5", ["5k", "5 million"]),
    ],
)
def test_other_units_are_refused(question: str, required: str, answers: list[str]) -> None:
    assert [answer for answer in answers if states([required], answer, question=question)] == []


def test_units_of_the_reference_and_of_terms() -> None:
    assert states(["$5"], "5", question="How far is it?")
    assert states(["$5"], "5 dollars", question="How far is it?")
    assert not states(["$5"], "5 km", question="How far is it?")
    assert states(["313.3"], "143.3 km + 170 km = 313.3 km", terms=["143.3", "170.0"], question=DRIVE)
    assert not states(["313.3"], "143.3 miles + 170 miles = 313.3", terms=["143.3", "170.0"], question=DRIVE)


def test_must_equal_knows_units() -> None:
    assert not equals("90", "$90", question="How many orders were placed? Answer with the number alone.")
    assert not equals("90", "90%", question="How many orders were placed? Answer with the number alone.")
    assert equals("66.09", "$66.09", question="What does it cost?")


# Candidates of the question.

SMALLEST = "Which of the towns Hollowell, Linden and Swanmere has the fewest inhabitants, and how many are they?"
NEARER = (
    "I want to visit the firm behind Bramble or the one behind Sandpiper, whichever is the shorter drive in time. Which"
    " brand's is it, and how long does the drive take (2 h 5 min)?"
)


@pytest.mark.parametrize(
    "answer",
    [
        "Of Hollowell, Linden and Swanmere, Hollowell has the fewest inhabitants: 4,575",
        "Of the three towns Swanmere, Linden, and Hollowell, it is Hollowell (4575)",
        "Hollowell has the fewest inhabitants (4,575) of Hollowell, Linden and Swanmere.",
        "Hollowell has fewer inhabitants than Linden and Swanmere: 4,575",
        "Hollowell is smaller than either Linden or Swanmere, with 4,575",
        "Hollowell is smaller than Linden. It has 4,575 inhabitants.",
    ],
)
def test_candidates_of_the_question_may_be_repeated(answer: str) -> None:
    assert states(["Hollowell", "4,575"], answer, rivals=["Linden", "Swanmere"], question=SMALLEST)
    assert not states(["Linden", "4,575"], answer, rivals=["Hollowell", "Swanmere"], question=SMALLEST)


@pytest.mark.parametrize(
    "answer",
    [
        "Bramble is nearer than Sandpiper: 1 h 52 min",
        "Bramble's head office is closer than Sandpiper's (1 h 52 min)",
        "Between Bramble and Sandpiper, Bramble is the shorter drive: 1 h 52 min",
        "The drive to Bramble is shorter than to Sandpiper: 112 minutes",
    ],
)
def test_comparisons_may_name_what_is_compared(answer: str) -> None:
    assert states(["Bramble", "1 h 52 min"], answer, rivals=["Sandpiper"], question=NEARER)
    assert not states(["Sandpiper", "1 h 52 min"], answer, rivals=["Bramble"], question=NEARER)
    assert not states(["Bramble", "1 h 52 min"], answer, rivals=["Sandpiper"])  # not in the question


@pytest.mark.parametrize(
    "answer",
    [
        "Hollowell or Linden",
        "Hollowell, Linden",
        "Hollowell or Linden's",
        "Of Hollowell, Linden and Swanmere",
        "Of Hollowell, Linden and Swanmere, Linden",
        "Of Hollowell, Linden and Swanmere, Linden or Hollowell",
        "Of Hollowell, Linden and Swanmere, Hollowell, then Swanmere",
        "Of Hollowell, Linden and Swanmere, of Hollowell, Linden and Swanmere",
        "Of Hollowell and Linden, Hollowell",
        "Of Linden and Swanmere, Hollowell",
        "Of Linden, Linden and Swanmere, Hollowell",
        "Hollowell is larger than Linden",
        "Hollowell is not smaller than Linden",
        "Linden is smaller than Hollowell",
        "Hollowell is smaller than Linden or Swanmere is smaller than Linden",
        "Hollowell is smaller than Linden, Linden is smaller than Hollowell",
        "Hollowell is smaller than Linden, Swanmere too",
        "Hollowell is smaller than Linden or Swanmere is",
        "Smaller than Linden, smaller than Hollowell",
        "Either Hollowell is smaller than Linden, or it is the other way round",
        "Hollowell, if it is smaller than Linden",
        "Hollowell is smaller than Linden? Swanmere",
    ],
)
def test_hedges_among_candidates_of_the_question_are_refused(answer: str) -> None:
    for ending in (": 4,575", ", 4,575 inhabitants", " (4,575)"):
        assert not states(["Hollowell", "4,575"], answer + ending, rivals=["Linden", "Swanmere"], question=SMALLEST)


def test_no_answer_is_right_for_two_candidates() -> None:
    towns = ["Hollowell", "Linden", "Swanmere"]
    parts = [*towns, "smaller than", "of Hollowell, Linden and Swanmere", "and", ",", "or", "not"]
    for length, every in ((1, 1), (2, 1), (3, 1), (4, 7)):
        for chosen in itertools.islice(itertools.product(parts, repeat=length), 0, None, every):
            answer = f"{' '.join(chosen)}: 4,575"
            right = [
                town
                for town in towns
                if states([town, "4,575"], answer, rivals=[each for each in towns if each != town], question=SMALLEST)
            ]
            assert len(right) <= 1, answer


# What an answer may add.


def test_year_of_a_census_is_no_second_number() -> None:
    assert states(["3,722"], "3,722 (2021 census)", question=PEOPLE)
    assert states(["3,722"], "3,722 at the census of 2021", question=PEOPLE)
    for answer in ("3,722 (2021)", "3,722 or 2021", "3,722 (4575 census)", "3,722, 2021 census or 4,575"):
        assert not states(["3,722"], answer, question=PEOPLE)
    assert not states(["2,021"], "3,722 (2021 census)", question=PEOPLE)
    assert states(["2021"], "the 2021 census", question="In which year was the census?")


def test_number_of_the_terms_is_no_second_number() -> None:
    question = "Add up the totals of the orders I placed in November 2024."
    terms = ["60.70", "129.95"]
    assert states(["190.65"], "I placed 2 orders, which add up to $190.65", terms=terms, question=question)
    assert states(["190.65"], "2 orders: $60.70 + $129.95 = $190.65", terms=terms, question=question)
    for answer in ("3 orders, $190.65", "190.65 or 2", "2 parcels, $190.65", "2 orders, $190.65 or $190.66"):
        assert not states(["190.65"], answer, terms=terms, question=question)
    assert not states(["2"], "2 orders, which add up to $190.65", terms=terms, question=question)
