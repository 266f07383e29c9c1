"""Tests of the shares of failure causes among a step's metrics, and of the success by which models are selected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.metrics.failure_causes import KINDS, ORACLE_KINDS, Distances
from agentgym_trainer.config import Evaluation
from agentgym_trainer.rollout.groups import EpisodeOutcome, GroupOutcome
from agentgym_trainer.run.metrics import (
    cut_while_improving,
    episode_metrics,
    evaluation_metrics,
    selection_means,
    selection_success,
    success_rate,
)
from agentgym_trainer.run.trackers import flat

pytestmark = pytest.mark.quick


def outcome(
    success: bool | None,
    *,
    valid: bool = True,
    moving: bool = True,
    task: str = "t",
    distances: Distances | None = None,
) -> EpisodeOutcome:
    states = [str(at) if moving else "here" for at in range(4)]
    turns = tuple(Turn(state, Reply("go"), "go", valid, 0.0, state) for state in states)
    stop = "failed" if success is None else "terminated" if success else "truncated"
    score = None if success is None else float(success)
    episode = Episode("w", task, "train", "c", 1, "p", 0, "", turns, "end", stop, score, success)
    return EpisodeOutcome.of(replace(episode, error="broke" if success is None else None), distances=distances)


def test_the_share_of_cut_episodes_is_that_of_the_stages_own_groups() -> None:
    cut, whole = (replace(outcome(False), cut=value) for value in (True, False))
    groups = [GroupOutcome(0, "ok", "keep", (cut, cut)), GroupOutcome(1, "ok", "keep", (cut, whole), stage=1)]
    assert [cut_while_improving(groups, stage) for stage in (0, 1, 2)] == [1.0, 0.5, None]


def test_causes_are_shares_of_the_episodes_that_did_not_break() -> None:
    played = [outcome(True), outcome(False), outcome(False, valid=False), outcome(False, moving=False), outcome(None)]
    metrics = episode_metrics(played)
    failures = metrics["failures"]
    assert [name for name, share in failures.items() if share] == ["invalid_actions", "loop", "turn_budget"]
    assert set(failures) == {*KINDS} - ORACLE_KINDS  # all of them in every step, so that curves have no gaps
    assert sum(failures.values()) + metrics["success"] == pytest.approx(1)
    assert flat(metrics)["failures/loop"] == pytest.approx(1 / 4)
    assert episode_metrics([outcome(None)])["failures"] == {}


def test_causes_that_need_the_expert_are_shares_of_sampled_evaluation_episodes() -> None:
    played = {
        "sampled": [outcome(True), outcome(False), outcome(False, distances=(2, 1, 1, 1, 1)), outcome(None)],
        "greedy": [outcome(False)],
    }
    found = evaluation_metrics(played, Evaluation(forensics=True))
    assert found["dev"] == {"sampled": pytest.approx(1 / 3), "greedy": 0}
    assert [*found["dev_failures"]] == [*KINDS]
    shares = {kind: share for kind, share in found["dev_failures"].items() if share}
    assert shares == {"over_interaction": pytest.approx(1 / 3), "turn_budget": pytest.approx(1 / 3)}
    assert evaluation_metrics(played, Evaluation(forensics=True), "elsewhere")["dev_failures"] == {}
    assert evaluation_metrics(played, Evaluation()) == {"dev": found["dev"]}
    assert evaluation_metrics({}, Evaluation(forensics=True)) == {"dev": {}}


def test_failed_episodes_do_not_raise_the_success_by_which_models_are_selected() -> None:
    solved = [outcome(True, task=f"easy/{i}") for i in range(31)]
    breaking = [*solved, *(outcome(None, task=f"hard/{i}") for i in range(9))]
    honest = [*solved, *(outcome(i == 0, task=f"hard/{i}") for i in range(9))]
    assert success_rate(breaking) == 1, "reports show success of the other episodes, with the number of failed ones"
    assert selection_success(breaking) == 31 / 40
    assert selection_success(honest) == 32 / 40
    assert selection_means([outcome(True), outcome(None)]) == {"w t": 0.5}
    other = [replace(outcome(False), world="v"), outcome(True)]
    assert selection_means(other) == {"v t": 0, "w t": 1}, "environments may have the same ids"
    assert success_rate([*other, replace(outcome(False, task="u"), world="v")]) == 1 / 3
    assert selection_success([outcome(None)]) == 0
    assert selection_success([]) is None
