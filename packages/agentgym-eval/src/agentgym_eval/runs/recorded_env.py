"""The environment of recorded episodes, opened to replay them.

A recorded environment id never imports a module, and options are those that a client of a server may set. So episodes
from an untrusted source can't make this machine run a program or read a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from agentgym_envs import TextEnv
from agentgym_envs.core.registration import full_id
from agentgym_envs.core.registry import find_spec, read_option
from gymnasium.envs.registration import load_env_creator


def recorded_class(env_id: str) -> type[TextEnv] | None:
    """Return the class of a recorded environment; None if it isn't registered in this process or not installed."""
    if ":" in env_id:
        return None
    try:
        entry_point = find_spec(env_id).entry_point
        env_class = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ValueError, ImportError, AttributeError, gymnasium.error.Error):
        return None
    return env_class if isinstance(env_class, type) and issubclass(env_class, TextEnv) else None


def client_options(env_class: type[TextEnv], settings: Mapping[str, Any], env_id: str) -> dict[str, Any]:
    """Return those of the recorded options that a client may set."""
    options = dict(map(read_option, raw_env_options(settings, env_id)))
    return {name: value for name, value in options.items() if name in env_class.client_options}


def raw_env_options(settings: Mapping[str, Any], env_id: str) -> list[str]:
    """Return the options, as KEY=VALUE strings, of the environment with this id in the settings of an evaluation or of
    a training run.
    """
    return _options(_world_settings(settings, env_id))


def recorded_prompt(settings: Mapping[str, Any], env_id: str) -> str:
    """Return the name of the prompt of the environment with this id in the settings of a run; empty if it has none.

    It may name code or a file, and the run may be somebody else's.
    """
    prompt = _world_settings(settings, env_id).get("prompt")
    return prompt if isinstance(prompt, str) else ""


def recorded_seed(settings: Mapping[str, Any]) -> int:
    """Return the seed in the settings of a run; 0 if there is no valid one."""
    seed = settings.get("seed")
    return seed if isinstance(seed, int) and seed >= 0 else 0


def _world_settings(settings: Mapping[str, Any], env_id: str) -> Mapping[str, Any]:
    """Return the settings of an evaluation, or those of one environment of a training run; empty if none match."""
    for candidate in (settings, settings.get("world"), *_list(settings, "extra_worlds")):
        if isinstance(candidate, dict) and isinstance(candidate.get("env"), str):
            within = str(dict(map(read_option, _options(candidate))).get("env", ""))
            names = [name for name in (candidate["env"], within) if name]
            if env_id in names or env_id in map(full_id, names):
                return candidate
    return {}


def _options(settings: Mapping[str, Any]) -> list[str]:
    return [pair for pair in _list(settings, "options") if _is_option(pair)]


def _list(settings: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list in the settings of a run, which somebody else may have written; empty for anything else."""
    found = settings.get(name)
    return found if isinstance(found, list) else []


def _is_option(pair: Any) -> bool:
    return isinstance(pair, str) and pair.partition("=")[0].isidentifier() and "=" in pair
