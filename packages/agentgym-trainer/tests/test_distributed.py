"""One process among those of a run; what two do together is in `test_many_processes.py`."""

from __future__ import annotations

import pickle

import pytest
from accelerate import Accelerator
from agentgym_trainer.distributed import RankFailed, Ranks, _sendable
from agentgym_trainer.engines.base import EngineGone


class Torn(Exception):
    """Can't be put together again from what it is pickled as."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@pytest.fixture
def alone() -> Ranks:
    Accelerator(cpu=True)
    return Ranks()


def test_who_is_alone_does_and_knows_everything(alone: Ranks) -> None:
    assert (alone.index, alone.count, alone.is_main) == (0, 1, True)
    assert alone.share("abc") == alone.gather("abc") == alone.gather_to_main("abc") == ["a", "b", "c"]
    assert alone.broadcast({"step": 3}) == {"step": 3}
    assert [alone.any(wish) for wish in (False, True)] == [False, True]


def test_shares_are_dealt_out_in_turn(alone: Ranks) -> None:
    alone.count, shares = 3, list[list[int]]()
    for alone.index in range(3):
        shares.append(alone.share(range(7)))
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]


def test_what_one_raises_is_raised_once_all_know(alone: Ranks) -> None:
    with pytest.raises(EngineGone, match="for good"), alone.errors_together():
        raise EngineGone("It has left for good.")
    # Whoever wants to leave at once needn't wait for anybody.
    with pytest.raises(KeyboardInterrupt), alone.errors_together():
        raise KeyboardInterrupt


def test_errors_are_sent_as_they_are_or_else_as_what_they_say() -> None:
    same = pickle.loads(_sendable(EngineGone("It has left for good.")))
    assert (type(same), str(same)) == (EngineGone, "It has left for good.")
    told = pickle.loads(_sendable(Torn("head", "tail")))
    assert (type(told), str(told)) == (RankFailed, "Torn: head and tail")
