"""Runs on disk for tests of the viewer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, Reply, Turn

EVIL = "<script>alert(1)</script>"


def episode(
    task: str = "t/1",
    sample: int = 0,
    success: bool | None = True,
    *,
    turns: int = 2,
    said: str = "go north",
    env: str = "agentgym/Near-v0",
    **more: Any,
) -> Episode:
    failed = success is None
    turn = Turn("A room.", Reply(said), said, valid=True, reward=0.0, state_key="s")
    record: dict[str, Any] = {
        "env": env, "task_id": task, "split": "test", "category": "easy", "difficulty": 1, "policy": "p",
        "sample": sample, "instructions": "", "turns": (turn,) * turns, "final_observation": "The end.",
        "stop": "failed" if failed else "terminated" if success else "truncated",
        "score": None if failed else float(success), "success": success,
    }  # fmt: skip
    return Episode(**(record | more))


def write(path: Path, episodes: Sequence[Episode]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{each.to_json()}\n" for each in episodes), encoding="utf-8")
    return path


def evaluate(folder: Path, episodes: Sequence[Episode], *, done: bool = True, **about: Any) -> Path:
    """A run of evaluate; `about` is what else its run.json says."""
    write(folder / "episodes.jsonl", episodes)
    settings = {"env": "agentgym/Near-v0", "policy": "oracle", "split": "test"}
    (folder / "run.json").write_text(json.dumps({"schema": "agentgym.run/1", "settings": settings, **about}))
    if done:
        (folder / "report.json").write_text("{}")
    return folder


def train(folder: Path, steps: int = 4, *, first_stage: int = 2, split: str = "", tested: bool = False) -> Path:
    """A run of training: the horizon grows after `first_stage` steps; evaluations at both ends, of the split that its
    configuration names, if it does, and at its end the test, if it came so far.
    """
    for step in range(1, steps + 1):
        write(folder / "rollouts" / f"step-{step:06d}.jsonl", [episode("t/9", s, s < step) for s in range(4)])
        (folder / "rollouts" / f"step-{step:06d}.tokens.jsonl").write_text('{"schema": "agentgym.tokens/2"}\n')
    for step, good in ((0, 1), (steps, 3)):
        tasks = [episode(f"t/{task}", 0, task < good) for task in range(4)]
        write(folder / "evaluations" / f"step-{step:06d}-sampled.jsonl", tasks)
        if tested:
            played = [episode(f"test/{task}", 0, task <= good) for task in range(8)]
            write(folder / "evaluations" / f"test-{step:06d}-sampled.jsonl", played)
    config = {"model": "scratch"} | ({"evaluation": {"split": split}} if split else {})
    record = {"schema": "agentgym.train/2", "kind": "rl", "recipe": "quickstart", "config": config}
    (folder / "run.json").write_text(json.dumps(record))
    lines = [
        {
            "step": step,
            "success": step / 4,
            "loss": 1 / step,
            "horizon": 4 if step <= first_stage else 8,
            "stage": {"number": int(step > first_stage), "since": 0, "why": "steps" if step > first_stage else "begin"},
            split or "held_out": {"sampled": 0.5} if split else {},
            "worlds": {},
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 5, "succ')
    return folder
