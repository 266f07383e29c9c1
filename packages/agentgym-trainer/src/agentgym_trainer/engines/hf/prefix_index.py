"""An index of token sequences that finds those sharing a prefix with a new one, without scanning all of them.

It is a hash chain over blocks of tokens, as in vLLM's prefix caching: the key of a block is a hash of the block and of
the previous key, so that equal keys mean equal prefixes, except for hash collisions, which are detected.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

_TOKEN = 4
"""Bytes per token."""
_BYTES = 16 * _TOKEN
"""Bytes per block."""
_ROOT = 0
_CANDIDATES = 32
"""The number of holders of the same blocks that are compared, latest first: members of a group arrive in sequence."""

_K = TypeVar("_K")


def packed(ids: Sequence[int]) -> bytes:
    """Pack token ids into four bytes each."""
    return array("i", ids).tobytes()


class Match(NamedTuple):
    """A sequence that shares a prefix with the query."""

    holder: int
    common: int
    """Length of the common prefix in tokens."""


class Prefixes:
    """Token sequences by holder."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}
        self._keys: dict[int, list[int]] = {}
        # Dicts, not sets: the iteration order must not depend on hashes, which differ between processes.
        self._holders: dict[int, dict[int, None]] = {}
        """Holders of sequences with this key."""
        self._whole: dict[int, dict[bytes, dict[int, None]]] = {}
        """Holders of sequences whose last whole block has this key, by the tail after it."""

    def hold(self, holder: int, content: bytes) -> None:
        """Set the sequence of a holder."""
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
        """Remove a holder."""
        self._reopen(holder)
        for key in self._keys.pop(holder):
            _remove(self._holders, key, holder)
        del self._held[holder]

    def find(self, content: bytes) -> tuple[Match | None, list[int]]:
        """Find the sequences that share a prefix with this one.

        Returns:
            The sequence with the longest common prefix, up to one block less when very many share it; and the holders
            whose whole sequence is a prefix of this one, the longest first.
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
        sharing = self._holders.get(keys[-1], self._held)
        latest = islice(reversed(sharing), _CANDIDATES)
        depth = (len(keys) - 1) * _BYTES
        matches = [Match(holder, _common(self._held[holder], content, depth)) for holder in latest]
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
    """Yield the keys of the whole blocks that come after those with the given keys."""
    key = keys[-1] if keys else _ROOT
    for start in range(len(keys) * _BYTES, len(content) - _BYTES + 1, _BYTES):
        key = hash((key, content[start : start + _BYTES]))
        yield key


def _remove(table: dict[_K, dict[int, None]], key: _K, holder: int) -> None:
    del table[key][holder]
    if not table[key]:
        del table[key]


def _common(a: bytes, b: bytes, hashed: int) -> int:
    """Return the number of common leading tokens. Beyond the first `hashed` bytes, at most one block is compared.

    After a hash collision, fewer may be found.
    """
    if a[:hashed] != b[:hashed]:
        hashed = 0
    end = min(len(a), len(b), hashed + _BYTES)
    differing = int.from_bytes(a[hashed:end], "little") ^ int.from_bytes(b[hashed:end], "little")
    same = ((differing & -differing).bit_length() - 1) // 8 if differing else end - hashed
    return (hashed + same) // _TOKEN
