"""Tests of dates that people type into forms."""

from __future__ import annotations

from datetime import date

import pytest
from agentgym_envs.worlds.webarena.sites.dates import iso_day
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "text",
    [
        "2025-03-05",
        "3/5/2025",
        "03/05/2025",
        "March 5, 2025",
        "mar 5 2025",
        "5 March 2025",
        "5 Mar 2025",
        " 5  MAR 2025",
    ],
)
def test_a_date_may_be_written_in_any_usual_way(text: str) -> None:
    assert iso_day(text) == "2025-03-05"


def test_relative_days_count_from_the_sites_clock() -> None:
    assert (iso_day("today"), iso_day("Yesterday")) == ("2025-06-16", "2025-06-15")


@pytest.mark.parametrize("text", ["", "2025", "13/31/2025", "2025-02-30", "March 2025", "5", "soon", "٣/٥/٢٠٢٥"])
def test_other_texts_are_no_dates(text: str) -> None:
    assert iso_day(text) is None


@given(st.text(max_size=12))
def test_any_text_is_a_valid_date_or_none(text: str) -> None:
    found = iso_day(text)
    assert found is None or date.fromisoformat(found).isoformat() == found
