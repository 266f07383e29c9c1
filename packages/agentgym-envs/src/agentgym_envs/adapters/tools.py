"""A world as functions that a model calls: one method for each kind of action, with types and a docstring.

`tool_environment` makes what TRL's `GRPOTrainer` takes as `environment_factory`; `ToolWorld` is the part that
others use too. Needs no other library, and knows no model.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_envs.core.action_schema import Call as FunctionCall
from agentgym_envs.core.action_schema import CallError, Function, action_of
from agentgym_envs.core.registry import find_spec, full_id, text_env
from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import EnvFault, Malformed
from agentgym_envs.pool.calls import Reset, Result, Step, WorldSpec, carry_out

_TYPES: dict[str, Any] = {"integer": int, "boolean": bool, "string": str, "array": list[str]}
_TAKEN = ("reset", "get_reward")


class ToolWorld:
    """One world, played by calls of its functions. Not thread-safe: a world stays in the thread that began with it."""

    def __init__(self, world: str, options: Mapping[str, Any]) -> None:
        """Make the world `world`, an id or a short name such as `textcraft`, with options as `gymnasium.make` has them.

        Raises:
            ValueError: when there is no such world, or it doesn't take one of the options.
            gymnasium.error.DependencyNotInstalled: when the world's extra is missing.
        """
        self._env = WorldSpec(full_id(world), dict(options)).build()
        self.world = text_env(self._env)
        self.last: Result | None = None
        """What came of the last reset or call; None before the first."""

    def begin(self, task: str | None = None, *, split: Split = "train", seed: int | None = None) -> str:
        """Begin the task, or one drawn from `split`; a world that broke is built anew once.

        Returns:
            The first observation.

        Raises:
            ValueError: for a split that isn't there or is empty.
            KeyError: for a task that isn't there.
            EnvFault: when the world can't be brought up.
        """
        asked, self.last = Reset(task, split, seed), None
        result = carry_out(self._env, 0, asked)
        if isinstance(result.error, EnvFault):
            result = carry_out(self._env, 0, asked)
        return self._said(result)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Play what the call of function `name` stands for. One that can't be understood costs a turn and is answered
        with what could be, as every reply without an action.

        Returns:
            The observation; once the task is over, that it is.

        Raises:
            EnvFault: when the world broke, now or before; begin again.
            RuntimeError: when no task was begun.
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
        return self._said(carry_out(self._env, 0, Step(action)))

    def close(self) -> None:
        """Close the world. May be called twice."""
        self._env.close()

    def _said(self, result: Result) -> str:
        broke = isinstance(result.error, EnvFault)
        self.last = result if broke or result.error is None else None  # a task that isn't there was not begun
        if result.error is not None:
            raise result.error
        return result.observation


class ToolEnvironment:
    """What `tool_environment` makes classes of: `reset`, `get_reward`, and a public method for each function."""

    _world: str
    _options: Mapping[str, Any]

    def __init__(self) -> None:
        self._played = ToolWorld(self._world, self._options)

    def reset(self, *, task: str | None = None, split: Split = "train", seed: int | None = None, **row: object) -> str:
        """Begin the task of a row of a dataset; the row's other columns are not for the world.

        Returns:
            The first observation. TRL appends it to the last user message.

        Raises:
            ValueError, KeyError, EnvFault: see `ToolWorld.begin`.
        """
        return self._played.begin(task, split=split, seed=seed)

    def get_reward(self) -> float:
        """The score so far, in [0, 1].

        Raises:
            EnvFault: when the world broke: such an episode has no score and must train nothing.
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
    """A class of environments whose public methods are the functions of `world`, for
    `GRPOTrainer(environment_factory=...)`; it is called after the world.

    Rows of the dataset name their `task` (and `seed`), so that the rollouts of a group play the same one. What
    the model is told of the world, `text_env(make(world)).instructions`, belongs into the system message.

    Args:
        world: Id or short name.
        **options: For `gymnasium.make`, `max_episode_steps` among them.

    Raises:
        ValueError, DependencyNotInstalled: see `ToolWorld`.
    """
    played = ToolWorld(world, options)
    try:
        functions = played.world.functions
    finally:
        played.close()
    for function in functions:
        if function.name in _TAKEN:
            raise ValueError(f"{world} has a function called {function.name}, which TRL takes for itself.")
    name = find_spec(full_id(world)).name
    methods = {function.name: _method(function) for function in functions}
    return type(name, (ToolEnvironment,), {"_world": world, "_options": options, "__doc__": f"{name}.", **methods})


def _method(function: Function) -> Callable[..., str]:
    """A method that calls `function`, with a signature and docstring from which libraries read its JSON schema."""
    # those that may be left out come last, as Python has it
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
