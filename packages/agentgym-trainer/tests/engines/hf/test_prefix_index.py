from __future__ import annotations

from collections.abc import Sequence

import pytest
from agentgym_trainer.engines.hf import prefix_index as module
from agentgym_trainer.engines.hf.prefix_index import Match, Prefixes, packed
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

TOKENS = st.tuples(st.lists(st.integers(0, 1), max_size=3), st.integers(0, 70)).map(
    lambda drawn: (drawn[0] * drawn[1] + [0] * drawn[1])[: drawn[1]]
)


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    same = [a == b for a, b in zip(some, others, strict=False)]
    return same.index(False) if False in same else len(same)


@given(st.lists(st.tuples(st.integers(0, 5), TOKENS | st.none()), max_size=12), TOKENS)
def test_it_finds_what_a_search_through_everything_finds(
    notes: list[tuple[int, list[int] | None]], wanted: list[int]
) -> None:
    prefixes, held = Prefixes(), dict[int, list[int]]()
    for holder, tokens in notes:
        if tokens is not None:
            prefixes.hold(holder, packed(tokens))
            held[holder] = tokens
        elif holder in held:
            prefixes.drop(holder)
            del held[holder]
    alike, within = prefixes.find(packed(wanted))
    matches = [Match(holder, _common(tokens, wanted)) for holder, tokens in held.items()]
    assert alike in matches if matches else alike is None
    assert alike is None or alike.common == max(match.common for match in matches)
    whole = [match for match in matches if match.common == len(held[match.holder])]
    assert sorted(within) == sorted(match.holder for match in whole)
    assert [len(held[holder]) for holder in within] == sorted((m.common for m in whole), reverse=True)


def test_nothing_is_left_of_what_was_dropped() -> None:
    prefixes = Prefixes()
    for holder in range(4):
        for content in (range(40), range(60), [1] * 33):
            prefixes.hold(holder, packed(content))
    for holder in range(4):
        prefixes.drop(holder)
    assert prefixes.find(packed(range(60))) == (None, [])
    assert (prefixes._held, prefixes._keys, prefixes._holders, prefixes._whole) == ({}, {}, {}, {})


def test_of_very_many_the_latest_are_looked_at() -> None:
    prefixes = Prefixes()
    for holder in range(100):
        prefixes.hold(holder, packed([*range(20), holder, 7]))
    assert prefixes.find(packed([*range(20), 90, 7, 7])) == (Match(90, 22), [90])
    assert prefixes.find(packed([*range(20), 3, 7, 7]))[1] == [3]


def test_equal_hashes_of_unequal_blocks_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash", lambda pair: pair[0] + 1, raising=False)
    prefixes = Prefixes()
    prefixes.hold(0, packed([*range(20), *range(60, 80)]))
    match, within = prefixes.find(packed(range(40)))
    assert match == Match(0, 16)
    assert within == []
    prefixes.drop(0)
