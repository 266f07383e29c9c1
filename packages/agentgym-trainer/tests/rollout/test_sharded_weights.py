"""Tests of the weights of a learner that is sharded over two processes, each with an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weight_ranks
from forked_processes import run_two_processes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process's engines loaded."""
    folder = tmp_path_factory.mktemp("sharded")
    log = folder / "log"
    assert run_two_processes(weight_ranks.main, folder, log=log) == [0, 0], log.read_text()
    results = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    assert [result["processes"] for result in results] == [2, 2]
    return results


def assert_equal(loaded: Any, expected: Any, dtype: torch.dtype = torch.float32) -> None:
    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name].to(dtype)), name


@pytest.mark.parametrize(
    ("case", "dtype"),
    [("in process", torch.float32), ("bf16", torch.bfloat16), ("one fails once", torch.float32)],
)
def test_engine_of_each_process_loads_whole_tensors(
    by_rank: list[dict[str, Any]], case: str, dtype: torch.dtype
) -> None:
    expected = by_rank[0]["expected"]  # only the main process gets a whole state dict
    for result in by_rank:
        error, loaded = result[case]
        assert not error
        assert_equal(loaded, expected, dtype)
        assert all(tensor.dtype == dtype for tensor in loaded.values())


def test_engine_that_is_gone_ends_all_processes(by_rank: list[dict[str, Any]]) -> None:
    assert [result["one is gone"] for result in by_rank] == [
        "The engine died, was restarted, and died again: OSError('the device is lost')"
    ] * 2


@pytest.mark.parametrize(("case", "dtype"), [("kept", torch.float32), ("kept in bf16", torch.bfloat16)])
def test_processes_keep_one_copy_together(by_rank: list[dict[str, Any]], case: str, dtype: torch.dtype) -> None:
    expected = by_rank[0]["expected"]
    (_, memory), (_, same_memory) = (result[case] for result in by_rank)
    for result in by_rank:
        assert_equal(result[case][0], expected, dtype)
    assert memory == same_memory
    size = sum(tensor.numel() for tensor in expected.values()) * dtype.itemsize
    assert size <= memory[1] <= size + 64 * len(expected) + 4096


@pytest.mark.parametrize(("case", "dtype"), [("no memory files", torch.bfloat16), ("not permitted", torch.float32)])
def test_each_process_keeps_a_copy_where_memory_cannot_be_shared(
    by_rank: list[dict[str, Any]], case: str, dtype: torch.dtype
) -> None:
    for result in by_rank:
        loaded, shared = result[case]
        assert_equal(loaded, by_rank[0]["expected"], dtype)
        assert shared is None


def test_all_processes_end_if_one_cannot_keep_its_part(by_rank: list[dict[str, Any]]) -> None:
    error = "The weights could not be copied to host memory: OutOfMemoryError('CUDA out of memory')"
    assert [result["one is full"] for result in by_rank] == [error, error]


@pytest.mark.parametrize(
    ("case", "copies"),
    [("server over tcp", 1), ("server over nccl", 2), ("server over ipc", 2), ("starting server over ipc", 2)],
)
def test_a_server_gets_whole_tensors_from_two_processes(by_rank: list[dict[str, Any]], case: str, copies: int) -> None:
    (first, received), (second, nothing) = by_rank[0][case], by_rank[1][case]
    assert not first
    assert not second
    assert not nothing
    assert len(received) == copies
    for loaded in received:
        assert_equal(loaded, by_rank[0]["expected"])
