"""Tests of the warnings of a run: each is given once when its condition begins, and again when it recurs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from agentgym_envs.cli.flags import flag_names
from agentgym_trainer.config import RLConfig, Warnings
from agentgym_trainer.run.diagnostics import WARNINGS, Monitor

pytestmark = pytest.mark.quick

HEALTHY: dict[str, Any] = {
    "groups": {"all": 8, "ok": 5, "zero_variance": 3},
    "episodes": 64,
    "stops": {"terminated": 60, "length": 4},
    "success": 0.5,
    "score": 0.5,
    "advantage/mean_token": 0.01,
    "advantage_std": 0.5,
    "entropy": 1.0,
    "grad_norm": 0.5,
    "logprob_check_gap": 0.001,
    "group_return_std": 0.3,
    "mutual_information": 1.2,
}
FLAT: dict[str, Any] = {"groups": {"all": 8, "ok": 0, "zero_variance": 8}, "grad_norm": None}
PROBLEMS: dict[str, tuple[dict[str, Any], int]] = {
    "flat-groups": (FLAT, 1),
    "negative-advantage": ({"advantage/mean_token": -0.1}, 10),
    "entropy-collapse": ({"entropy": 0.05}, 10),
    "entropy-explosion": ({"entropy": 3.5}, 8),
    "length-stops": ({"stops": {"terminated": 40, "length": 24}}, 7),
    "engine-gap": ({"logprob_check_gap": 0.02}, 7),
    "low-return-variance": ({"group_return_std": 0.01}, 10),
    "template-collapse": ({"mutual_information": 0.1}, 8),
}
"""For each warning, the metrics that cause it, and how many such lines after 20 healthy lines trigger it."""


def lines(*parts: tuple[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `count` metrics lines with the changes of each part, one part after the other."""
    all_changes = [changes for count, changes in parts for _ in range(count)]
    return [HEALTHY | {"step": step, **changes} for step, changes in enumerate(all_changes, start=1)]


def warned(run: Iterable[Mapping[str, Any]], **settings: Any) -> list[tuple[int, str]]:
    """Return the step and the id of each warning."""
    monitor = Monitor(Warnings(**settings))
    return [(line["step"], warning.id) for line in run for warning in monitor.observe(line)]


def sentence(name: str, *parts: tuple[int, Mapping[str, Any]]) -> str:
    monitor = Monitor(Warnings())
    warnings = [warning for line in lines(*parts) for warning in monitor.observe(line) if warning.id == name]
    assert len(warnings) == 1
    return warnings[0].sentence


def test_healthy_run_has_no_warnings() -> None:
    assert warned(lines((80, {}))) == []
    assert PROBLEMS.keys() == {*WARNINGS}


@pytest.mark.parametrize("name", WARNINGS)
def test_warning_is_given_once_when_its_condition_begins(name: str) -> None:
    changes, after = PROBLEMS[name]
    run = lines((20, {}), (60, changes))
    assert warned(run) == [(20 + after, name)]


@pytest.mark.parametrize("name", WARNINGS)
def test_warning_recurs_only_after_a_healthy_window(name: str) -> None:
    changes, after = PROBLEMS[name]
    run = lines((20, {}), (15, changes), (30, {}), (15, changes))
    assert warned(run) == [(20 + after, name), (20 + 15 + 30 + after, name)]
    flickering = lines((20, {}), (15, changes), *([(1, {}), (2, changes)] * 5))
    assert warned(flickering) == [(20 + after, name)]


@pytest.mark.parametrize("name", WARNINGS)
def test_threshold_of_0_disables_a_warning(name: str) -> None:
    settings = {
        "flat-groups": "flat", "negative-advantage": "advantage", "entropy-collapse": "entropy_low",
        "entropy-explosion": "entropy_high", "length-stops": "length", "engine-gap": "gap",
        "low-return-variance": "return_std", "template-collapse": "template",
    }  # fmt: skip
    assert {*settings.values()} == {f.name for f in fields(Warnings)} - {"window", "template_every", "template_tasks"}
    run = lines((20, {}), (40, PROBLEMS[name][0]))
    assert warned(run)
    assert warned(run, **{settings[name]: 0}) == []


@pytest.mark.parametrize("name", WARNINGS)
def test_resumed_run_warns_like_an_uninterrupted_run(name: str) -> None:
    run = lines((20, {}), (25, PROBLEMS[name][0]))
    for stop in (10, 20 + PROBLEMS[name][1] - 1, 20 + PROBLEMS[name][1], 40):
        monitor = Monitor(Warnings())
        monitor.resume(run[:stop])
        resumed = [(line["step"], warning.id) for line in run[stop:] for warning in monitor.observe(line)]
        assert resumed == [found for found in warned(run) if found[0] > stop]


@pytest.mark.parametrize("invalid", [None, math.nan, -math.inf, "1", True, [], {}])
def test_nonfinite_and_invalid_metrics_are_ignored(invalid: Any) -> None:
    invalid_metrics = dict.fromkeys(HEALTHY, invalid)
    assert warned(lines((40, invalid_metrics))) == []
    assert warned([{"step": step} for step in range(1, 41)]) == []
    # They don't fill or end a window either: only lines with valid values count.
    gaps = [line | invalid_metrics if line["step"] % 2 else line for line in lines((40, {}), (40, {"entropy": 0.05}))]
    assert [name for _, name in warned(gaps)] == ["entropy-collapse"]


def test_negative_advantage_requires_a_whole_window_below_0() -> None:
    below = {"advantage/mean_token": -0.3}
    assert warned(lines(*([(9, below), (1, {})] * 4))) == []
    assert warned(lines((40, {"advantage/mean_token": -0.01}))) == []
    assert warned(lines((12, below))) == [(10, "negative-advantage")]
    assert warned(lines((12, below | {"teacher/weight": 1.0}))) == []  # the log-ratio to the teacher is in it
    assert "by 0.6 standard deviations on average" in sentence("negative-advantage", (10, below))
    assert warned(lines((12, below)), window=4) == [(4, "negative-advantage")]


@pytest.mark.parametrize("signal", [{"teacher/weight": 1.0}, {"label/weight": 1.0}])
def test_low_return_variance_is_no_problem_where_a_teacher_or_labels_train(signal: dict[str, Any]) -> None:
    low = {"group_return_std": 0.01}
    assert warned(lines((20, low | signal))) == []
    # Both may end before the run does.
    ended = low | {"teacher/kl": 0.3, "teacher/weight": 0.0}
    assert warned(lines((20, low | signal), (12, ended))) == [(30, "low-return-variance")]


def test_solved_tasks_give_no_entropy_warning() -> None:
    certain = {"entropy": 0.05}
    assert warned(lines((20, {}), (20, {**certain, "success": 0.97}))) == []
    assert "from 1 to 0.05 nats per token" in sentence("entropy-collapse", (20, {}), (30, certain))


@pytest.mark.parametrize("changes", [{"groups": FLAT["groups"]}, {"grad_norm": None}, {**FLAT, "skipped": 4}])
def test_flat_groups_warning_requires_flat_untrained_steps(changes: dict[str, Any]) -> None:
    assert warned(lines((20, changes))) == []


def test_flat_groups_advice_depends_on_the_score() -> None:
    hard = sentence("flat-groups", (1, {}), (3, {**FLAT, "score": 0.0}))
    assert hard.startswith(
        "Nothing was learned in step 2: within each of the 8 groups, nothing distinguishes the episodes"
    )
    assert "too hard for the model: use easier ones" in hard
    assert "too easy for the model: use harder ones" in sentence("flat-groups", (3, {**FLAT, "score": 1.0}))
    assert warned(lines((2, FLAT), (1, {}), (8, FLAT)), flat=3) == [(6, "flat-groups")]


def test_flat_steps_do_not_count_as_low_return_variance() -> None:
    all_flat = {**FLAT, "group_return_std": 0.0}
    assert warned(lines((20, {}), (30, all_flat))) == [(21, "flat-groups")]
    # Occasional groups that aren't flat do count.
    assert warned(lines(*([(4, all_flat), (1, {"group_return_std": 0.05})] * 4)))[-1] == (10, "low-return-variance")


def test_occasionally_measured_metrics_are_compared() -> None:
    run = lines((60, {}), (60, {"mutual_information": 0.1}))
    for line in run:
        if line["step"] % 3:
            del line["mutual_information"]
    assert warned(run) == [(60 + 3 * 8, "template-collapse")]
    assert warned(lines((30, {"mutual_information": 0.05}), (30, {"mutual_information": 0.0}))) == []


def test_noise_alone_does_not_warn() -> None:
    """The metrics vary by factors of e around their initial values."""
    names = ("entropy", "logprob_check_gap", "mutual_information", "advantage/mean_token", "group_return_std")
    rng, false_warnings = np.random.default_rng(0), 0
    for _ in range(10):
        noise = rng.lognormal(0, 1.0, (100, len(names)))
        length = rng.binomial(64, 0.06, 100)
        run = [
            line
            | {name: line[name] * factor for name, factor in zip(names, factors, strict=True)}
            | {"stops": {"terminated": 64 - int(cut), "length": int(cut)}}
            for line, factors, cut in zip(lines((100, {})), noise, length, strict=True)
        ]
        false_warnings += len(warned(run))
    assert false_warnings == 0


def test_advised_flags_exist() -> None:
    known = {f"--{name}" for name in (*flag_names(RLConfig()), *(f.name for f in fields(RLConfig)))}
    advised: set[str] = set()
    for name in WARNINGS:
        for score in (0.0, 1.0):
            text = sentence(name, (20, {}), (30, {**PROBLEMS[name][0], "score": score}))
            advised |= {flag.rstrip(".") for flag in re.findall(r"--[a-z][a-z0-9.-]*", text)}
    assert len(advised) > 10
    assert advised <= known


def test_invalid_thresholds_are_rejected() -> None:
    for settings, message in (
        ({"window": 1}, "a window of at least 2 steps"),
        ({"advantage": -0.1}, "thresholds from 0"),
        ({"template": 1.5}, "are shares below 1"),
        ({"gap": 0.5}, "are multiples above 1"),
        ({"template_tasks": 1}, "template_tasks must be at least 2"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(Warnings(), **settings)
