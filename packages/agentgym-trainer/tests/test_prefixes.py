from __future__ import annotations

from collections.abc import Sequence

from agentgym_trainer.engines.prefixes import Match, Prefixes, packed
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 1), max_size=3).flatmap(
    lambda seed: st.integers(0, 70).map(lambda n: (seed * n + [0] * n)[:n])
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
    assert [m.common for m in alike[:1]] == [max(m.common for m in matches)] if matches else alike == []
    assert set(alike) | set(within) <= set(matches)
    # A beginning of what is wanted, be it whole or but for its last token, is never missed.
    assert {m for m in matches if m.common == len(held[m.holder])} <= set(within)
    assert within == sorted(within, key=lambda m: (-m.common, m.holder))


def test_nothing_is_left_of_what_was_dropped() -> None:
    prefixes = Prefixes()
    for holder in range(4):
        prefixes.hold(holder, packed(range(40)))
        prefixes.hold(holder, packed(range(60)))
        prefixes.hold(holder, packed([1] * 33))
    for holder in range(4):
        prefixes.drop(holder)
    assert prefixes.find(packed(range(60))) == ([], [])
    assert [len(table) for table in (prefixes._held, prefixes._keys, prefixes._holders, prefixes._ending)] == [
        0,
        0,
        1,
        1,
    ]


def test_equal_hashes_of_unequal_blocks_are_noticed() -> None:
    prefixes = Prefixes()
    prefixes.hold(0, packed(range(40)))
    prefixes._held[0] = packed([*range(20), *range(60, 80)])
    (match,), _ = prefixes.find(packed(range(40)))
    assert 0 < match.common <= 20
