from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # so that tests, and the processes they start, can import `faulty_worlds`

from agentgym_envs.pool import EnvPool, Result


class Gates:
    """Files that a toy waits for (`await FILE`); all open at the end, so that no thread waits for ever."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[Path] = set()

    def closed(self, name: str) -> str:
        """The action that waits for the gate `name`."""
        self._known.add(self._folder / name)
        return f"await {self._folder / name}"

    def open(self, name: str) -> None:
        (self._folder / name).touch()

    def reached(self, name: str) -> bool:
        """Whether a toy stands before it."""
        return (self._folder / f"{name}.begun").exists()

    def open_all(self) -> None:
        for path in self._known:
            path.touch()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path)
    yield gates
    gates.open_all()


@pytest.fixture
def gather() -> Callable[[EnvPool, int], dict[int, Result]]:
    """Receives a number of results, by slot."""

    def gathered(pool: EnvPool, number: int) -> dict[int, Result]:
        results: dict[int, Result] = {}
        while len(results) < number:
            results |= {result.slot: result for result in pool.recv()}
        return results

    return gathered
