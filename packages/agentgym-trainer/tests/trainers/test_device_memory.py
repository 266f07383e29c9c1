"""Tests of the order in which a run takes memory, which decides what fits on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from device_memory import OWN_ENGINE, MemoryLog, accounted, exempt_existing, live_bytes, read_log, train_sharded
from forked_processes import run_two_processes
from toy_learner import coin_flags, train_cli
from transformers import AutoModelForCausalLM

SHORT = (
    *("--steps", "1", "--warm-start.episodes", "8", "--evaluation.every", "0", "--evaluation.no-test"),
    # An untrained model earns no rewards, so the entropy bonus provides the gradient.
    *("--algorithm.groups.zero-variance", "keep", "--algorithm.entropy", "0.1"),
    *("--engine.kind", OWN_ENGINE, "--engine.tolerance", "1"),
)


def test_live_bytes_counts_each_storage_once_and_no_meta_tensors() -> None:
    exempt_existing()
    before = live_bytes()
    kept = torch.zeros(1000)
    views = [kept[:10], kept.view(10, 100)]
    empty = torch.zeros(1000, device="meta")
    assert live_bytes() - before == 4000
    del kept, views, empty
    assert live_bytes() == before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `run`."""
    return tmp_path_factory.mktemp("memory") / "run"


@pytest.fixture(scope="module")
def run(folder: Path) -> tuple[MemoryLog, int]:
    """The phases of a run with a reference and an engine of its own, and the bytes of its model in float32."""
    with accounted() as log:
        assert train_cli(coin_flags(folder, *SHORT)) == 0
    model = AutoModelForCausalLM.from_pretrained(folder / "start", dtype=torch.float32)
    return log.since("load"), sum(parameter.nbytes for parameter in model.parameters())


def test_the_engine_starts_last(run: tuple[MemoryLog, int]) -> None:
    assert run[0].order == ["load", "shard", "engine", "update"]


def test_policy_and_reference_are_all_that_is_left_when_the_engine_starts(run: tuple[MemoryLog, int]) -> None:
    log, weights = run
    assert log.first("load").before <= 0.1 * weights
    assert log.first("engine").before == pytest.approx(2 * weights, rel=0.1)
    assert log.first("engine").after == pytest.approx(3 * weights, rel=0.1)


def test_the_peak_is_the_state_of_training_and_the_engine(run: tuple[MemoryLog, int]) -> None:
    """The weights, Adam's two moments, the reference, the engine's weights."""
    log, weights = run
    assert log.peak == log.first("update").after == pytest.approx(5 * weights, rel=0.2)


def test_reference_and_teacher_are_in_half_precision(
    run: tuple[MemoryLog, int], folder: Path, tmp_path: Path, accelerator_of: Callable[[str], Accelerator]
) -> None:
    accelerator_of("bf16")
    model = str(folder / "start")
    settings = ("--precision", "bf16", "--model", model, "--distillation.teacher", model)
    with accounted() as log:
        assert train_cli(coin_flags(tmp_path / "run", *SHORT, "--warm-start.episodes", "0", *settings)) == 0
    assert log.first("engine").before == pytest.approx((1 + 0.5 + 0.5) * run[1], rel=0.1)


@pytest.mark.long
def test_each_of_two_processes_holds_half_of_a_sharded_run(run: tuple[MemoryLog, int], tmp_path: Path) -> None:
    """The first one reads the weights, on a GPU into host memory; only the engine has all of them later."""
    weights, log = run[1], tmp_path / "log"
    flags = coin_flags(tmp_path / "run", *SHORT)
    assert run_two_processes(train_sharded, tmp_path, flags, log=log) == [0, 0], log.read_text()
    first, second = (read_log(tmp_path, rank).since("load") for rank in range(2))
    assert first.first("load").after == pytest.approx(weights, rel=0.1)
    assert second.first("load").after <= 0.1 * weights
    for rank, events in enumerate((first, second)):
        assert events.order == ["load", "shard", "engine", "update"]
        assert {event.rank for event in events.events} == {rank}
        assert events.first("engine").before == pytest.approx(2 * weights / 2, rel=0.1)
        assert events.first("engine").after == pytest.approx(2 * weights / 2 + weights, rel=0.1)
        assert events.peak == events.first("update").after == pytest.approx(4 * weights / 2 + weights, rel=0.2)


def test_a_copy_that_is_made_before_sharding_is_seen(new_model: Callable[..., Any]) -> None:
    model = new_model()
    with accounted({"copy": "copy.deepcopy"}) as log:
        copied = copy.deepcopy(model)
    (event,) = [event for event in log.events if event.after > event.before][-1:]
    assert event.after == pytest.approx(sum(parameter.nbytes for parameter in copied.parameters()), rel=0.01)
