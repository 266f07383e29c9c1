"""Episodes for tests of reports."""

from __future__ import annotations

from agentgym_envs import Episode, Reply, Turn

EVIL = "<script>alert(1)</script> $x_ | `\\"
"""A name with the special characters of HTML, formulas, Markdown tables and escapes."""


def episode(task: int, sample: int, success: bool | None, *, turns: int = 2, category: str = "easy") -> Episode:
    failed = success is None
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    return Episode(
        env="w", task_id=f"t/{task}", split="test", category=category, difficulty=task, policy="p", sample=sample,
        instructions="", turns=(turn,) * turns, final_observation="", stop="failed" if failed else "terminated",
        score=None if failed else float(success), success=success, error=f"Fault: {EVIL}" if failed else None,
    )  # fmt: skip


GOOD = [episode(task, sample, sample < task, turns=1 + task) for task in range(4) for sample in range(4)]
POOR = [episode(task, sample, sample < task - 2, turns=6) for task in range(4) for sample in range(4)]
BROKEN = [*GOOD, *(episode(9, sample, None if sample else True, category=EVIL) for sample in range(4))]
