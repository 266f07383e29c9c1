"""A game to read. It changes only on purpose: `uv run python <this file>` writes `golden.txt` anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentgym_envs.registry import make, text_env

GOLDEN = Path(__file__).parent / "golden.txt"
GAMES = {
    "textcraft/test/flower_pot": ["get 3 brick", "craft 1 flower pot using 3 brick"],
    "textcraft/test/red_sandstone_stairs": [
        "inventory",
        "get 6 red sandstone",
        "get 4 red sandstones",
        "craft 1 red sandstone using 4 red sand",
        "Get 24 red_sand.",
        "craft 5 red sandstone using 24 red sand",
        "craft 6 red sandstone using 24 red sand",
        "inventory",
        "craft 4 red sandstone stairs using 6 sand",
        "build some stairs",
        "craft 4 red sandstone stairs using 6 red sandstone",
    ],
    "textcraft/train/campfire": [
        "get 1 oak log",
        "get 1 spruce log",
        "get 1 dark oak log",
        "get 1 coal",
        "craft 1 campfire using 1 charcoal or coal, 3 logs, 3 stick",
        "craft 4 oak planks using 1 oak logs",
        "get 3 bamboo",
        "get 1 birch log",
        "craft 8 stick using 4 oak planks",
        "craft 1 campfire using 1 coal, 1 birch log, 2 logs, 3 stick",
    ],
}


def transcript() -> Iterator[str]:
    env = make("agentgym/TextCraft-v0")
    yield text_env(env).instructions
    for task, actions in GAMES.items():
        observation, _ = env.reset(seed=0, options={"task": task})
        yield f"\n=== {task}\n\n{observation}"
        for action in actions:
            observation, reward, terminated, _, info = env.step(action)
            marks = [f"reward {reward}"] * bool(reward) + ["end"] * terminated + ["invalid"] * (not info["valid"])
            yield f"\n> {action}\n{observation}" + (f"\n({', '.join(marks)})" if marks else "")


def test_the_golden_game() -> None:
    assert "\n".join(transcript()) + "\n" == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(transcript()) + "\n", encoding="utf-8")
