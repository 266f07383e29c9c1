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
    at = [(0.0, 0)] * len(trajectories)  # time of return from the environment, and turn
    left, length = dict[int, int](), [0] * len(trajectories)
    waiting = deque[int](range(len(trajectories)))
    now = busy = 0.0
    while waiting or left or any(turn < len(t) for (_, turn), t in zip(at, trajectories, strict=True)):
        away = {i for i in range(len(trajectories)) if i not in left and i not in waiting}
        back = sorted((at[i][0], i) for i in away if at[i][1] < len(trajectories[i]))
        waiting += [i for when, i in back if when <= now]
        prefill = 0
        while waiting and len(left) < engine.max_replies:
            i = waiting.popleft()
            turn = trajectories[i][at[i][1]]
            prefill, left[i] = prefill + turn.prefill, turn.completion
            length[i] += turn.shared + turn.prefill
        if not left:
            now = back[0][0]
            continue
        spent = engine.base + engine.prefill_base * (prefill > 0) + engine.prefill * prefill
        spent += sum(engine.reply + engine.context * length[i] for i in left)
        now, busy = now + spent, busy + spent
        for i in list(left):
            left[i], length[i] = left[i] - 1, length[i] + 1
            if not left[i]:
                del left[i]
                turn = at[i][1]
                at[i] = (now + trajectories[i][turn].latency, turn + 1)
    return now, busy


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("places", [2, 100])
def test_it_comes_to_what_pass_by_pass_comes_to(simulator: Any, seed: int, places: int) -> None:
    rng = np.random.default_rng(seed)
    trajectories = [
        [
            simulator.Turn(int(rng.integers(1, 50)), int(rng.integers(1, 20)), float(rng.exponential(0.3)), 7)
            for _ in range(rng.integers(1, 5))
        ]
        for _ in range(6)
    ]
    engine = simulator.PassCost(0.011, 0.0017, 0.00023, context=0.0, prefill_base=0.005, max_replies=places)
    found = simulator.simulate(trajectories, engine)
    assert (found.seconds, found.busy) == pytest.approx(pass_by_pass(trajectories, engine))
    # The simulator merges passes in which contexts grow, so a reply may arrive one pass early or late.
    heavy = replace(engine, context=0.0001)
    assert simulator.simulate(trajectories, heavy).seconds == pytest.approx(
        pass_by_pass(trajectories, heavy)[0], rel=0.03
    )


def test_a_trajectory_alone_takes_its_passes_and_the_worlds_between_them(simulator: Any) -> None:
    turns = [simulator.Turn(100, 5, 2.0), simulator.Turn(30, 7, 99.0)]
    found = simulator.simulate([turns], simulator.PassCost(0.1, 0.01, 0.001, context=0.0001, prefill_base=0.5))
    attended = sum(100 + i for i in range(5)) + sum(135 + i for i in range(7))
    busy = 12 * 0.11 + 130 * 0.001 + attended * 0.0001 + 2 * 0.5
    assert found.busy == pytest.approx(busy)
    assert found.seconds == pytest.approx(busy + 2.0), "nobody waits for the last world"
    assert found.completion == 12
    assert found.counts == (12, 12, 130, attended, 2)


def test_lock_step_waits_for_the_longest_and_the_slowest_and_reads_all_anew(simulator: Any) -> None:
    short = [simulator.Turn(10, 1, 3.0, shared=2), simulator.Turn(5, 1, 0.0)]
    long = [simulator.Turn(10, 9, 1.0), simulator.Turn(5, 1, 0.0)]
    engine = simulator.PassCost(1.0, 0.0, 0.001)
    found = simulator.simulate_lock_step([short, long], engine)
    assert found.seconds == pytest.approx(9 + 0.022 + 3.0 + 1 + (2 + 10 + 1 + 5 + 10 + 9 + 5) * 0.001)
    assert simulator.simulate([short, long], engine).seconds < found.seconds


def test_turns_are_added_and_overlap_takes_the_longer(scale: Any) -> None:
    work = scale.WORKLOADS[0]
    plan = replace(scale.PLANS[0], learners=4, engines=4, tasks=2, samples=2)
    by_turns, ahead = scale.step(plan, work), scale.step(replace(plan, overlap=True), work)
    assert by_turns.seconds == pytest.approx(by_turns.rollout + by_turns.update + by_turns.weights)
    assert ahead.seconds == pytest.approx(max(ahead.rollout, ahead.update) + ahead.weights)


def test_more_machines_learn_faster_until_sending_weights_takes_longer(scale: Any) -> None:
    plan = scale.Plan("", scale.MODELS["7B"], learners=1, engines=0)
    one, eight, many = (scale.update_seconds(replace(plan, learners=n), 10**6) for n in (1, 8, 4096))
    assert one == pytest.approx(10 * 7.6e9 * 1e6 / (989e12 * scale.TRAINING_MFU))
    assert eight == pytest.approx(one / 8)
    assert many == pytest.approx(8 * 7.6e9 / plan.gpu.network)


def test_weights_cost_nothing_where_they_are_and_grow_with_the_gpus_they_go_to(scale: Any) -> None:
    plan = scale.Plan("", scale.MODELS["7B"], learners=1, engines=0)
    assert scale.weights_seconds(plan) == 0
    sent = 2 * 7.6e9 / scale.SEND_RATE
    assert scale.weights_seconds(replace(plan, engines=2)) == pytest.approx(2 * sent)
    assert scale.weights_seconds(replace(plan, engines=2, tensor_parallel=2)) == pytest.approx(2 * sent)
