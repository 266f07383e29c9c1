"""Which worlds there are. A world is one line here and one folder under `worlds`; importing this imports neither."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from agentgym_envs.core.text_env import TextEnv
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.redaction import redacted, resolved


@dataclass(frozen=True, slots=True)
class RegisteredWorld:
    """A registered world."""

    id: str
    """Gymnasium id."""
    entry_point: str
    max_episode_steps: int
    """Turns after which Gymnasium's `TimeLimit` truncates, unless `make` is told otherwise."""
    agent: str = "react"
    """Who plays it unless another is asked for, as `Agent.parse` takes it."""
    about: str = ""
    """What there is to do, in a sentence."""


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

REMOTE = "agentgym/Remote-v0"
"""Any of them, or another, on a server; see `agentgym_envs.remote.env.RemoteEnv`. It keeps the limits of the server."""


def register_worlds() -> None:
    """Make the worlds known to `gymnasium.make`. Importing `agentgym_envs` does this."""
    for world in WORLDS:
        # Our contract tests check every world; checking each step again would cost more than most steps do.
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


def find_spec(world_id: str) -> EnvSpec:
    """What is registered as `world_id`; for `MODULE:ID`, once MODULE is imported.

    Raises:
        ValueError: when there is no such world or module; the message names what there is.
    """
    module, colon, name = world_id.rpartition(":")
    if colon:
        import_named(module, f"the world {world_id}")
    if name not in gymnasium.registry:
        known = [world.id for world in WORLDS]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"There is no world {name!r}.{hint} There are: {', '.join(known)}.")
    return gymnasium.registry[name]


def world_class(world_id: str) -> type[TextEnv] | None:
    """The class of a world, which is imported; None for one that isn't a `TextEnv`, or is made by a function.

    Raises:
        ValueError: when there is no such world.
        ImportError, gymnasium.error.DependencyNotInstalled: when a package that it needs is missing.
    """
    entry = find_spec(world_id).entry_point
    made = load_env_creator(entry) if isinstance(entry, str) else entry
    return made if isinstance(made, type) and issubclass(made, TextEnv) else None


def look_here() -> None:
    """Let the modules of worlds (`MODULE:ID`) be found in the working folder too, as `python -m` would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # the last one: nothing that lies there stands before what is installed


def full_id(name: str) -> str:
    """The Gymnasium id for a short name such as `textcraft`; any other name as it is."""
    short = {world.id.partition("/")[2].rpartition("-v")[0].lower(): world.id for world in WORLDS}
    return short.get(name.lower(), name)


def read_resolved(pair: str) -> tuple[str, Any]:
    """As `read_option`, with the environment's values in place of references such as `${WORLD_TOKEN}`. They are text,
    whatever they look like; only a variable that is the whole value may hold a dict, list or tuple.

    Raises:
        ValueError: as `read_option`, and for a variable that isn't set.
    """
    key, value = read_option(pair)
    read = _with_references(value)
    if isinstance(read, str) and read != value:
        with suppress(ValueError, SyntaxError):
            whole = ast.literal_eval(read)
            return key, whole if isinstance(whole, dict | list | tuple) else read
    return key, read


def _with_references(value: Any) -> Any:
    if isinstance(value, str):
        return resolved(value)
    if isinstance(value, dict):
        return {_with_references(key): _with_references(each) for key, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_references, cast(list[Any], value)))
    return value


def read_option(pair: str) -> tuple[str, Any]:
    """Key and value of the option in `KEY=VALUE`; a value that is no Python literal is taken as text.

    Raises:
        ValueError: for a pair without a key or `=`.
    """
    key, equals, value = pair.partition("=")
    if not (key.isidentifier() and equals):
        raise ValueError(f"The world's option {redacted(pair)!r} is not of the form KEY=VALUE, such as depth=(2,3).")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def make(world_id: str, **options: Any) -> gymnasium.Env[str, str]:
    """`gymnasium.make` with errors that say what to do next.

    Raises:
        ValueError: when there is no such world, it doesn't take one of the options, or it lacks one.
        gymnasium.error.DependencyNotInstalled: when the world's extra is missing; the message has the command.
    """
    spec = find_spec(world_id)
    try:
        return gymnasium.make(spec, **options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and (unknown := sorted(options.keys() - _taken(spec))):
            raise UnknownOption(_without(spec, unknown[0])) from error
        if "required keyword-only argument" in str(error):
            raise ValueError(f"{spec.id} was made without an option it needs: {error}") from error
        raise


class UnknownOption(ValueError):
    """A world was made with an option that it doesn't have; the message names those that it has."""


_OF_ALL = ("render_mode", "max_episode_steps")
"""Options that every world has, and that commands have flags for."""


def world_options(spec: EnvSpec) -> list[str]:
    """The options that a world can be made with, as the constructors of its class name them, in their order."""
    return [name for name in _taken(spec) if name not in _OF_ALL]


def _without(spec: EnvSpec, option: str) -> str:
    known = world_options(spec)
    near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    there_are = f" Its options: {', '.join(known)}." if known else " It has no options."
    return f"{spec.id} has no option {option!r}.{hint}{there_are}"


def _taken(spec: EnvSpec) -> dict[str, None]:
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    makers = [base.__init__ for base in getattr(creator, "__mro__", ()) if "__init__" in base.__dict__] or [creator]
    taken = dict[str, None]()
    for maker in makers:
        parameters = list(inspect.signature(maker).parameters.values())  # type: ignore[arg-type]
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        taken |= dict.fromkeys(name for name in named if name != "self")
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break  # what this one doesn't name, it doesn't pass on
    return taken | dict.fromkeys(_OF_ALL)


def text_env(env: gymnasium.Env[Any, Any]) -> TextEnv:
    """The world under the wrappers.

    Raises:
        TypeError: when it is not one of ours.
    """
    world = env.unwrapped
    if not isinstance(world, TextEnv):
        raise TypeError(f"{world} is not a TextEnv; only worlds under the contract of TextEnv can be played.")
    return world
