from __future__ import annotations

from collections.abc import Sequence

import pytest
from agentgym_trainer.engines.hf import prefix_index as module
from agentgym_trainer.engines.hf.prefix_index import Match, Prefixes, packed
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

TOKENS = st.tuples(st.lists(st.integers(0, 1), max_size=3), st.integers(0, 70)).map(
    lambda parts: (parts[0] * parts[1] + [0] * parts[1])[: parts[1]]
)


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    equal = [a == b for a, b in zip(one, other, strict=False)]
    return equal.index(False) if False in equal else len(equal)


@given(st.lists(st.tuples(st.integers(0, 5), TOKENS | st.none()), max_size=12), TOKENS)
def test_find_agrees_with_an_exhaustive_search(
    operations: list[tuple[int, list[int] | None]], query: list[int]
) -> None:
    prefixes, sequences = Prefixes(), dict[int, list[int]]()
    for holder, tokens in operations:
        if tokens is not None:
            prefixes.hold(holder, packed(tokens))
            sequences[holder] = tokens
        elif holder in sequences:
            prefixes.drop(holder)
            del sequences[holder]
    best, within = prefixes.find(packed(query))
    matches = [Match(holder, _common_length(tokens, query)) for holder, tokens in sequences.items()]
    assert best in matches if matches else best is None
    assert best is None or best.common == max(match.common for match in matches)
    full_matches = [match for match in matches if match.common == len(sequences[match.holder])]
    assert sorted(within) == sorted(match.holder for match in full_matches)
    assert [len(sequences[holder]) for holder in within] == sorted((m.common for m in full_matches), reverse=True)


def test_drop_leaves_no_entries() -> None:
    prefixes = Prefixes()
    for holder in range(4):
        for content in (range(40), range(60), [1] * 33):
            prefixes.hold(holder, packed(content))
    for holder in range(4):
        prefixes.drop(holder)
    assert prefixes.find(packed(range(60))) == (None, [])
    assert (prefixes._held, prefixes._keys, prefixes._holders, prefixes._whole) == ({}, {}, {}, {})


def test_only_the_latest_of_many_candidates_are_compared() -> None:
    prefixes = Prefixes()
    for holder in range(100):
        prefixes.hold(holder, packed([*range(20), holder, 7]))
    assert prefixes.find(packed([*range(20), 90, 7, 7])) == (Match(90, 22), [90])
    assert prefixes.find(packed([*range(20), 3, 7, 7]))[1] == [3]


def test_hash_collisions_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash", lambda pair: pair[0] + 1, raising=False)
    prefixes = Prefixes()
    prefixes.hold(0, packed([*range(20), *range(60, 80)]))
    match, within = prefixes.find(packed(range(40)))
    assert match == Match(0, 16)
    assert within == []
    prefixes.drop(0)
