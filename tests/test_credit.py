"""Tests of `benchmarks/credit.py`: distances, advantages of turns, and agreement."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def credit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("credit")


@pytest.mark.parametrize("world", ["TextCraft", "BabyAI"])
def test_each_turn_of_the_expert_brings_the_goal_one_turn_closer(credit: Any, world: str) -> None:
    groups, success = credit.play_groups(credit.WORLDS[world], 1.0, 40, 1, seed=0)
    assert success == 1.0
    for episode in groups[0]:
        assert [turn.before for turn in episode] == list(range(len(episode), 0, -1))
        assert [turn.before - turn.after for turn in episode] == [1] * len(episode)


def test_the_distance_after_a_failed_last_turn_is_unknown(credit: Any) -> None:
    groups, success = credit.play_groups(credit.WORLDS["TextCraft"], 0.0, 2, 1, seed=0)
    assert success == 0.0
    assert all([turn.after is None for turn in episode] == [False, True] for episode in groups[0])


def turns(credit: Any, *rewards: float) -> list[Any]:
    return [
        importlib.import_module("credit_episodes").PlayedTurn("seen", f"state {k}", "two words", reward, 1, 0)
        for k, reward in enumerate(rewards)
    ]


def test_advantages_are_those_of_turns(credit: Any) -> None:
    groups = [[turns(credit, 0.0, 1.0), turns(credit, 0.0, 0.0, 0.0)], [turns(credit, 0.0), turns(credit, 1.0)]]
    batch = credit.token_batch(groups)
    assert batch.group_E.tolist() == [0, 0, 1, 1]
    plain = credit.turn_advantages(credit.ESTIMATORS["Dr. GRPO"], batch)
    assert plain.tolist() == [0.5, 0.5, -0.5, -0.5, -0.5, -0.5, 0.5]


def test_agreement_has_known_values(credit: Any) -> None:
    true = np.array([-2.0, -1.0, 1.0, 2.0])
    cases = {"same": true, "opposite": -true, "nothing": np.zeros(4), "monotone": true**3}
    found = {name: credit.agreement(estimate, true) for name, estimate in cases.items()}
    assert found["same"] == credit.Agreement(pytest.approx(1.0), pytest.approx(1.0), 1.0)
    assert found["opposite"] == credit.Agreement(pytest.approx(-1.0), pytest.approx(-1.0), 0.0)
    assert found["nothing"] == credit.Agreement(0.0, 0.0, 0.5)
    assert found["monotone"].spearman == pytest.approx(1.0)
    assert found["monotone"].pearson < 0.99
    interval = credit.with_intervals(cases["monotone"], true, np.arange(4))["pearson"]
    assert interval[1] <= interval[0] <= interval[2]
