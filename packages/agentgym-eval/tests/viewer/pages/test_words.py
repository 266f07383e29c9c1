"""Tests of the formats of values on pages."""

from __future__ import annotations

import pytest
from agentgym_eval.viewer.pages.words import score

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.0, "0"), (0.12345, "0.123"), (12.345, "12.3"), (123.4, "123"), (1234.5, "1\u202f234")],
)
def test_means_have_three_digits_and_no_exponent(value: float | None, expected: str) -> None:
    assert score(value) == expected
