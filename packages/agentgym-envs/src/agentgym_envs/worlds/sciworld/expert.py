"""ScienceWorld's gold paths, generated once per variation and cached on disk. Independent of the current episode."""

from __future__ import annotations

import json
import re
from contextlib import closing
from itertools import groupby

from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.worlds.sciworld.simulator import UNKNOWN, UNRESOLVED, WAITED, Setup, Simulator, jar_version

EDITION = 2
"""The version of this module's post-processing; cached gold paths of other versions are not used."""

_ROOMS = "art studio|bathroom|bedroom|foundry|greenhouse|hallway|kitchen|living room|outside|workshop"
_POUR = re.compile(rf"pour ((?:(?! into ).)+?(?: in (?:{_ROOMS}))?) in ((?:(?! into ).)+)")


def gold_path(simulator: Simulator, setup: Setup) -> tuple[str, ...]:
    """Return the actions that solve a game from its start; if ScienceWorld's gold path fails, it is returned as it is.

    Generating one takes 1 to 25 s, during which other games of the JVM may have to wait. It is then cached in the
    user's cache folder, by the version of the package `scienceworld`.

    Raises:
        EnvFault: if the JVM failed.
    """
    game = "-".join((str(setup.variation), *setup.simplifications.split(","))).rstrip("-")
    file = cache_folder("sciworld", f"{jar_version()}-{EDITION}", setup.task) / f"{game}.json"
    try:
        return tuple(map(worded, json.loads(file.read_text(encoding="utf-8"))))
    except (FileNotFoundError, ValueError):  # not generated yet, or damaged
        path = _make(simulator, setup)
    write_whole(file, json.dumps(path, indent=0))
    return tuple(map(worded, path))


def worded(action: str) -> str:
    """Reword `action` as in the instructions: ScienceWorld's gold paths sometimes use synonyms."""
    pour = _POUR.fullmatch(action)
    return f"pour {pour[1]} into {pour[2]}" if pour else re.sub(r"^drop ", "put down ", action)


def _make(simulator: Simulator, setup: Setup) -> list[str]:
    with closing(simulator.create_sibling()) as sibling:
        path = sibling.gold_path(setup)
        for attempt in (shortened(path), path):
            understood = _played(sibling, setup, attempt)
            if understood and _played(sibling, setup, understood) == understood:
                return understood
    return path


def shortened(path: list[str]) -> list[str]:
    """Replace ten looks at the same object, or ten short waits, by one `wait`, which takes as long.

    ScienceWorld's gold paths look at a sliding block until it has arrived, 700 times on a rough surface.
    """
    short: list[str] = []
    for action, group in groupby(path):
        times = len(list(group))
        idle = action == "wait1" or action.startswith("look at ")
        short += ["wait"] * (times // WAITED) + [action] * (times % WAITED) if idle else [action] * times
    return short


def _played(game: Simulator, setup: Setup, path: list[str]) -> list[str]:
    """Play `path` and return the actions that were understood, up to the end of the game; empty if it doesn't succeed.

    ScienceWorld's gold paths sometimes name objects that don't exist, which takes no time, or ignore a question, which
    cancels it and takes as much time as `wait1`. A question at the end has to be answered.
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
