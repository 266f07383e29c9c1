"""Episodes that are converted, and what becomes of them."""

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


def played(agent: str, goal: int = 4, sample: int = 0) -> Episode:
    env: Any = gymnasium.wrappers.TimeLimit(Count(), 12)
    policy = Random() if "retry" in agent else Oracle()
    return play(Agent.parse(agent).wrap(env), policy, EpisodeSpec(f"count/test/{goal}", sample, 0, "test"))


def written(path: Path, found: Any, to: str = "trl") -> Path:
    path.write_text(content(found, to), encoding="utf-8")
    return path


def converted(to: str, out: Path, *more: str | Path) -> Any:
    """The records in what `convert` writes."""
    assert convert([*map(str, more), "--to", to, "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n")[:-1]]


def reread(found: Any, to: str, folder: Path, **options: Any) -> list[Episode]:
    return list(read_data([written(folder / "file", found, to)], **options))
