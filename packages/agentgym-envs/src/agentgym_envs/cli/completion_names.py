"""The names that complete the values of flags: environments, policies, recipes and so on, of all installed packages.

They are those that `agentgym list` shows. Collecting them imports the packages of the commands, but no environment, and
none of the plug-ins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from agentgym_envs.agents.names import FORMAT_NAMES
from agentgym_envs.agents.names import GROUP as AGENTS
from agentgym_envs.agents.prompts import GROUP as PROMPTS
from agentgym_envs.agents.scaffold import SYNTAX
from agentgym_envs.cli.completion import Completed, Flag, flags_of
from agentgym_envs.core.registration import GROUP as ENVIRONMENTS
from agentgym_envs.core.registration import WORLDS
from agentgym_envs.util.diagnosis import Probe
from agentgym_envs.util.listing import Listed

SECTION_OF = {
    "env": "environments",
    "world.env": "environments",
    "policy": "policies",
    "agent": "agents",
    "world.agent": "agents",
    "prompt": "prompts",
    "world.prompt": "prompts",
    "protocol": "protocols",
    "algorithm": "algorithms",
    "algorithm.advantages": "advantages",
    "horizon": "horizons",
    "sampler": "samplers",
    "reward": "rewards",
    "engine.kind": "engines",
}
"""The section of `agentgym list` whose names a flag takes."""
_HARNESSES = "agentgym.harnesses"
_SAFE = re.compile(r"\+?[\w.:/@+-]+")
"""Names that a shell takes as they are."""


def completed_commands(
    commands: Mapping[str, tuple[str, EntryPoint]],
    listings: Mapping[str, EntryPoint],
    probes: Iterable[EntryPoint],
) -> dict[str, Completed]:
    """Return what is completed after each command.

    Args:
        commands: Each command's description and function.
        listings: The sections of `agentgym list`; see `agentgym_envs.util.listing`.
        probes: The checks of `agentgym doctor`.
    """

    @cache
    def names(section: str) -> tuple[str, ...]:
        if section == "environments":  # describing them would import them
            return (*(world.short_name for world in WORLDS), *_registered(ENVIRONMENTS))
        if section == "agents":  # describing them would import Gymnasium
            return (*FORMAT_NAMES, *_registered(AGENTS), *_typed(f"+{habit}" for habit in SYNTAX.values()))
        if section == "prompts":  # these, too
            return _registered(PROMPTS)
        return tuple(_typed(listed.name for listed in _call(listings[section].load()))) if section in listings else ()

    def with_names(flag: Flag, command: str) -> Flag:
        name = flag.name.removeprefix("--")
        if flag.values or (name == "horizon" and command != "train"):  # elsewhere, it is a number of turns
            return flag
        every = ("all",) if name == "env" else ()
        found = (*names(SECTION_OF[name]), *every) if name in SECTION_OF else ()
        return replace(flag, values=_registered(_HARNESSES) if name == "harness" else found)

    direct: dict[str, Callable[[], Sequence[str]]] = {
        "train": lambda: names("recipes"),
        "check": lambda: names("environments"),
        "list": lambda: (*listings, *(name for section in listings for name in names(section) if _is_plain(name))),
        "new": lambda: ("world",),
    }
    result = dict[str, Completed]()
    for command, (about, point) in commands.items():
        flags = [with_names(flag, command) for flag in flags_of(point)]
        if command == "doctor":
            checks = tuple(_typed(probe.name for group in probes for probe in _call(group.load())))
            flags = [replace(flag, values=checks) if flag.name == "--only" else flag for flag in flags]
        result[command] = Completed(about, flags, tuple(dict.fromkeys(direct[command]())) if command in direct else ())
    return result


def _call(provide: Callable[[], Iterable[Listed | Probe]]) -> Iterable[Listed | Probe]:
    return provide()


def _registered(group: str) -> tuple[str, ...]:
    return tuple(_typed(point.name for point in entry_points(group=group)))


def _typed(names: Iterable[str]) -> Iterable[str]:
    """Yield what one types of each name: `+plan` of `+plan[:N]`, `hf:` of `hf:PATH`, nothing of `MODULE:NAME`."""
    for name in names:
        typed = re.sub(r":[A-Z]+$", ":", re.sub(r"\[.*", "", name))
        if _SAFE.fullmatch(typed) and not typed[:-1].isupper():
            yield typed


def _is_plain(name: str) -> bool:
    return not name.startswith("+") and not name.endswith(":")
