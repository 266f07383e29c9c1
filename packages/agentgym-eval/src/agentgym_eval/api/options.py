"""Arguments of the functions of the Python interface, and what they stand for: settings, policies, environments."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

import gymnasium
from agentgym_envs import Policy
from agentgym_envs.agents.prompts import PromptFunction

from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.policies.objects import Replies, ReplyFunction, as_policy
from agentgym_eval.policies.policies import PolicyFactory, find_policy
from agentgym_eval.util.errors import UsageError, did_you_mean

AnyPolicy = str | Policy | Replies | ReplyFunction
"""A name that `--policy` takes, a policy, an object that replies, or a function that does."""
EnvFactory = Callable[..., gymnasium.Env[str, str]]
"""Makes an environment: a `TextEnv` class, or a function. It gets the options as keyword arguments."""

_PLAIN: Mapping[type, type] = {int: Integral, float: Real, str: str, bool: bool, NoneType: NoneType}


class PlayOptions(TypedDict, total=False):
    """Settings of episodes, with the names, meanings and defaults of the flags of `evaluate` and `collect`."""

    split: Literal["train", "dev", "test"]
    """Split to take the tasks from. Default: `test` for `evaluate`, `train` for `collect`."""
    tasks: int | None
    """Number of tasks, spread evenly over the split's categories and difficulties. Default: all tasks."""
    task: Sequence[str]
    """Ids of the tasks to play, from any split, instead of `split` and `tasks`."""
    samples: int
    """Number of attempts at each task; default 1."""
    agent: str | None
    """Reply format with habits, such as `react+plan`; MODULE:CLASS for your own. Default: the environment's own."""
    pictures: int | None
    """Number of screenshots in the context, for models that see and environments with screenshots. Default: none."""
    prompt: str | PathLike[str] | PromptFunction | None
    """System message instead of the environment's instructions and the reply format's: a text file, MODULE:NAME, an
    installed prompt's name, or a function at the top of a module. Default: none."""
    instructions: bool
    """Whether to show the environment's instructions to the policy; default True."""
    horizon: int | None
    """Maximum number of actions per episode, instead of the environment's limit."""
    seed: int
    """Random seed of the environment, the policy and the confidence intervals; default 0."""
    temperature: float
    """Sampling temperature of language models; default 1.0."""
    max_tokens: int
    """Maximum number of tokens per reply of language models; default 512."""
    slots: int
    """Number of environments that run in parallel; default 16. Results don't depend on it."""
    options: Mapping[str, Any]
    """Options of the environment: numbers, strings, and tuples, lists and dicts of them. `${NAME}` in a string stands
    for an environment variable."""
    overwrite: bool
    """Whether to discard an existing run in `out` and start over; default False."""
    max_failed: float
    """Share of episodes that may fail, from 0 to 1, before a warning is logged; default 0.05."""
    endpoint: EndpointSettings
    """Endpoint of `openai:MODEL`: its address, price, rate and so on."""
    harness: HarnessSettings
    """Agent of another program that plays with the policy's model. For `evaluate` only."""


def settings_of(**options: Unpack[PlayOptions]) -> dict[str, Any]:
    """Return the fields of `EvaluateSettings` or `CollectSettings` that the options stand for.

    Raises:
        TypeError: if there is no such option, or its value is of another type.
        UsageError: if there is no such split, or an environment's option or a prompt can't be written to a run folder.
    """
    settings: dict[str, Any] = {name: _checked(name, value) for name, value in options.items()}
    settings["task"] = tuple(options.get("task", ()))
    if (prompt := options.get("prompt")) is not None:
        settings["prompt"] = _prompt_name(prompt)
    settings["options"] = tuple(_written(name, value) for name, value in options.get("options", {}).items())
    return settings


def _checked(name: str, value: Any) -> Any:
    """Return an option's value, with numbers of NumPy as Python's. Callers may not have a type checker."""
    hints = get_type_hints(PlayOptions)
    if name not in hints:
        raise TypeError(f"There is no option {name!r}.{did_you_mean(name, [*hints])}")
    if get_origin(hints[name]) is Literal:
        check_choice(name, value, get_args(hints[name]))
        return value
    if name == "options" and not isinstance(value, Mapping):
        raise TypeError(f"The option options must be a dict, such as {{'depth': (2, 2)}}, not {value!r}.")
    if hints[name] == Sequence[str]:
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise TypeError(f"The option {name} must be a list or tuple of strings, not {value!r}.")
        return value
    kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
    if set(kinds) <= _PLAIN.keys():
        fitting = [kind for kind in kinds if _is_a(value, kind)]
        if not fitting:
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise TypeError(f"The option {name} must be of type {wanted}, not {type(value).__name__}: {value!r}.")
        return value if value is None else fitting[0](value)
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `UsageError` unless the value of an argument is one of the choices."""
    if value not in choices:
        raise UsageError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, _PLAIN[kind]) and (kind is bool or not isinstance(value, bool))


def _prompt_name(prompt: str | PathLike[str] | PromptFunction) -> str:
    if not callable(prompt):
        return fspath(prompt)
    name = f"{getattr(prompt, '__module__', '')}:{getattr(prompt, '__qualname__', '')}"
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is not prompt:
        raise UsageError(
            f"The prompt {prompt!r} can't be found by its name, which a run folder records. Define the function at the "
            "top of a module, or pass the path of a text file."
        )
    return name


def _written(name: str, value: Any) -> str:
    from ast import literal_eval

    try:
        if literal_eval(repr(value)) == value:
            return f"{name}={value!r}"
    except (ValueError, SyntaxError):
        pass
    raise UsageError(
        f"The option {name} is of type {type(value).__name__}, which a run folder can't record: options are numbers, "
        "strings, and tuples, lists and dicts of them. Pass a function that makes the environment with this value "
        "instead of the environment's name."
    )


def named_policy(
    policy: AnyPolicy, endpoint: EndpointSettings | None, environment: Mapping[str, str]
) -> tuple[str, PolicyFactory | Policy]:
    """Return the name of a policy, and the policy itself or what builds it.

    Raises:
        UsageError: if there is no policy of this name, or the object isn't a policy.
    """
    if isinstance(policy, str):
        return policy, find_policy(policy, endpoint=endpoint, environment=environment)
    found = as_policy(policy)
    if found is None:
        raise UsageError(
            f"{policy!r} is not a policy: pass a name such as 'oracle', an object with a `name` and a method "
            "`reply(context)`, or a function with a name that gets the context and returns the reply."
        )
    return found.name, found


@contextmanager
def named_env(env: str | EnvFactory) -> Generator[str]:
    """Yield the name of an environment. A factory is registered with Gymnasium within the context, under its own name.

    Raises:
        UsageError: if `env` is neither a name nor a factory, or another factory of the same name is in use.
    """
    if isinstance(env, str):
        yield env
        return
    if isinstance(env, gymnasium.Env) or not callable(env):
        raise UsageError(
            f"{env!r} is not a name of an environment or a function that makes one. Episodes run in several "
            "environments at once, so pass the class or a function instead of an instance."
        )
    name = re.sub(r"\W+", "-", getattr(env, "__qualname__", type(env).__name__).rpartition(".")[2]).strip("-")
    world_id = f"factory/{name}-v0"
    if world_id in gymnasium.registry:
        raise UsageError(f"Another environment called {name} is being played; give your function another name.")
    gymnasium.register(world_id, entry_point=env, disable_env_checker=True)
    try:
        yield world_id
    finally:
        del gymnasium.registry[world_id]


def path_of(out: str | PathLike[str]) -> Path:
    """Return a folder or file as a path, with `..` resolved: else creating it would create the folders before it."""
    path = Path(out)
    return path.resolve() if ".." in path.parts else path
