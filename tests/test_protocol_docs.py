"""Tests that documents and recipes agree with the protocols: settings, limits, and intervals of published results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from agentgym_eval.metrics.intervals import share
from agentgym_eval.runs.protocols import PROTOCOLS
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon, StepHorizon
from agentgym_trainer.recipes import RECIPES
from documents import ROOT

pytestmark = pytest.mark.quick

PROTOCOL = PROTOCOLS["agentgym-rl"]
PAGE = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """Return the rows of the table with this header, as cells without backticks."""
    _, found, after = PAGE.partition(f"{header}\n")
    assert found, header
    rows = re.match(r"(?:\|.*\n)+", after)
    assert rows
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows[0].splitlines()[1:]]


def test_the_page_has_the_settings_of_each_environment() -> None:
    rows = table("| environment | tasks | turns | tokens per reply |")
    assert {name: list(map(int, numbers)) for name, *numbers in rows} == {
        name: [settings.tasks, settings.horizon, settings.max_tokens] for name, settings in PROTOCOL.envs.items()
    }


@pytest.mark.parametrize("name", PROTOCOL.envs)
def test_recipes_of_the_paper_train_up_to_the_limits_of_its_evaluations(name: str) -> None:
    limits = PROTOCOL.envs[name]
    fixed, scaling = (RECIPES[f"{name}-{kind}"].config for kind in ("grpo", "scaling"))
    assert isinstance(fixed, RLConfig)
    assert isinstance(scaling, RLConfig)
    assert fixed.horizon == FixedHorizon(limits.horizon)
    assert isinstance(scaling.horizon, StepHorizon)
    assert scaling.horizon.stages[-1] == limits.horizon
    assert fixed == replace(scaling, horizon=fixed.horizon)
    assert (fixed.generation.max_tokens, fixed.generation.temperature) == (limits.max_tokens, PROTOCOL.temperature)


def test_published_results_have_the_intervals_of_their_numbers_of_tasks() -> None:
    header = "| model | WebArena | SearchQA | TextCraft | BabyAI | SciWorld |"
    tasks = [PROTOCOL.envs[name.strip().lower()].tasks for name in header.split("|")[2:-1]]
    rows = table(header)
    assert len(rows) >= 5
    for _, *cells in rows:
        for cell, count in zip(cells, tasks, strict=True):
            percent, low, high = map(float, re.findall(r"[\d.]+", cell))
            successes = round(percent / 100 * count)
            interval = share([1.0] * successes + [0.0] * (count - successes))
            assert percent == pytest.approx(interval.mean * 100, abs=0.25)
            assert [low, high] == pytest.approx([interval.low * 100, interval.high * 100], abs=0.051)
