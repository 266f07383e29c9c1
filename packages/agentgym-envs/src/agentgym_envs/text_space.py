"""A Gymnasium space of text: any Unicode string up to a length.

Gymnasium's own `Text` leaves the space character out of its default alphabet, takes seconds to build one that holds
all of Unicode, and comes back as zeros from the shared memory of `AsyncVectorEnv`. This one stores UTF-8.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from numpy.typing import NDArray

_UTF8_BYTES = 4
_SURROGATES = range(0xD800, 0xE000)


class TextSpace(Space[str]):
    """All strings of `min_length` to `max_length` characters that UTF-8 can encode (so no lone surrogates)."""

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        if not 0 <= min_length <= max_length:
            raise ValueError(f"Lengths must satisfy 0 <= min_length <= max_length, not {min_length} and {max_length}.")
        self.min_length = min_length
        self.max_length = max_length
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A string of random length; half of its characters are ASCII, the others from all of Unicode.

        Raises:
            ValueError: when a mask or probability is given; text has neither.
        """
        if mask is not None or probability is not None:
            raise ValueError("TextSpace.sample takes neither a mask nor a probability.")
        length = int(self.np_random.integers(self.min_length, self.max_length + 1))
        ascii_or_not = self.np_random.random(length) < 0.5
        codes = np.where(
            ascii_or_not, self.np_random.integers(0x20, 0x7F, length), self.np_random.integers(0, 0x110000, length)
        )
        codes[np.isin(codes, _SURROGATES)] = 0x20
        return "".join(map(chr, codes))

    def contains(self, x: Any) -> bool:
        """Whether `x` is text of a length that fits, without lone surrogates."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and _encodable(x)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Strings are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The strings, as they are."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and (self.min_length, self.max_length) == (
            other.min_length,
            other.max_length,
        )

    def __hash__(self) -> int:
        return hash((self.min_length, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length}, min_length={self.min_length})"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _SharedText:
    """One slot of shared memory: four bytes of length, then UTF-8.

    Gymnasium reads the memory once, when the vector is built, and copies what it read after every step; so reading
    gives this live view, and copying it gives the text of that moment.
    """

    def __init__(self, memory: Any, start: int, size: int) -> None:
        self._memory = memory
        self._start = start
        self._size = size

    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._memory.get_obj(), np.uint8)[self._start : self._start + self._size]

    def __str__(self) -> str:
        slot = self._bytes()
        length = int(slot[:4].view(np.uint32)[0])
        return slot[4 : 4 + length].tobytes().decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return str(self)

    def write(self, text: str) -> None:
        encoded = np.frombuffer(text.encode(), np.uint8)
        slot = self._bytes()
        slot[4 : 4 + len(encoded)] = encoded
        slot[:4].view(np.uint32)[0] = len(encoded)


def _slot_size(space: TextSpace) -> int:
    return 4 + _UTF8_BYTES * space.max_length


@create_shared_memory.register(TextSpace)
def _create(space: TextSpace, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * _slot_size(space))


@read_from_shared_memory.register(TextSpace)
def _read(space: TextSpace, shared_memory: Any, n: int = 1) -> tuple[_SharedText, ...]:
    size = _slot_size(space)
    return tuple(_SharedText(shared_memory, i * size, size) for i in range(n))


@write_to_shared_memory.register(TextSpace)
def _write(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:
    size = _slot_size(space)
    _SharedText(shared_memory, index * size, size).write(value)
