"""The registered environments, their names, and their registration with Gymnasium when it is imported.

Neither Gymnasium nor an environment is imported here, so that the commands start fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from agentgym_envs.util.importing import import_named


@dataclass(frozen=True, slots=True)
class RegisteredWorld:
    """A registered environment."""

    id: str
    """The Gymnasium id."""
    entry_point: str
    max_episode_steps: int
    """Turns after which Gymnasium's `TimeLimit` truncates, unless `make` gets another limit."""
    agent: str = "react"
    """The default agent, as `Agent.parse` takes it."""
    about: str = ""
    """A sentence about the tasks."""

    @property
    def short_name(self) -> str:
        """The name in lower case, without namespace and version, such as `textcraft`."""
        return self.id.partition("/")[2].rpartition("-v")[0].lower()


WORLDS = (
    RegisteredWorld(
        "agentgym/TextCraft-v0",
        "agentgym_envs.worlds.textcraft.env:TextCraft",
        60,
        about="Craft a Minecraft item from what can be gathered, by the game's recipes.",
    ),
    RegisteredWorld(
        "agentgym/BabyAI-v0",
        "agentgym_envs.worlds.babyai.env:BabyAI",
        100,
        about="Find, open, pick up and move things in the rooms of a grid.",
    ),
    RegisteredWorld(
        "agentgym/SciWorld-v0",
        "agentgym_envs.worlds.sciworld.env:SciWorld",
        250,
        about="Carry out a school science experiment in a simulated house.",
    ),
    RegisteredWorld(
        "agentgym/SearchQA-v0",
        "agentgym_envs.worlds.searchqa.env:SearchQA",
        10,
        agent="tags",
        about="Answer a question by searching a collection of passages.",
    ),
    RegisteredWorld(
        "agentgym/WebArena-v0",
        "agentgym_envs.worlds.webarena.env:WebArena",
        30,
        about="Complete an errand on web sites through a browser.",
    ),
)

GROUP = "agentgym.environments"
"""Entry points `NAME = MODULE:CONSTANT` of other packages: importing the module registers the environment whose id the
constant holds."""
REMOTE = "agentgym/Remote-v0"
"""An environment on a server, one of these or another, with the server's limits; see `remote.env.RemoteEnv`."""


def register_worlds() -> None:
    """Register the environments with Gymnasium. Importing `agentgym_envs` does this once Gymnasium is imported."""
    import gymnasium

    for world in WORLDS:
        # The contract tests check every environment; checking each step again would cost more than most steps.
        gymnasium.register(
            world.id,
            world.entry_point,
            max_episode_steps=world.max_episode_steps,
            disable_env_checker=True,
            vector_entry_point=f"agentgym_envs.vector.vector_env:{world.id}",
        )
    gymnasium.register(
        REMOTE,
        "agentgym_envs.remote.env:RemoteEnv",
        disable_env_checker=True,
        vector_entry_point=f"agentgym_envs.vector.vector_env:{REMOTE}",
    )


def register_with_gymnasium() -> None:
    """Register the environments now if Gymnasium is imported, and otherwise right after its import."""
    if "gymnasium" in sys.modules:
        register_worlds()
    else:
        sys.meta_path.insert(0, _AfterGymnasium())


class _AfterGymnasium(MetaPathFinder):
    """Finds Gymnasium as the other finders do, with a loader that registers the environments at the end."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return Gymnasium's specification; None for all other modules."""
        if fullname != "gymnasium":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader, self)
        return spec


class _Registering(Loader):
    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__
        module.__loader__ = module.__spec__.loader = self._loader  # which resources are read with
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        register_worlds()


def look_here() -> None:
    """Add the working folder to `sys.path`, as `python -m` does, so that `MODULE:ID` finds modules in it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file there shadows an installed package


def full_id(name: str) -> str:
    """Return the Gymnasium id for a short name such as `textcraft`, MODULE:ID for a name that an installed package has
    registered in the group `agentgym.environments`, and any other name unchanged.

    Raises:
        ValueError: if the module of an installed package's environment can't be imported.
    """
    short = {world.short_name: world.id for world in WORLDS}
    if name.lower() in short:
        return short[name.lower()]
    if "/" not in name and ":" not in name:
        for entry in entry_points(group=GROUP, name=name):
            module = import_named(entry.module, f"the environment {name}")
            return f"{entry.module}:{getattr(module, entry.attr)}"
    return name
