from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Tests and the processes that they start import `faulty_worlds`.
sys.path.insert(0, str(Path(__file__).parent))

from agentgym_envs.pool import EnvPool, Result


class Gates:
    """Files that toy environments wait for with the action `await FILE`.

    All are opened at the end of the test, so that no thread waits forever.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: set[Path] = set()

    def wait_action(self, name: str) -> str:
        """Return the action that waits for the gate `name`."""
        self._paths.add(self._folder / name)
        return f"await {self._folder / name}"

    def open(self, name: str) -> None:
        (self._folder / name).touch()

    def reached(self, name: str) -> bool:
        """Return whether an environment waits for the gate `name`."""
        return (self._folder / f"{name}.begun").exists()

    def open_all(self) -> None:
        for path in self._paths:
            path.touch()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path)
    yield gates
    gates.open_all()


@pytest.fixture
def gather() -> Callable[[EnvPool, int], dict[int, Result]]:
    """A function that receives a number of results from a pool, by slot."""

    def receive(pool: EnvPool, number: int) -> dict[int, Result]:
        results: dict[int, Result] = {}
        while len(results) < number:
            results |= {result.slot: result for result in pool.recv()}
        return results

    return receive
