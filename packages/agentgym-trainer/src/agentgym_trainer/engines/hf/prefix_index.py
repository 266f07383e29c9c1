"""Who holds which tokens: finds the sequences that begin as a new one does, without going through all of them.

A hash chain over blocks of tokens, as in vLLM's prefix caching: the key of a block is a hash of the block and of the
key before it, so that equal keys mean equal beginnings, but for accidents, which are looked for. Knows no tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

_TOKEN = 4
"""Bytes of a token."""
_BYTES = 16 * _TOKEN
"""Bytes of a block."""
_ROOT = 0
_CANDIDATES = 32
"""Holders of the same blocks that are looked at, the latest ones: members of a group come one after the other."""

_K = TypeVar("_K")


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
        self._holders: dict[int, dict[int, None]] = {}
        """Of sequences with this key."""
        self._whole: dict[int, dict[bytes, dict[int, None]]] = {}
        """Of sequences whose last whole block has this key, by what is behind it."""

    def hold(self, holder: int, content: bytes) -> None:
        """Note what a holder has now."""
        if holder in self._held and not content.startswith(self._held[holder]):
            self.drop(holder)
        keys = self._keys.setdefault(holder, [])
        if holder in self._held:
            self._reopen(holder)
        for key in _chain(content, keys):
            self._holders.setdefault(key, {})[holder] = None
            keys.append(key)
        self._held[holder] = content
        key, tail = self._end(holder)
        self._whole.setdefault(key, {}).setdefault(tail, {})[holder] = None

    def drop(self, holder: int) -> None:
        """Forget a holder."""
        self._reopen(holder)
        for key in self._keys.pop(holder):
            _remove(self._holders, key, holder)
        del self._held[holder]

    def find(self, content: bytes) -> tuple[Match | None, list[int]]:
        """Who begins as this does.

        Returns:
            Who begins longest alike, give or take a block when very many do; and who has the beginning of this and
            nothing else, the longest first.
        """
        keys, within = [_ROOT], list[int]()
        for key in _chain(content, []):
            if key not in self._holders:
                break
            keys.append(key)
        for depth, key in enumerate(keys):
            behind = content[depth * _BYTES : (depth + 1) * _BYTES - 1]
            tails = self._whole.get(key, {})
            for end in range(0, len(behind) + 1, _TOKEN) if tails else ():
                candidates = tails.get(behind[:end], ())
                within += [holder for holder in candidates if content.startswith(self._held[holder])]
        alike = self._holders.get(keys[-1], self._held)
        some = islice(reversed(alike), _CANDIDATES)
        depth = (len(keys) - 1) * _BYTES
        matches = [Match(holder, _common(self._held[holder], content, depth)) for holder in some]
        return min(matches, key=_longest, default=None), within[::-1]

    def _reopen(self, holder: int) -> None:
        key, tail = self._end(holder)
        _remove(self._whole[key], tail, holder)
        if not self._whole[key]:
            del self._whole[key]

    def _end(self, holder: int) -> tuple[int, bytes]:
        keys = self._keys[holder]
        return keys[-1] if keys else _ROOT, self._held[holder][len(keys) * _BYTES :]


def _longest(match: Match) -> tuple[int, int]:
    return -match.common, match.holder


def _chain(content: bytes, keys: Sequence[int]) -> Iterator[int]:
    """Keys of the whole blocks, behind those that have these."""
    key = keys[-1] if keys else _ROOT
    for start in range(len(keys) * _BYTES, len(content) - _BYTES + 1, _BYTES):
        key = hash((key, content[start : start + _BYTES]))
        yield key


def _remove(table: dict[_K, dict[int, None]], key: _K, holder: int) -> None:
    del table[key][holder]
    if not table[key]:
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
    return (alike + same) // _TOKEN
