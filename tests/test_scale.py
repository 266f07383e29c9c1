"""Tests of the simulator for docs/scale.md, against manual calculations and a simulation of single forward passes."""

from __future__ import annotations

import importlib
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("simulator")


@pytest.fixture
def scale(simulator: Any) -> Any:
    return importlib.import_module("scale")


def pass_by_pass(trajectories: list[list[Any]], engine: Any) -> tuple[float, float]:
    """Return total and busy seconds, simulated one forward pass at a time."""
    next_turns = [(0.0, 0)] * len(trajectories)  # time of return from the environment, and turn
    remaining, length = dict[int, int](), [0] * len(trajectories)
    waiting = deque[int](range(len(trajectories)))
    now = busy = 0.0
    while waiting or remaining or any(turn < len(t) for (_, turn), t in zip(next_turns, trajectories, strict=True)):
        in_environment = {i for i in range(len(trajectories)) if i not in remaining and i not in waiting}
        returns = sorted((next_turns[i][0], i) for i in in_environment if next_turns[i][1] < len(trajectories[i]))
        waiting += [i for time, i in returns if time <= now]
        prefill = 0
        while waiting and len(remaining) < engine.max_replies:
            i = waiting.popleft()
            turn = trajectories[i][next_turns[i][1]]
            prefill, remaining[i] = prefill + turn.prefill, turn.completion
            length[i] += turn.shared + turn.prefill
        if not remaining:
            now = returns[0][0]
            continue
        seconds = engine.base + engine.prefill_base * (prefill > 0) + engine.prefill * prefill
        seconds += sum(engine.reply + engine.context * length[i] for i in remaining)
        now, busy = now + seconds, busy + seconds
        for i in list(remaining):
            remaining[i], length[i] = remaining[i] - 1, length[i] + 1
            if not remaining[i]:
                del remaining[i]
                turn = next_turns[i][1]
                next_turns[i] = (now + trajectories[i][turn].latency, turn + 1)
    return now, busy


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("max_replies", [2, 100])
def test_the_simulator_matches_single_forward_passes(simulator: Any, seed: int, max_replies: int) -> None:
    rng = np.random.default_rng(seed)
    trajectories = [
        [
            simulator.Turn(int(rng.integers(1, 50)), int(rng.integers(1, 20)), float(rng.exponential(0.3)), 7)
            for _ in range(rng.integers(1, 5))
        ]
        for _ in range(6)
    ]
    engine = simulator.PassCost(0.011, 0.0017, 0.00023, context=0.0, prefill_base=0.005, max_replies=max_replies)
    result = simulator.simulate(trajectories, engine)
    assert (result.seconds, result.busy) == pytest.approx(pass_by_pass(trajectories, engine))
    # The simulator merges passes in which contexts grow, so a reply may arrive one pass early or late.
    with_context = replace(engine, context=0.0001)
    assert simulator.simulate(trajectories, with_context).seconds == pytest.approx(
        pass_by_pass(trajectories, with_context)[0], rel=0.03
    )


def test_a_single_trajectory_takes_its_passes_and_latencies(simulator: Any) -> None:
    turns = [simulator.Turn(100, 5, 2.0), simulator.Turn(30, 7, 99.0)]
    result = simulator.simulate([turns], simulator.PassCost(0.1, 0.01, 0.001, context=0.0001, prefill_base=0.5))
    attended = sum(100 + i for i in range(5)) + sum(135 + i for i in range(7))
    busy = 12 * 0.11 + 130 * 0.001 + attended * 0.0001 + 2 * 0.5
    assert result.busy == pytest.approx(busy)
    assert result.seconds == pytest.approx(busy + 2.0), "the latency after the last turn doesn't count"
    assert result.completion == 12
    assert result.counts == (12, 12, 130, attended, 2)


def test_lock_step_waits_for_the_slowest_and_prefills_everything(simulator: Any) -> None:
    short = [simulator.Turn(10, 1, 3.0, shared=2), simulator.Turn(5, 1, 0.0)]
    long = [simulator.Turn(10, 9, 1.0), simulator.Turn(5, 1, 0.0)]
    engine = simulator.PassCost(1.0, 0.0, 0.001)
    result = simulator.simulate_lock_step([short, long], engine)
    assert result.seconds == pytest.approx(9 + 0.022 + 3.0 + 1 + (2 + 10 + 1 + 5 + 10 + 9 + 5) * 0.001)
    assert simulator.simulate([short, long], engine).seconds < result.seconds


def test_synchronous_phases_add_up_and_overlap_takes_the_longer(scale: Any) -> None:
    workload = scale.WORKLOADS[0]
    plan = replace(scale.PLANS[0], learners=4, engines=4, tasks=2, samples=2)
    synchronous, asynchronous = scale.step(plan, workload), scale.step(replace(plan, overlap=True), workload)
    assert synchronous.seconds == pytest.approx(synchronous.rollout + synchronous.update + synchronous.weights)
    assert asynchronous.seconds == pytest.approx(max(asynchronous.rollout, asynchronous.update) + asynchronous.weights)


def test_updates_scale_with_gpus_until_the_network_limits_them(scale: Any) -> None:
    plan = scale.Plan("", scale.MODELS["7B"], learners=1, engines=0)
    one, eight, many = (scale.update_seconds(replace(plan, learners=n), 10**6) for n in (1, 8, 4096))
    assert one == pytest.approx(18 * 7.6e9 * 1e6 / (989e12 * scale.TRAINING_MFU))
    assert eight == pytest.approx(one / 8)
    assert many == pytest.approx(22 * 7.6e9 / plan.gpu.network)


def test_weights_cost_nothing_on_one_gpu_and_most_between_nodes(scale: Any) -> None:
    plan, size = scale.Plan("", scale.MODELS["7B"], learners=1, engines=0), 2 * 7.6e9
    assert scale.weights_seconds(plan) == 0
    assert scale.weights_seconds(replace(plan, learners=4)) == pytest.approx(size / plan.gpu.link)
    assert scale.weights_seconds(replace(plan, learners=4, engines=4)) == pytest.approx(2 * size / plan.gpu.link)
    assert scale.weights_seconds(replace(plan, learners=16, engines=8)) == pytest.approx(2 * size / plan.gpu.network)


@pytest.mark.long
def test_the_table_of_the_document_is_what_the_script_computes(scale: Any) -> None:
    document = Path(__file__).parent.parent.joinpath("docs", "scale.md").read_text(encoding="utf-8")
    shown = [world for world in scale.WORKLOADS if world.name != "SciWorld"]
    found = [(plan, world, scale.step(plan, world)) for plan in scale.PLANS for world in shown]
    for row in scale.table(found):
        assert f"| {' | '.join(row.values())} |" in document
