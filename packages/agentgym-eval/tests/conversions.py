"""Helpers for tests of `convert`: play episodes, write them as records and read them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import Episode, EpisodeSpec, play
from agentgym_envs.agents.agent import Agent
from agentgym_eval.cli.convert import convert
from agentgym_eval.data.formats import content, read_data
from agentgym_eval.policies.policies import Oracle, Random
from counting_world import Count
from hypothesis import strategies as st

TEXT = st.text(max_size=12)


def play_episode(agent: str, goal: int = 4, sample: int = 0) -> Episode:
    env: Any = gymnasium.wrappers.TimeLimit(Count(), 12)
    policy = Random() if "retry" in agent else Oracle()
    return play(Agent.parse(agent).wrap(env), policy, EpisodeSpec(f"count/test/{goal}", sample, 0, "test"))


def write_records(path: Path, records: Any, to: str = "trl") -> Path:
    path.write_text(content(records, to), encoding="utf-8")
    return path


def convert_records(to: str, out: Path, *arguments: str | Path) -> Any:
    """Run `convert` and return the records that it wrote."""
    assert convert([*map(str, arguments), "--to", to, "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n")[:-1]]


def write_and_read(records: Any, to: str, folder: Path, **options: Any) -> list[Episode]:
    return list(read_data([write_records(folder / "file", records, to)], **options))
