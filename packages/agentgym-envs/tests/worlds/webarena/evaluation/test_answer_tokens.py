"""Tests of the normal form of answers: notations of a value are one token, different values aren't."""

from __future__ import annotations

from datetime import date

import pytest
from agentgym_envs.worlds.webarena.evaluation.answer_tokens import WORD, Token, tokens
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("kind", "normal", "notations"),
    [
        ("number", "1234.5", ["1,234.50", "1234.5", "$1,234.50", "1234.500", "**1,234.5**", "(1,234.50)"]),
        ("number", "5", ["5", "5.00", "$5", "5.", "“5”", "'5'", "+5"]),
        ("number", "0", ["0", "0.00", "$0.00"]),
        ("number", "-5", ["-5", "−5", "(-5)"]),
        ("number", "0.5", [".5", "0.5", "0.50"]),
        (
            "duration",
            "131",
            ["2 h 11 min", "2h 11min", "2 hours 11 minutes", "2 hrs and 11 mins", "131 min", "2h11m", "2h11"],
        ),
        (
            "duration",
            "2809",
            ["46 h 49 min", "46h49", "1 day 22 h 49 min", "1 day, 22 hours and 49 minutes", "1d 22h49"],
        ),
        ("duration", "60", ["1 h", "1 hour", "60 minutes", "1 hour, 0 minutes", "1.0 hours"]),
        ("time", "09:30", ["9:30", "09:30", "9:30 am", "9:30 a.m."]),
        ("time", "21:05", ["21:05", "9:05 pm", "9:05pm", "9.05 p.m."]),
        ("time", "14:00", ["14:00", "2 pm", "2pm", "2 p.m."]),
        ("time", "00:00", ["0:00", "00:00", "12:00 am"]),
        (
            "date",
            "2024-03-05",
            [
                "5 Mar 2024",
                "5 March 2024",
                "March 5, 2024",
                "2024-03-05",
                "5th of March 2024",
                "5.3.2024",
                "05.03.2024",
                "2024/03/05",
            ],
        ),
        ("date", "2024-06-16", ["16 Jun 2024", "16.06.2024", "16/06/2024", "16-06-2024", "06/16/2024"]),
        ("phone", "01711475564", ["01711 475564", "01711475564", "01711-475564", "01711 475 564"]),
        ("phone", "01221639289", ["(01221) 639289", "+44 1221 639289", "+44 (0)1221 639289", "0044 1221 639289"]),
        ("day", "tue", ["Tue", "Tuesday", "tues"]),
        ("code aa99-9", "wn12-3", ["WN12-3", "wn12-3.", "[WN12-3]"]),
        ("code aa999aa", "al109dw", ["AL10 9DW", "al109dw", "AL10\u00a09DW"]),
        ("address", "a.b@post.example", ["a.b@post.example", "<A.B@post.example>", "a.b@post.example."]),
        (WORD, "the_anchor", ["the_anchor", "u/the_anchor", "/u/the_anchor", "@the_anchor"]),
        (WORD, "café", ["Café", "CAFÉ!", "cafe\u0301"]),
    ],
)
def test_notations_of_one_value(kind: str, normal: str, notations: list[str]) -> None:
    assert {notation: tokens(notation) for notation in notations} == dict.fromkeys(notations, (Token(kind, normal),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Daily 09:30–16:30", "every day from 9:30 to 16:30"),
        ("Mon–Fri 09:00–17:30, Sat 09:00–12:30", "monday to friday 9:00 - 17:30; saturday 9:00 - 12:30"),
        ("Daily 09:30–16:30", "Daily 9.30-16.30"),
        ("Daily 09:30–16:30", "9.30 to 16.30 daily"),
        ("Daily 09:30–16:30", "daily, from 9.30 am to 4.30 pm"),
        ("Wed–Mon 12:00–14:30, 18:00–22:30", "Wed-Mon 12.00-14.30, 18.00-22.30"),
        ("The Regal, Daily 14:00–23:30", "The Regal: 14:00–23:30 daily"),
        ("The Regal, Daily 14:00–23:30", "The Regal, daily from 2 pm to 11:30 pm"),
        ("The Regal, Daily 14:00–23:30", "The Regal, 2pm-11.30pm every day"),
        ("Holt & Sons", "Holt and Sons"),
        ("Founders' Medal", "Founders’ medal"),
        ("540 g", "540g"),
        ("A, B and C", "a b AND c"),
    ],
)
def test_notations_of_a_phrase(one: str, other: str) -> None:
    assert tokens(one) == tokens(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "-5"),
        ("5", "50"),
        ("1.5", "15"),
        ("1,512", "12"),
        ("1,2", "12"),
        ("2 h 11 min", "2 h 1 min"),
        ("2 h 11 min", "2:11"),
        ("131", "131 min"),
        ("09:30", "9.30"),
        ("9:30 am", "9:30 pm"),
        ("5 Mar 2024", "3 May 2024"),
        ("01711 475564", "1711 475564"),
        ("01711 475564", "+49 1711 475564"),
        ("01711 475564", "+44 1711 475565"),
        ("01711 475564", "+49 01711 475564"),
        ("46 h 49 min", "46.49"),
        ("46 h 49 min", "46h48"),
        ("46 h 49 min", "1 day 46 h 49 min"),
        ("46 h 49 min", "46:49"),
        ("Daily 09:30–16:30", "9.30-16.30"),
        ("9.30-16.30", "09:30–16:30"),
        ("Daily 14:00–23:30", "2 am to 11:30 pm daily"),
        ("Daily 14:00–23:30", "14:00–23:30 daily 10:00–12:00"),
        ("16 Jun 2024", "17.06.2024"),
        ("16 Jun 2024", "16.07.2024"),
        ("16 Jun 2024", "16/06/2023"),
        ("5 Mar 2024", "05/03/2024"),  # or 3 May
        ("3 May 2024", "05/03/2024"),
        ("31.02.2024", "2 Mar 2024"),
        ("the_anchor", "f/the_anchor"),
        ("the_anchor", "u/u/the_anchor"),
        ("RP64422286", "RP6442228"),
        ("art", "party"),
        ("Ann's", "Anns"),
        ("C", "C1"),
    ],
)
def test_different_values_differ(one: str, other: str) -> None:
    assert tokens(one) != tokens(other)


@given(st.text(max_size=40))
def test_normal_form_ignores_case_and_space(text: str) -> None:
    assert tokens(text) == tokens(f"  {text}\n") == tokens(text.casefold())


@given(st.text(max_size=40))
def test_tokens_of_tokens_are_the_same_words(text: str) -> None:
    words = [token.text for token in tokens(text) if token.kind == WORD and not token.text[0].isdigit()]
    assert [token.text for token in tokens(" , ".join(words))] == words


@given(st.integers(-(10**9), 10**9), st.integers(0, 99))
def test_amounts_are_equal_with_and_without_separators(whole: int, cents: int) -> None:
    amount = f"{whole}.{cents:02d}"
    assert tokens(f"{whole:,}.{cents:02d}") == tokens(amount) == tokens(f"{amount}0")
    assert tokens(f"{whole + 1}.{cents:02d}") != tokens(amount)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_durations_are_equal_if_their_minutes_are(one: int, other: int) -> None:
    minutes = tokens(f"{other} minutes")
    assert (tokens(f"{one // 60} h {one % 60} min") == minutes) is (one == other)
    assert (tokens(f"{one // 60} hours and {one % 60} minutes") == minutes) is (one == other)


@given(st.dates(min_value=date(1000, 1, 1)))
def test_dates_are_equal_in_words_and_in_digits(day: date) -> None:
    words = f"{day:%d %B} {day:%Y}".lstrip("0")
    assert tokens(words) == tokens(str(day)) == (Token("date", str(day)),)


@pytest.mark.parametrize("rest", ["minutes", "days 1 h", "h 5 min", "h"])
def test_numbers_of_thousands_of_digits_are_read(rest: str) -> None:
    assert tokens(f"{'1' * 5000} {rest}")
