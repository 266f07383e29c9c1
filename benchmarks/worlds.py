"""How fast each registered world steps and resets on one core, as `gymnasium.make` gives it.

    uv run python benchmarks/worlds.py --seconds 5 --out worlds.json

Actions are drawn from `info["available_actions"]`, or are the oracle's (not timed) where a world can't list them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import agentgym_envs
import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of one world."""

    world: str
    steps: int
    resets: int
    steps_per_second: float
    resets_per_second: float


def measure(world: str, seconds: float) -> Speed:
    """Play random episodes for about `seconds`; time spent choosing actions and tasks isn't counted."""
    env = agentgym_envs.make(world)
    rng = np.random.default_rng(0)
    spent = {"step": 0.0, "reset": 0.0}
    count = {"step": 0, "reset": 0}

    def timed(what: str, call: Any, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **options)
        spent[what] += time.perf_counter() - began
        count[what] += 1
        return result

    env.reset(seed=0)
    while sum(spent.values()) < seconds:
        _, info = timed("reset", env.reset)
        over = False
        while not over:
            *_, terminated, truncated, info = timed("step", env.step, choose(env, info, rng))
            over = terminated or truncated
    env.close()
    return Speed(world, count["step"], count["reset"], count["step"] / spent["step"], count["reset"] / spent["reset"])


def choose(env: gymnasium.Env[str, str], info: dict[str, Any], rng: np.random.Generator) -> str:
    """A random available action, or the oracle's where they aren't listed."""
    available = info["available_actions"]
    return agentgym_envs.text_env(env).oracle() if available is None else available[rng.integers(len(available))]


def main() -> None:
    """Measure all worlds, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="time per world")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    speeds: list[Speed] = []
    print(f"{'world':<28}{'steps/s':>12}{'resets/s':>12}{'ms/reset':>12}")
    for world in agentgym_envs.WORLDS:
        try:
            speed = measure(world.id, asked.seconds)
        except DependencyNotInstalled as missing:
            print(f"{world.id:<28}  {missing}")
            continue
        speeds.append(speed)
        rates = (speed.steps_per_second, speed.resets_per_second, 1000 / speed.resets_per_second)
        print(f"{world.id:<28}{rates[0]:>12,.0f}{rates[1]:>12,.0f}{rates[2]:>12.2f}")
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(speed) for speed in speeds], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
