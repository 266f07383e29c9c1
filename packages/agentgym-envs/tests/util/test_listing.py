"""Tests of descriptions from docstrings."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from agentgym_envs.util.listing import Setting, argument_docs, attribute_docs, first_sentence, settings_of

pytestmark = pytest.mark.quick


@dataclass(frozen=True)
class Inner:
    size: int = 3
    """The size,
    in metres."""


@dataclass(frozen=True)
class Outer:
    """Holds another one.

    Args:
        size: How large it is,
            and more: not an argument.
        mode: One of `a` and `b`.

    Afterwards: nothing.
    """

    inner: Inner = field(default_factory=Inner)
    mode: str = "a"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("From a paper (Yao et al. 2022, eq. 3). More.", "From a paper (Yao et al. 2022, eq. 3)."),
        ("Version 1.5 of\nit, e.g. this one.\n\nMore.", "Version 1.5 of it, e.g. this one."),
        ("No full stop", "No full stop"),
        ("", ""),
    ],
)
def test_the_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_arguments_are_read_with_their_continuation_lines() -> None:
    assert argument_docs(Outer) == {
        "size": "How large it is, and more: not an argument.",
        "mode": "One of `a` and `b`.",
    }
    assert argument_docs(Inner) == {}
    assert first_sentence(Outer) == "Holds another one."


def test_settings_are_described_and_nested_ones_have_dotted_names() -> None:
    assert attribute_docs(Inner) == {"size": "The size,\nin metres."}
    assert settings_of(Outer(Inner(4))) == (Setting("inner.size", 4, "The size,\nin metres."), Setting("mode", "a"))
    assert settings_of(print) == settings_of(Outer) == ()
