"""Tests of `Ranks` in a single process; `test_many_processes.py` tests two processes."""

from __future__ import annotations

import pickle

import pytest
from accelerate import Accelerator
from agentgym_trainer.distributed import RankFailed, Ranks, _sendable
from agentgym_trainer.engines.base import EngineGone


class Torn(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@pytest.fixture
def alone() -> Ranks:
    Accelerator(cpu=True)
    return Ranks()


def test_single_process_has_all_items(alone: Ranks) -> None:
    assert (alone.index, alone.count, alone.is_main) == (0, 1, True)
    assert alone.share("abc") == alone.gather("abc") == alone.gather_to_main("abc") == ["a", "b", "c"]
    assert alone.broadcast({"step": 3}) == {"step": 3}
    assert [alone.any(wish) for wish in (False, True)] == [False, True]


def test_shares_are_assigned_round_robin(alone: Ranks) -> None:
    alone.count, shares = 3, list[list[int]]()
    for alone.index in range(3):
        shares.append(alone.share(range(7)))
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]


def test_errors_together_raises_errors_of_this_process(alone: Ranks) -> None:
    with pytest.raises(EngineGone, match="for good"), alone.errors_together():
        raise EngineGone("It has left for good.")
    # KeyboardInterrupt doesn't wait for other processes.
    with pytest.raises(KeyboardInterrupt), alone.errors_together():
        raise KeyboardInterrupt


def test_unpicklable_errors_are_sent_as_messages() -> None:
    restored = pickle.loads(_sendable(EngineGone("It has left for good.")))
    assert (type(restored), str(restored)) == (EngineGone, "It has left for good.")
    replaced = pickle.loads(_sendable(Torn("head", "tail")))
    assert (type(replaced), str(replaced)) == (RankFailed, "Torn: head and tail")
