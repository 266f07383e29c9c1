"""Calls to an environment and their results, as data that can be sent to another thread, process or machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium

from agentgym_envs.core.feedback import ends_caller
from agentgym_envs.core.registry import make
from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import EnvFault


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """The description of an environment, from which a slot creates it."""

    id: str
    """Gymnasium id such as `agentgym/BabyAI-v0`, a short name such as `babyai`, or `MODULE:ID` for an environment that
    importing MODULE registers."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of `gymnasium.make`, including `max_episode_steps`."""

    def build(self) -> gymnasium.Env[str, str]:
        """Create the environment. Raises the errors of `agentgym_envs.make`."""
        return make(self.id, **self.options)


@dataclass(frozen=True, slots=True)
class Reset:
    """A call that starts an episode of a task."""

    task: str | None = None
    """Task id; None draws a task from `split` with the environment's own generator."""
    split: Split = "train"
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A call that takes one action."""

    action: str
    """The action; may be a `Malformed`."""

    def __reduce__(self) -> tuple[type[Step], tuple[str]]:
        return Step, (self.action,)  # pickles 3 times as fast as a dataclass does; hosts pickle one per step


@dataclass(frozen=True, slots=True)
class Ask:
    """A call for an attribute of the environment, or for the return value of a method (`oracle`, `render`)."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])


Call = Reset | Step | Ask


class Result(NamedTuple):
    """The result of a call. A `Reset` leaves `reward` at 0 and the flags false; an `Ask` sets only `value`."""

    slot: int
    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012 - never mutated; a new dict per result would slow down every step
    value: Any = None
    error: Exception | None = None
    """The error if the call failed: an `EnvFault` if the environment broke, a ValueError or KeyError for a bad call."""

    @property
    def over(self) -> bool:
        """Return whether the episode is over."""
        return self.terminated or self.truncated


Done = Callable[[Result], None]
"""A callback that takes the result of a call. It may be called in any thread and never raises."""


def carry_out(env: gymnasium.Env[str, str], slot: int, call: Call) -> Result:
    """Carry out `call` in `env`. Errors are in the result.

    Raises:
        BaseException: see `refused`.
    """
    try:
        match call:
            case Step():
                observation, reward, terminated, truncated, info = env.step(call.action)
                return Result(slot, observation, float(reward), terminated, truncated, info)
            case Reset():
                observation, info = env.reset(seed=call.seed, options={"task": call.task, "split": call.split})
                return Result(slot, observation, info=info)
            case Ask():
                value = env.get_wrapper_attr(call.name)
                return Result(slot, value=value(*call.arguments, **call.keywords) if callable(value) else value)
    except Exception as error:  # noqa: BLE001 - the caller gets it in the result
        return Result(slot, error=error)
    except BaseException as error:  # noqa: BLE001 - raised again unless it is the environment's
        return refused(slot, error)


def refused(slot: int, error: BaseException) -> Result:
    """Return the result of a call in which the environment raised what isn't an `Exception`, such as `SystemExit`,
    `CancelledError` or the `PanicException` of a package in Rust, and would end the caller's process, task or thread.

    Raises:
        BaseException: the error itself, if it `ends_caller`.
    """
    if ends_caller(error):
        raise error
    return Result(slot, error=EnvFault(f"The environment raised {type(error).__name__}({error})."))
