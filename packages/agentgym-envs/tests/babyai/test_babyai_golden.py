"""Games to read. They change only on purpose: `uv run python <this file>` writes `golden.txt` anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentgym_envs.registry import make, text_env

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
    "babyai/test/GoToRedBall/1000000": [
        "go to red ball 1",
        "turn right",
        "open the box",
        "turn right",
        "turn right",
        "go to red ball 1",
    ],
    "babyai/test/KeyInBox/1000000": [
        "pickup purple box 1",
        "drop",
        "toggle",
        "turn left",
        "turn right",
        "turn right",
        "go to yellow locked door 1",
        "toggle and go through yellow locked door 1",
        "turn left",
        "turn left",
        "pick up yellow key 1",
        "turn right",
        "turn right",
        "toggle and go through yellow locked door 1",
    ],
}
"""Actions of a person who errs; the oracle brings each game to its end."""
ORACLES = [
    "babyai/test/PutNextLocal/1000001",
    "babyai/test/GoToSeqS5R2/1000003",
    "babyai/test/OpenDoorsOrderN2/1000002",
]


def transcript() -> Iterator[str]:
    env = make("agentgym/BabyAI-v0")
    yield text_env(env).instructions
    for task in (*GAMES, *ORACLES):
        observation, info = env.reset(seed=0, options={"task": task})
        yield f"\n=== {task}\n\n{observation}"
        script = iter(GAMES.get(task, ()))
        while not info["success"] and (action := next(script, text_env(env).oracle())):
            observation, reward, terminated, _, info = env.step(action)
            marks = [f"reward {reward}"] * bool(reward) + ["end"] * terminated + ["invalid"] * (not info["valid"])
            yield f"\n> {action}\n{observation}" + (f"\n({', '.join(marks)})" if marks else "")


def test_the_golden_games() -> None:
    assert "\n".join(transcript()) + "\n" == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(transcript()) + "\n", encoding="utf-8")
