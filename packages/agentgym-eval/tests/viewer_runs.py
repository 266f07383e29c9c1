"""Run folders on disk for tests of the viewer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, Reply, Turn

GetPage = Callable[..., str]
EVIL = "<script>alert(1)</script>"


def episode(
    task: str = "t/1",
    sample: int = 0,
    success: bool | None = True,
    *,
    turns: int = 2,
    reply: str = "go north",
    env: str = "agentgym/Near-v0",
    **fields: Any,
) -> Episode:
    failed = success is None
    turn = Turn("A room.", Reply(reply), reply, valid=True, reward=0.0, state_key="s")
    record: dict[str, Any] = {
        "env": env, "task_id": task, "split": "test", "category": "easy", "difficulty": 1, "policy": "p",
        "sample": sample, "instructions": "", "turns": (turn,) * turns, "final_observation": "The end.",
        "stop": "failed" if failed else "terminated" if success else "truncated",
        "score": None if failed else float(success), "success": success,
    }  # fmt: skip
    return Episode(**(record | fields))


def write_episodes(path: Path, episodes: Sequence[Episode]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{episode.to_json()}\n" for episode in episodes), encoding="utf-8")
    return path


def write_evaluation_run(folder: Path, episodes: Sequence[Episode], /, *, done: bool = True, **record: Any) -> Path:
    """Write a run of `evaluate`; `record` holds additional fields of its run.json."""
    write_episodes(folder / "episodes.jsonl", episodes)
    settings = {"env": "agentgym/Near-v0", "policy": "oracle", "split": "test"}
    (folder / "run.json").write_text(json.dumps({"schema": "agentgym.run/1", "settings": settings, **record}))
    if done:
        (folder / "report.json").write_text("{}")
    return folder


def write_training_run(
    folder: Path, steps: int = 4, *, first_stage: int = 2, split: str = "", with_test: bool = False
) -> Path:
    """Write a training run whose horizon grows after `first_stage` steps.

    It is evaluated before the first and after the last step, on `split` if that is given. `with_test` adds evaluations
    on the test split.
    """
    for step in range(1, steps + 1):
        write_episodes(folder / "rollouts" / f"step-{step:06d}.jsonl", [episode("t/9", s, s < step) for s in range(4)])
        (folder / "rollouts" / f"step-{step:06d}.tokens.jsonl").write_text('{"schema": "agentgym.tokens/2"}\n')
    for step, successes in ((0, 1), (steps, 3)):
        tasks = [episode(f"t/{task}", 0, task < successes) for task in range(4)]
        write_episodes(folder / "evaluations" / f"step-{step:06d}-sampled.jsonl", tasks)
        if with_test:
            test_episodes = [episode(f"test/{task}", 0, task <= successes) for task in range(8)]
            write_episodes(folder / "evaluations" / f"test-{step:06d}-sampled.jsonl", test_episodes)
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
