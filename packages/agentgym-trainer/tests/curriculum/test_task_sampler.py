from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from agentgym_trainer.curriculum.task_sampler import MidSuccess, State, TaskSampler, Uniform, apportion, draw, evenly
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

IDS = [f"task/{i}" for i in range(10)]


def _draw(sampler: TaskSampler, count: int, seed: int = 0, state: State | None = None, without: set[str] | None = None):
    rng = np.random.default_rng(seed)
    return draw(sampler, IDS, count, state=state or {}, rng=rng, without=without or set())


@pytest.mark.parametrize("sampler", [Uniform(), MidSuccess()])
def test_tasks_are_drawn_without_replacement(sampler: TaskSampler) -> None:
    for count in (0, 1, 9, 10):
        assert len(set(_draw(sampler, count))) == count
    assert len(_draw(sampler, 25)) == 25
    assert set(_draw(sampler, 25)) <= set(range(10))


@pytest.mark.parametrize("sampler", [Uniform(), MidSuccess()])
def test_excluded_tasks_are_not_drawn_or_replaced(sampler: TaskSampler) -> None:
    assert sorted(_draw(sampler, 7, without=set(IDS[:4]))) == [4, 5, 6, 7, 8, 9]
    assert _draw(sampler, 3, without=set(IDS)) == []


def test_equal_seeds_draw_the_same_tasks() -> None:
    assert _draw(Uniform(), 5, seed=1) == _draw(Uniform(), 5, seed=1) != _draw(Uniform(), 5, seed=2)


def test_uniform_draws_all_tasks_equally_often() -> None:
    counts = Counter(task for seed in range(2000) for task in _draw(Uniform(), 2, seed))
    assert min(counts.values()) > 330
    assert max(counts.values()) < 470


def test_uniform_has_no_state() -> None:
    assert Uniform().after({}, {"task/0": 1.0}) == {}


def test_mid_success_prefers_medium_success_rates() -> None:
    state = {"task/0": 0.0, "task/1": 1.0, **dict.fromkeys(IDS[3:], 0.02), "task/2": 0.5}
    counts = Counter(task for seed in range(2000) for task in _draw(MidSuccess(floor=0.1), 1, seed, state))
    # The weights are 1 for the medium task and `floor` for the nine others.
    assert counts[2] / 2000 == pytest.approx(1 / 1.9, abs=0.05)
    assert counts[0] / 2000 == pytest.approx(0.1 / 1.9, abs=0.03)
    assert counts[1] / 2000 == pytest.approx(0.1 / 1.9, abs=0.03)


def test_mid_success_treats_unseen_tasks_as_medium() -> None:
    sampler = MidSuccess(floor=0.1, memory=0.5)
    assert sampler.weights(IDS[:2], {}) == [1.0, 1.0]
    state = sampler.after({}, {"task/0": 0.0})
    assert state == {"task/0": 0.25}
    assert sampler.weights(IDS[:2], state) == [pytest.approx(0.75), 1.0]
    for _ in range(20):
        state = sampler.after(state, {"task/0": 0.0})
    assert sampler.weights(IDS[:2], state) == [0.1, 1.0]


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.sampled_from(IDS), st.floats(0, 1)), max_size=8), st.integers(0, 8))
def test_mid_success_state_survives_json_at_any_step(history: list[dict[str, float]], stop: int) -> None:
    sampler, in_memory, reloaded = MidSuccess(), State(), State()
    for step, success in enumerate(history):
        if step == stop:
            reloaded = json.loads(json.dumps(reloaded))
        in_memory, reloaded = sampler.after(in_memory, success), sampler.after(reloaded, success)
    assert in_memory == reloaded
    assert all(0 <= p <= 1 for p in in_memory.values())
    assert _draw(sampler, 4, state=in_memory) == _draw(sampler, 4, state=reloaded)


@pytest.mark.parametrize(("floor", "memory"), [(0.0, 0.5), (1.1, 0.5), (0.1, -0.1), (0.1, 1.0)])
def test_settings_out_of_range_are_rejected(floor: float, memory: float) -> None:
    with pytest.raises(ValueError, match=r"needs a floor above 0 up to 1 and a memory from 0 to below 1, not"):
        MidSuccess(floor, memory)


@settings(max_examples=30)
@given(st.integers(0, 300), st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 9))
def test_apportioned_shares_are_within_one_of_exact(count: int, weights: list[float], seed: int) -> None:
    shares = apportion(count, weights, np.random.default_rng(seed))
    assert sum(shares) == count
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - count * weight / sum(weights)) < 1 + 1e-9


def test_apportion_is_proportional_in_the_long_run() -> None:
    rng = np.random.default_rng(0)
    totals = np.sum([apportion(4, (1, 20, 3), rng) for _ in range(3000)], axis=0)
    assert totals / totals.sum() == pytest.approx(np.array([1, 20, 3]) / 24, abs=0.01)


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 9))
def test_evenly_draws_all_tasks_equally_often(tasks: int, count: int, seed: int) -> None:
    ids = [f"t/{number}" for number in range(tasks)]
    counts = Counter(evenly(ids, count, np.random.default_rng(seed)))
    assert counts.total() == count
    assert set(counts) <= set(range(tasks))
    assert {counts[index] for index in range(tasks)} <= {count // tasks, -(-count // tasks)}
