"""ScienceWorld's own solutions, made once per variation and kept on disk. Knows no state of a game that is going on."""

from __future__ import annotations

import json

from agentgym_envs.files import cache_folder, write_whole
from agentgym_envs.worlds.sciworld.simulator import UNKNOWN, UNRESOLVED, Setup, Simulator, jar_version


def gold_path(simulator: Simulator, setup: Setup) -> tuple[str, ...]:
    """The actions that solve a game, from its beginning; empty where ScienceWorld has no solution.

    Making one takes 1 to 25 s, during which the other games of the JVM wait at times; then it lies in the user's cache
    folder, under the version of the package `scienceworld`.

    Raises:
        EnvFault: when the JVM broke.
    """
    game = "-".join((str(setup.variation), *setup.simplifications.split(","))).rstrip("-")
    file = cache_folder("sciworld", jar_version(), setup.task) / f"{game}.json"
    if not file.exists():
        beside = simulator.beside()
        path = beside.gold_path(setup)
        understood = _played(beside, setup, path)
        repaired = _played(beside, setup, understood)
        write_whole(file, json.dumps(repaired or understood, indent=0))
        beside.close()
    return tuple(json.loads(file.read_text(encoding="utf-8")))


def _played(game: Simulator, setup: Setup, path: list[str]) -> list[str]:
    """What of `path` was understood, up to the end of the game; empty where it doesn't end in success.

    ScienceWorld's solutions ask at times for what isn't there, which takes no time, or talk past a question, which
    cancels it and takes as much time as `wait1`.
    """
    game.load(setup)
    understood: list[str] = []
    asking = False
    for action in path:
        answer = game.step(action)
        if answer.startswith(UNRESOLVED) and asking:
            understood[-1] = "wait1"
        elif not answer.startswith(UNKNOWN):
            understood.append(action)
        standing = game.standing()
        asking = standing.asking
        if standing.completed:
            return understood
    return []
