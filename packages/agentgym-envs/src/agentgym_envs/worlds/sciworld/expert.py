"""ScienceWorld's own solutions, made once per variation and kept on disk. Knows no state of a game that is going on."""

from __future__ import annotations

import json
import re
from contextlib import closing
from itertools import groupby

from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.worlds.sciworld.simulator import UNKNOWN, UNRESOLVED, WAITED, Setup, Simulator, jar_version

EDITION = 2
"""Of what is done here to ScienceWorld's solutions; kept ones of another edition are made anew."""

_ROOMS = "art studio|bathroom|bedroom|foundry|greenhouse|hallway|kitchen|living room|outside|workshop"
_POUR = re.compile(rf"pour ((?:(?! into ).)+?(?: in (?:{_ROOMS}))?) in ((?:(?! into ).)+)")


def gold_path(simulator: Simulator, setup: Setup) -> tuple[str, ...]:
    """The actions that solve a game, from its beginning; where ScienceWorld's solution fails, what it does.

    Making one takes 1 to 25 s, during which the other games of the JVM wait at times; then it lies in the user's cache
    folder, under the version of the package `scienceworld`.

    Raises:
        EnvFault: when the JVM broke.
    """
    game = "-".join((str(setup.variation), *setup.simplifications.split(","))).rstrip("-")
    file = cache_folder("sciworld", f"{jar_version()}-{EDITION}", setup.task) / f"{game}.json"
    try:
        return tuple(map(worded, json.loads(file.read_text(encoding="utf-8"))))
    except (FileNotFoundError, ValueError):  # not made yet, or damaged
        path = _make(simulator, setup)
    write_whole(file, json.dumps(path, indent=0))
    return tuple(map(worded, path))


def worded(action: str) -> str:
    """`action` in the words of the instructions. ScienceWorld's solutions use others at times that mean the same."""
    pour = _POUR.fullmatch(action)
    return f"pour {pour[1]} into {pour[2]}" if pour else re.sub(r"^drop ", "put down ", action)


def _make(simulator: Simulator, setup: Setup) -> list[str]:
    with closing(simulator.beside()) as beside:
        path = beside.gold_path(setup)
        for attempt in (shortened(path), path):
            understood = _played(beside, setup, attempt)
            if understood and _played(beside, setup, understood) == understood:
                return understood
    return path


def shortened(path: list[str]) -> list[str]:
    """`path` with ten looks at the same thing, or ten short waits, as one `wait`, which takes as long.

    ScienceWorld's solutions look at a sliding block until it has arrived, 700 times where the surface is rough.
    """
    short: list[str] = []
    for action, group in groupby(path):
        times = len(list(group))
        idle = action == "wait1" or action.startswith("look at ")
        short += ["wait"] * (times // WAITED) + [action] * (times % WAITED) if idle else [action] * times
    return short


def _played(game: Simulator, setup: Setup, path: list[str]) -> list[str]:
    """What of `path` was understood, up to the end of the game; empty where it doesn't end in success.

    ScienceWorld's solutions ask at times for what isn't there, which takes no time, or talk past a question, which
    cancels it and takes as much time as `wait1`; a question at the end has to be answered.
    """
    game.load(setup)
    understood: list[str] = []
    asking = False
    for action in (*path, "0"):
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
