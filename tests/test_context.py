"""Tests of `benchmarks/context.py`: copies of episodes with other letters, and contexts of the arms."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EpisodeSpec, Reply, make, play
from agentgym_eval.policies.policies import Oracle

FOLDER = Path(__file__).parent.parent / "benchmarks"
TASK = "Which of the two inclined planes (C, H) has the steepest angle? It is a task (or two)."


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("context_runs")


def test_copies_have_other_letters_in_all_of_their_texts(context: Any) -> None:
    played = play(make("agentgym/TextCraft-v0"), Oracle(), EpisodeSpec("textcraft/test/oak_button"))
    first, second = played.turns[0], "an inclined plane H, with: a block. Inclined plane C."
    action = "move block to inclined plane h"
    turn = replace(first, observation=TASK, reply=Reply(f"I knew.\n{action}: {second}"), action=action)
    copies = list(context.renamed([replace(played, turns=(turn, first), final_observation=second)]))
    assert len(copies) == context.COPIES
    pairs = set[tuple[str, str]]()
    for copy in copies:
        changed = copy.turns[0]
        c, h = re.findall(r"\b[A-J]\b", changed.observation)
        assert c != h
        swapped = str.maketrans({"C": c, "H": h})
        assert changed.observation == TASK.translate(swapped)
        assert changed.action == f"move block to inclined plane {h.lower()}"
        assert copy.final_observation == second.translate(swapped)
        assert changed.reply.text == f"I knew.\n{changed.action}: {copy.final_observation}"
        assert copy.turns[1] == first
        pairs.add((c, h))
    assert len(pairs) > context.COPIES / 2


def test_the_arms_differ_in_context_and_agent(context: Any) -> None:
    measured = context.Measured(episodes=84, actions=31.0, whole=565.0, first=24.0)
    assert [arm.context(measured) for arm in context.ARMS] == [context.FULL, 141, 141, context.FULL]
    assert [arm.agent(measured) for arm in context.ARMS] == ["bare", "bare", "bare+compact:70", "bare"]
    assert measured.limit + context.REPLY < measured.quarter  # as a run requires
