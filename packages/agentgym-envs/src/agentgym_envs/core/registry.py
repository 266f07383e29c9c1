"""Environments by name: their specifications, options, and making them. Importing this module imports none of them."""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import os
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator

from agentgym_envs.core.registration import WORLDS, full_id
from agentgym_envs.core.text_env import TextEnv
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.redaction import redacted, resolved

EXTERNAL = {
    "browsergym": "agentgym_envs.adapters.from_browsergym:BrowserGymEnv",
    "gymnasium": "agentgym_envs.adapters.from_gymnasium:GymnasiumEnv",
    "inspect": "agentgym_envs.adapters.from_inspect:InspectEnv",
    "mcp": "agentgym_envs.adapters.from_mcp:McpEnv",
    "openenv": "agentgym_envs.adapters.from_openenv:OpenEnvEnv",
    "skyrl": "agentgym_envs.adapters.from_skyrl:SkyRLEnv",
    "textarena": "agentgym_envs.adapters.from_textarena:TextArenaEnv",
    "verifiers": "agentgym_envs.adapters.from_verifiers:VerifiersEnv",
}
"""Environments of other libraries, by the scheme of their names: `gymnasium:Blackjack-v1`."""
_EXTERNAL_ID = "external/External-v0"
_EXTERNAL_STEPS = 100  # turns after which an environment of another library is truncated, if none are registered
_PAID_AT_LIMIT = WrapperSpec("PaidAtLimit", "agentgym_envs.adapters.external:PaidAtLimit", kwargs={})


def find_spec(world_id: str) -> EnvSpec:
    """Return the specification that is registered as `world_id`, or under this short name (see `full_id`).

    For `MODULE:ID`, import MODULE first. An environment of another library (see `EXTERNAL`) needs no registration.

    Raises:
        ValueError: if there is no such environment or module; the message names those that exist.
    """
    world_id = full_id(world_id)
    if is_external(world_id):
        return _external_spec(world_id)
    module, colon, name = world_id.rpartition(":")
    imported = import_named(module, f"the environment {world_id}") if colon else None
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if imported is not None:
        raise ValueError(_unregistered(name, imported))
    known = [world.id for world in WORLDS]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"There is no environment {name!r}.{hint} There are: {', '.join(known)}.")


def _unregistered(name: str, module: ModuleType) -> str:
    """Return the error message for an environment that an imported module doesn't register."""
    if getattr(module, "__file__", "") is None:  # a namespace package: a folder without __init__.py
        folder = os.path.relpath(next(iter(module.__path__)))
        return (
            f"{module.__name__} is a folder without code of its own here, so it registers no environment {name!r}. Run "
            f"the command in that folder (cd {folder}), or name the module in it that registers the environment."
        )
    package = module.__name__.partition(".")[0]
    known = [spec.id for spec in gymnasium.registry.values() if code_module(spec).partition(".")[0] == package]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    hint = f"Did you mean {near[0]}?" if near else "Call gymnasium.register in it."
    return f"The module {module.__name__} registers no environment {name!r}. {hint}"


def code_module(spec: EnvSpec) -> str:
    """Return the name of the module with the class or function that creates an environment."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")


def is_external(world_id: str) -> bool:
    """Return whether an environment is one of another library."""
    scheme, colon, _ = world_id.partition(":")
    return bool(colon) and scheme in EXTERNAL


def _external_spec(world_id: str) -> EnvSpec:
    scheme, _, source = world_id.partition(":")
    if not source:
        raise ValueError(
            f"{world_id} names no environment: write {scheme}:NAME, with the name that the library has for one."
        )
    spec = EnvSpec(
        _EXTERNAL_ID,
        EXTERNAL[scheme],
        max_episode_steps=_registered_steps(source) if scheme == "gymnasium" else _EXTERNAL_STEPS,
        disable_env_checker=True,
        additional_wrappers=(_PAID_AT_LIMIT,),
        kwargs={"source": source},
    )
    spec.id = world_id
    return spec


def _registered_steps(source: str) -> int:
    """Return the limit of turns that an environment of Gymnasium is registered with. If there is no such environment,
    making it says so.
    """
    try:
        module, _, name = source.rpartition(":")
        if module:
            import_named(module, f"the environment gymnasium:{source}")
        return gymnasium.spec(name).max_episode_steps or _EXTERNAL_STEPS
    except (gymnasium.error.Error, ImportError):
        return _EXTERNAL_STEPS


def _make(spec: EnvSpec, options: dict[str, Any]) -> gymnasium.Env[str, str]:
    """Make an environment. Gymnasium checks the form of ids, which names of other libraries needn't have."""
    if not is_external(spec.id):
        return gymnasium.make(spec, **options)
    named = copy.copy(spec)
    named.id = _EXTERNAL_ID
    env: gymnasium.Env[str, str] = gymnasium.make(named, **options)
    if env.unwrapped.spec is not None:
        env.unwrapped.spec.id = spec.id
    return env


def world_class(world_id: str) -> type[TextEnv] | None:
    """Import the class of an environment. Returns None if it isn't a `TextEnv`, or if a function creates it.

    Raises:
        ValueError: if there is no such environment.
        ImportError, gymnasium.error.DependencyNotInstalled: if a package that it needs is missing.
    """
    entry = find_spec(world_id).entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    return creator if isinstance(creator, type) and issubclass(creator, TextEnv) else None


def read_resolved(pair: str) -> tuple[str, Any]:
    """Read an option as `read_option` does, and substitute environment variables for references like `${WORLD_TOKEN}`.

    The value of a variable is always text, unless the reference is the whole option and the variable holds a dict, list
    or tuple.

    Raises:
        ValueError: as `read_option`, and if a variable isn't set.
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
    """Return key and value of an option `KEY=VALUE`. A value that isn't a Python literal is text.

    Raises:
        ValueError: if the key or `=` is missing.
    """
    key, equals, value = pair.partition("=")
    if not (key.isidentifier() and equals):
        raise ValueError(f"The option {redacted(pair)!r} is not of the form KEY=VALUE, such as depth=(2,3).")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def make(world_id: str, **options: Any) -> gymnasium.Env[str, str]:
    """Make an environment as `gymnasium.make` does, with errors that explain what to do next.

    Args:
        world_id: The Gymnasium id, `MODULE:ID`, or a short name such as `textcraft`.
        **options: Keyword arguments of `gymnasium.make`.

    Raises:
        ValueError: if there is no such environment, it isn't a `TextEnv`, an option is unknown, or a required option is
            missing.
        gymnasium.error.DependencyNotInstalled: if the environment's extra is missing; the message gives the command.
    """
    spec = find_spec(world_id)
    try:
        env = _make(spec, options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and (unknown := sorted(options.keys() - _taken(spec))):
            raise UnknownOption(_without(spec, unknown[0])) from error
        if "required keyword-only argument" in str(error):
            raise ValueError(f"{spec.id} is missing a required option: {error}") from error
        raise
    if not isinstance(env.unwrapped, TextEnv):
        env.close()
        raise ValueError(
            f"{world_id} isn't a text environment (TextEnv): write gymnasium:{world_id}, or see "
            "docs/howto/use-other-environments.md."
        )
    return env


class UnknownOption(ValueError):
    """An option that the environment doesn't have. The message lists those that it has."""


_OF_ALL = ("render_mode", "max_episode_steps")
"""Options that every environment has, and for which commands have flags."""


def world_options(spec: EnvSpec) -> list[str]:
    """Return the options that an environment takes, in the order of its class's constructors."""
    return [name for name in _taken(spec) if name not in (*_OF_ALL, *spec.kwargs)]


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
            break  # without **kwargs, this constructor passes no further options on
    return taken | dict.fromkeys(_OF_ALL)


def text_env(env: gymnasium.Env[Any, Any]) -> TextEnv:
    """Return the `TextEnv` under the wrappers.

    Raises:
        TypeError: if it isn't a `TextEnv`.
    """
    world = env.unwrapped
    if not isinstance(world, TextEnv):
        raise TypeError(
            f"{world} isn't a text environment (TextEnv). docs/howto/use-other-environments.md explains how to play "
            "others."
        )
    return world
