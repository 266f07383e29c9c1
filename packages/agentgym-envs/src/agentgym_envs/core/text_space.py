"""A Gymnasium space of text: any Unicode string up to a length.

Gymnasium's own `Text` omits the space character from its default alphabet, takes seconds to build an alphabet of all of
Unicode, and comes back as zeros from the shared memory of `AsyncVectorEnv`. `TextSpace` is a subclass of `Text` that
builds its alphabet on first access and stores UTF-8.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from numpy.typing import NDArray

_UTF8_BYTES = 4
_SURROGATES = range(0xD800, 0xE000)
_Mask = tuple[int | None, NDArray[Any] | None]


class TextSpace(Text):
    """All strings of `min_length` to `max_length` characters that UTF-8 can encode (so no lone surrogates).

    A `gymnasium.spaces.Text` whose alphabet is Unicode: code that converts a `Text` by its lengths also converts this
    one. `character_set`, `character_list` and `characters` hold 1,112,064 characters and are built on first access.
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        """Create the space. Lengths are in characters, both inclusive.

        Raises:
            ValueError: unless 0 <= min_length <= max_length.
            TypeError: if a length isn't an integer.
        """
        super().__init__(max_length, min_length=min_length, charset="", seed=seed)

    @property
    def character_set(self) -> frozenset[str]:
        """Every character that UTF-8 can encode."""
        return _alphabet_set()

    @property
    def character_list(self) -> tuple[str, ...]:
        """The characters in the order of their code points."""
        return _alphabet_list()

    @property
    def characters(self) -> str:
        """The characters as one string, in the order of their code points."""
        return _alphabet()

    def character_index(self, char: str) -> np.int32:
        """Return the index of a character in `characters`.

        Raises:
            KeyError: for a surrogate.
        """
        code = ord(char)
        if code in _SURROGATES:
            raise KeyError(char)
        return np.int32(code if code < _SURROGATES.start else code - len(_SURROGATES))

    def sample(self, mask: _Mask | None = None, probability: _Mask | None = None) -> str:
        """Draw a string of random length. Half of its characters are ASCII, the others from all of Unicode.

        A mask or a probability, both over `characters`, works as in `Text`.
        """
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(self.min_length, self.max_length + 1))
        is_ascii = self.np_random.random(length) < 0.5
        codes = np.where(
            is_ascii, self.np_random.integers(0x20, 0x7F, length), self.np_random.integers(0, 0x110000, length)
        )
        codes[np.isin(codes, _SURROGATES)] = 0x20
        return "".join(map(chr, codes))

    def contains(self, x: Any) -> bool:
        """Whether `x` is text of an allowed length without lone surrogates."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and _encodable(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and (self.min_length, self.max_length) == (
            other.min_length,
            other.max_length,
        )

    def __hash__(self) -> int:
        return hash((self.min_length, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length}, min_length={self.min_length})"


@cache
def _alphabet() -> str:
    codes = np.arange(0x110000, dtype="<u4")
    return codes[~np.isin(codes, _SURROGATES)].tobytes().decode("utf-32-le")


@cache
def _alphabet_list() -> tuple[str, ...]:
    return tuple(_alphabet())


@cache
def _alphabet_set() -> frozenset[str]:
    return frozenset(_alphabet_list())


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _SharedText:
    """One slot of shared memory: four bytes of length, then UTF-8.

    Gymnasium reads the memory once, when it builds the vector environment, and deep-copies the result after every step.
    So reading returns this live view, and copying the view returns the current text.
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


@is_space_dtype_shape_equiv.register(TextSpace)
def _equivalent(space_1: TextSpace, space_2: Any) -> bool:
    return isinstance(space_2, TextSpace) and space_1.max_length == space_2.max_length
