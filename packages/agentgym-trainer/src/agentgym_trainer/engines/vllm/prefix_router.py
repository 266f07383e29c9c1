"""Chooses a server for each request: one that has its prefix in the cache, unless others have much less to do.

This is the cache-aware policy of SGLang's router, with hashes of token blocks in place of a tree of texts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

_BLOCK = 32
"""Tokens of a block; shorter ends of a context don't count."""
_REMEMBERED = 1 << 18
"""Blocks whose server is remembered."""
_SLACK = 4
"""Requests that a server may have more than the one with the fewest..."""
_RATIO = 1.25
"""... and this many times as many, before it loses requests that it has the prefix of."""


class PrefixRouter:
    """Routes requests among servers that are all the same."""

    def __init__(self, servers: int) -> None:
        self.running = [0] * servers
        """Requests under way on each server."""
        self._server_of: OrderedDict[int, int] = OrderedDict()

    @contextmanager
    def routed(self, ids: Sequence[int]) -> Generator[int]:
        """Choose the server of a request with this context, which runs within the block."""
        blocks = list(_hashes(ids))
        server = self._choose(blocks)
        self._remember(blocks, server)
        self.running[server] += 1
        try:
            yield server
        finally:
            self.running[server] -= 1

    def _choose(self, blocks: Sequence[int]) -> int:
        fewest = min(self.running)
        known = next((self._server_of[block] for block in reversed(blocks) if block in self._server_of), None)
        if known is not None and self.running[known] <= max(fewest + _SLACK, _RATIO * fewest):
            return known
        return self.running.index(fewest)

    def _remember(self, blocks: Sequence[int], server: int) -> None:
        for block in blocks:
            self._server_of[block] = server
            self._server_of.move_to_end(block)
        while len(self._server_of) > _REMEMBERED:
            self._server_of.popitem(last=False)


def _hashes(ids: Sequence[int]) -> Iterator[int]:
    """Yield a hash of the context up to the end of each full block."""
    found = 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        found = hash((found, *ids[start : start + _BLOCK]))
        yield found
