"""ScienceWorld's gold paths, generated once per variation and cached on disk. Independent of the current episode."""

from __future__ import annotations

import json
import re
from contextlib import closing
from itertools import groupby, pairwise

from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.worlds.sciworld.simulator import (
    ALREADY_OPEN,
    UNKNOWN,
    UNRESOLVED,
    WAITED,
    Setup,
    Simulator,
    jar_version,
)

EDITION = 3
"""The version of this module's post-processing; cached gold paths of other versions are not used."""

_ROOMS = "art studio|bathroom|bedroom|foundry|greenhouse|hallway|kitchen|living room|outside|workshop"
_POUR = re.compile(rf"pour ((?:(?! into ).)+?(?: in (?:{_ROOMS}))?) in ((?:(?! into ).)+)")

_NAMED = (
    ("focus on .+", r"You focus on the (.+)\."),
    ("pick up .+", r"You move the (.+) to the inventory\."),
    ("move .+ to .+", r"You move the (.+) to the (.+)\."),
)
"""Forms of actions, and of the answers that name their objects."""


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
        for attempt in (observant(shortened(path)), shortened(path), path):
            for rename in (True, False):
                understood = _played(sibling, setup, attempt, rename)
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


def observant(path: list[str]) -> list[str]:
    """Insert a look between an arrival and a focus.

    Some of ScienceWorld's gold paths focus on what they haven't seen: `go to outside`, `focus on crocodile`.
    """
    found: list[str] = []
    for before, action in pairwise(["", *path]):
        unseen = before.startswith(("go to ", "teleport to ")) and action.startswith("focus on ")
        found += ["look around", action] if unseen else [action]
    return found


def named(action: str, answer: str) -> str:
    """Use the name of an object that the answer has, which observations have, too.

    ScienceWorld's gold paths have internal names: `focus on egg giant tortoise` is answered by "You focus on the giant
    tortoise egg."
    """
    for form, said in _NAMED:
        if re.match(form, action) and (found := re.fullmatch(said, answer.strip())):
            return found.expand(form.replace(".+", r"\1", 1).replace(".+", r"\2", 1))
    return action


def _played(game: Simulator, setup: Setup, path: list[str], rename: bool = False) -> list[str]:
    """Play `path` and return the actions that were understood, up to the end of the game; empty if it doesn't succeed.

    ScienceWorld's gold paths sometimes name objects that don't exist, which takes no time, or ignore a question, which
    cancels it and takes as much time as `wait1`. A question at the end has to be answered. If all doors are open, the
    paths open them nevertheless, which is left out. With `rename`, objects have the names of the answers.
    """
    open_doors = {"openDoors", "easy"} & {*setup.simplifications.split(",")}
    game.load(setup)
    understood: list[str] = []
    asking = False
    for action in (*path, "0"):
        answer = game.step(action)
        if answer.startswith(UNRESOLVED) and asking:
            understood[-1] = "wait1"
        elif not answer.startswith(UNKNOWN) and not (open_doors and answer.startswith(ALREADY_OPEN)):
            understood.append(named(action, answer) if rename else action)
        standing = game.standing()
        asking = standing.asking
        if standing.completed:
            return understood
    return []
