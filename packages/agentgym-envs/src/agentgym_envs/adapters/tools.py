"""An environment as functions that a model calls: one method per kind of action, with type annotations and a docstring.

`tool_environment` returns the `environment_factory` for TRL's `GRPOTrainer`. Other adapters also use `ToolWorld`. This
module requires no other library.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_envs.core.action_schema import Call as FunctionCall
from agentgym_envs.core.action_schema import CallError, Function, action_of
from agentgym_envs.core.registry import find_spec, text_env
from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import EnvFault, Malformed
from agentgym_envs.pool.calls import Reset, Result, Step, WorldSpec, carry_out

_TYPES: dict[str, Any] = {"integer": int, "boolean": bool, "string": str, "array": list[str]}
_RESERVED = ("reset", "get_reward")


class ToolWorld:
    """An environment that is played by function calls. Not thread-safe: use it only in the thread that created it."""

    def __init__(self, world: str, options: Mapping[str, Any]) -> None:
        """Make the environment `world`, an id or a short name such as `textcraft`, with options for `gymnasium.make`.

        Raises:
            ValueError: if there is no such environment, or an option is unknown.
            gymnasium.error.DependencyNotInstalled: if the environment's extra is missing.
        """
        self._env = WorldSpec(world, dict(options)).build()
        self.world = text_env(self._env)
        self.last: Result | None = None
        """The result of the last reset or call; None before the first."""

    def begin(self, task: str | None = None, *, split: Split = "train", seed: int | None = None) -> str:
        """Start the task, or a task drawn from `split`. Rebuilds a broken environment once.

        Returns:
            The first observation.

        Raises:
            ValueError: if the split doesn't exist or is empty, or the seed isn't an integer of at least 0.
            KeyError: if the task doesn't exist.
            EnvFault: if the environment can't be started.
        """
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise ValueError(f"The seed must be an integer of at least 0, not {seed!r}.")
        reset, self.last = Reset(task, split, seed), None
        result = carry_out(self._env, 0, reset)
        if isinstance(result.error, EnvFault):
            result = carry_out(self._env, 0, reset)
        return self._observation(result)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Play the action of a call of function `name`.

        Like every reply without an action, an invalid call costs a turn, and the observation states what is possible.

        Returns:
            The observation, or after the end of the task a text that says so.

        Raises:
            EnvFault: if the environment broke, now or before. Call `begin` again.
            RuntimeError: if no task was started.
        """
        if self.last is None:
            raise RuntimeError("No task is being played: begin one first.")
        if self.last.error is not None:
            raise self.last.error
        if self.last.over:
            return "The task is over. Nothing more can be done; answer without calling a function."
        try:
            action = action_of(self.world.functions, FunctionCall(name, dict(arguments)))
        except CallError as error:
            action = Malformed(json.dumps([name, dict(arguments)], default=str), str(error))
        return self._observation(carry_out(self._env, 0, Step(action)))

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._env.close()

    def _observation(self, result: Result) -> str:
        broke = isinstance(result.error, EnvFault)
        self.last = result if broke or result.error is None else None  # after other errors, no task was started
        if result.error is not None:
            raise result.error
        return result.observation


class ToolEnvironment:
    """The base of `tool_environment`'s classes, which have `reset`, `get_reward` and a public method per function."""

    _world: str
    _options: Mapping[str, Any]

    def __init__(self) -> None:
        self._played = ToolWorld(self._world, self._options)

    def reset(self, *, task: str | None = None, split: Split = "train", seed: int | None = None, **row: object) -> str:
        """Start the task of a dataset row, whose other columns are ignored.

        Returns:
            The first observation. TRL appends it to the last user message.

        Raises:
            ValueError, KeyError, EnvFault: see `ToolWorld.begin`.
        """
        return self._played.begin(task, split=split, seed=seed)

    def get_reward(self) -> float:
        """Return the score so far, in [0, 1].

        Raises:
            EnvFault: if the environment broke. Such an episode has no score and must not be trained on.
            RuntimeError: before the first `reset`.
        """
        last = self._played.last
        if last is None:
            raise RuntimeError("No task was played yet: call reset() first.")
        if last.error is not None:
            raise last.error
        return float(last.info["score"])

    def __del__(self) -> None:
        played: ToolWorld | None = self.__dict__.get("_played")
        if played is not None:
            played.close()


def tool_environment(world: str, **options: Any) -> type[ToolEnvironment]:
    """Return a class for `GRPOTrainer(environment_factory=...)` whose public methods are the functions of `world`.

    The class has the environment's name. Rows of the dataset specify their `task` (and `seed`), so that all rollouts of
    a group play the same task. Put the instructions, `text_env(make(world)).instructions`, into the system message.

    Args:
        world: The id or short name of the environment.
        **options: Options for `gymnasium.make`, including `max_episode_steps`.

    Raises:
        ValueError, DependencyNotInstalled: see `ToolWorld`.
    """
    trial = ToolWorld(world, options)
    try:
        functions = trial.world.functions
    finally:
        trial.close()
    for function in functions:
        if function.name in _RESERVED:
            raise ValueError(f"{world} has a function called {function.name}, a name that TRL reserves.")
    name = find_spec(world).name
    methods = {function.name: _method(function) for function in functions}
    return type(name, (ToolEnvironment,), {"_world": world, "_options": options, "__doc__": f"{name}.", **methods})


def _method(function: Function) -> Callable[..., str]:
    """Return a method that calls `function`. Libraries derive a JSON schema from its signature and docstring."""
    # optional parameters come last, as Python requires
    names = sorted(function.properties, key=lambda name: name in function.optional)

    def call(self: ToolEnvironment, *positional: Any, **named: Any) -> str:
        if len(positional) > len(names):
            raise TypeError(f"{function.name} takes {len(names)} arguments, not {len(positional)}.")
        arguments = dict(zip(names, positional, strict=False)) | named
        return self._played.call(function.name, arguments)  # pyright: ignore[reportPrivateUsage]

    parameter = inspect.Parameter
    parameters = [parameter("self", parameter.POSITIONAL_OR_KEYWORD)]
    for name in names:
        kind: Any = _TYPES[function.properties[name]["type"]]
        default: Any = parameter.empty
        if name in function.optional:
            kind, default = kind | None, None
        parameters.append(parameter(name, parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default))
    call.__name__ = call.__qualname__ = function.name
    call.__doc__ = _docstring(function)
    call.__annotations__ = {part.name: part.annotation for part in parameters[1:]} | {"return": str}
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _docstring(function: Function) -> str:
    lines = [function.description]
    if function.properties:
        lines += ["", "Args:"]
        for name, schema in function.properties.items():
            choices = f" (choices: {json.dumps(schema['enum'])})" if "enum" in schema else ""
            lines.append(f"    {name}: {schema.get('description', name)}{choices}")
    return "\n".join([*lines, "", "Returns:", "    What is seen then."])
