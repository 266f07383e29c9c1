"""The same game is the same to the byte: alone, among others in one JVM, in another JVM, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.tasks import kinds
from share import share

Game = tuple[str, list[str]]
Said = list[Any]


def game(name: str, turns: int) -> Game:
    """The oracle's first actions of the first test variation, with some of a wanderer's before them."""
    task = f"sciworld/test/{name}/{kinds()[name].variations('test')[0]}"
    world = SciWorld()
    world.reset(options={"task": task})
    actions = ["look around", "open door", "0", "inventory"]
    over = False
    for action in actions:
        world.step(action)
    while not over and len(actions) < turns:
        actions.append(world.oracle())
        over = world.step(actions[-1])[2]
    world.close()
    return task, actions


def moves(world: SciWorld, played: Game) -> Iterator[Any]:
    task, actions = played
    yield world.reset(options={"task": task})
    for action in actions:
        yield world.step(action)


def alone(played: Game, **options: Any) -> Said:
    world = SciWorld(**options)
    said = list(moves(world, played))
    world.close()
    return said


def together(games: Sequence[Game], **options: Any) -> list[Said]:
    worlds = [SciWorld(**options) for _ in games]
    said: list[Said] = [[] for _ in games]
    rounds = [moves(world, played) for world, played in zip(worlds, games, strict=True)]
    while any(at := [next(one, None) for one in rounds]):
        for transcript, move in zip(said, at, strict=True):
            transcript.extend([move] if move else [])
    for world in worlds:
        world.close()
    return said


def in_a_subprocess(games: Sequence[Game]) -> list[Said]:
    code = (
        "import json, sys\nfrom agentgym_envs.worlds.sciworld.env import SciWorld\nworld = SciWorld()\n"
        "print(json.dumps([[world.reset(options={'task': t}), *map(world.step, a)] for t, a in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(games), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def compare(names: Sequence[str], turns: int, *, jvms: Sequence[int]) -> None:
    games = [game(name, turns) for name in names]
    expected = [alone(played, patience=58.0) for played in games]  # each has a JVM for itself
    for most in jvms:
        assert together(games[::-1], jvms=most) == expected[::-1]
    assert in_a_subprocess(games) == json.loads(json.dumps(expected))


@pytest.mark.long
def test_all_tasks_are_the_same_everywhere() -> None:
    compare(share(list(kinds()), 15), 12, jvms=[1, 2])


@pytest.mark.long
def test_games_that_draw_lots_while_they_are_played_have_a_jvm_of_their_own() -> None:
    worlds = [SciWorld() for _ in range(4)]
    for world, name in zip(worlds, ("boil", "melt", "grow-fruit", "grow-fruit"), strict=True):
        world.reset(options={"task": f"sciworld/test/{name}/{kinds()[name].variations('test')[0]}"})
    boil, melt, *fruit = (world.jvm_pid for world in worlds)
    assert boil == melt
    assert len({boil, *fruit}) == 3
    worlds[2].reset(options={"task": "sciworld/test/boil/21"})
    assert worlds[2].jvm_pid == boil
    for world in worlds:
        world.close()
