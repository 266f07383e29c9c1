"""Who holds which tokens: finds the sequences that begin as a new one does, without going through all of them.

A hash chain over blocks of tokens, as in vLLM's prefix caching: the key of a block is a hash of the block and of the
key before it, so that equal keys mean equal beginnings, but for accidents, which are looked for. Knows no tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_BLOCK = 16
_BYTES = 4 * _BLOCK
_ROOT = 0


def packed(ids: Sequence[int]) -> bytes:
    """Token ids, four bytes each."""
    return array("i", ids).tobytes()


class Match(NamedTuple):
    """A sequence that begins as the one asked for does."""

    holder: int
    common: int
    """Tokens until the first difference, or until one of the two ends."""


class Prefixes:
    """Token sequences by their holders."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}
        self._keys: dict[int, list[int]] = {}
        # Dicts, not sets: what is found first must not hang on hashes that differ from process to process.
        self._holders: dict[int, dict[int, None]] = {_ROOT: {}}
        """Of a sequence with this key."""
        self._ending: dict[int, dict[int, None]] = {_ROOT: {}}
        """Of a sequence whose last whole block has this key."""

    def hold(self, holder: int, content: bytes) -> None:
        """Note what a holder has now."""
        if holder in self._held and not content.startswith(self._held[holder]):
            self.drop(holder)
        keys = self._keys.get(holder)
        if keys is None:
            keys = self._keys[holder] = [_ROOT]
            self._holders[_ROOT][holder] = None
        else:
            _remove(self._ending, keys[-1], holder)
        for key in _chain(content, keys[-1], len(keys) - 1):
            self._holders.setdefault(key, {})[holder] = None
            keys.append(key)
        self._ending.setdefault(keys[-1], {})[holder] = None
        self._held[holder] = content

    def drop(self, holder: int) -> None:
        """Forget a holder."""
        del self._held[holder]
        keys = self._keys.pop(holder)
        _remove(self._ending, keys[-1], holder)
        for key in keys:
            _remove(self._holders, key, holder)

    def find(self, content: bytes) -> tuple[list[Match], list[Match]]:
        """Who begins as this does.

        Returns:
            Who begins longest alike, the longest first, and who has, give or take a block, nothing that this hasn't,
            the longest first.
        """
        key, depth, within = _ROOT, 0, self._matches(self._ending, _ROOT, content, 0)
        for deeper in _chain(content, _ROOT, 0):
            if deeper not in self._holders:
                break
            key, depth = deeper, depth + _BYTES
            within += self._matches(self._ending, key, content, depth)
        alike = self._matches(self._holders, key, content, depth)
        return sorted(alike, key=_longest), sorted(within, key=_longest)

    def _matches(self, table: dict[int, dict[int, None]], key: int, content: bytes, depth: int) -> list[Match]:
        return [Match(holder, _common(self._held[holder], content, depth)) for holder in table.get(key, ())]


def _longest(match: Match) -> tuple[int, int]:
    return -match.common, match.holder


def _chain(content: bytes, key: int, blocks: int) -> Iterator[int]:
    """Keys of the whole blocks behind the first so many, the last of which has this key."""
    for start in range(blocks * _BYTES, len(content) - _BYTES + 1, _BYTES):
        key = hash((key, content[start : start + _BYTES]))
        yield key


def _remove(table: dict[int, dict[int, None]], key: int, holder: int) -> None:
    del table[key][holder]
    if not table[key] and key != _ROOT:
        del table[key]


def _common(some: bytes, others: bytes, alike: int) -> int:
    """Tokens until the first difference, which is at most a block behind so many bytes that have the same key.

    Should keys be equal by accident, fewer are found.
    """
    if some[:alike] != others[:alike]:
        alike = 0
    end = min(len(some), len(others), alike + _BYTES)
    differing = int.from_bytes(some[alike:end], "little") ^ int.from_bytes(others[alike:end], "little")
    same = ((differing & -differing).bit_length() - 1) // 8 if differing else end - alike
    return (alike + same) // 4
