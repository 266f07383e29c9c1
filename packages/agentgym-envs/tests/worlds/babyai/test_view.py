"""Tests of `View`: visible cells, paths, and the numbering of objects."""

from __future__ import annotations

import numpy as np
import pytest
from agentgym_envs.worlds.babyai.simulator import AHEAD, Move, Simulator
from agentgym_envs.worlds.babyai.view import View

pytestmark = pytest.mark.quick

LEVELS = ["BabyAI-GoToRedBall-v0", "BabyAI-BossLevel-v0", "BabyAI-GoToOpen-v0", "BabyAI-KeyCorridorS3R3-v0"]


def minigrid_visible_cells(simulator: Simulator) -> set[tuple[int, int]]:
    """Return the grid cells that Minigrid's own visibility mask shows."""
    _, mask = simulator.level.gen_obs_grid()
    (x, y), (fx, fy) = simulator.position, AHEAD[simulator.level.agent_dir]
    window = ((6 - row, column - 3) for column, row in zip(*np.nonzero(mask), strict=True))
    return {(int(x + fx * depth - fy * side), int(y + fy * depth + fx * side)) for depth, side in window}


@pytest.mark.parametrize("level", LEVELS)
def test_visible_cells_match_minigrid(level: str) -> None:
    simulator, rng = Simulator(level), np.random.default_rng(7)
    for seed in range(5):
        simulator.reset(seed)
        for _ in range(60):
            view = View(simulator)
            assert len(view.cells) == len(set(view.cells))
            assert set(view.cells) == minigrid_visible_cells(simulator)
            if not simulator.do(Move(int(rng.integers(6)))):
                break


@pytest.mark.parametrize("level", LEVELS)
def test_path_ends_facing_the_object(level: str) -> None:
    simulator, paths_walked = Simulator(level), 0
    for seed in range(20):
        simulator.reset(seed)
        view = View(simulator)
        for thing in view.things:
            if not view.reachable(thing):
                with pytest.raises(ValueError, match=r"check `reachable`"):
                    view.path(thing)
                continue
            simulator.reset(seed)
            for move in view.path(thing):
                simulator.do(move)
            assert simulator.ahead == thing.cell
            paths_walked += 1
    assert paths_walked > 20


def test_objects_are_numbered_by_distance() -> None:
    simulator = Simulator("BabyAI-GoToLocal-v0")
    for seed in range(40):
        simulator.reset(seed)
        things = View(simulator).things
        distances = [thing.depth + abs(thing.side) for thing in things]
        assert distances == sorted(distances)
        assert len({thing.name for thing in things}) == len(things)
        for thing in things:
            kind, number = thing.name.rsplit(" ", 1)
            assert number == "1" or f"{kind} {int(number) - 1}" in {other.name for other in things}
