"""What is asked of a world, and what comes back, as data that can be sent to another thread, process or machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium

from agentgym_envs.core.registry import make
from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import EnvFault


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world to be made, by whoever is to hold it."""

    id: str
    """Gymnasium id such as `agentgym/BabyAI-v0`; `MODULE:ID` for a world that importing MODULE registers."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options for `gymnasium.make`, `max_episode_steps` among them."""

    def build(self) -> gymnasium.Env[str, str]:
        """Make the world. See `agentgym_envs.make` for what it raises."""
        return make(self.id, **self.options)


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin a task."""

    task: str | None = None
    """None draws one from `split` with the world's own generator."""
    split: Split = "train"
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Play one action."""

    action: str
    """May be a `Malformed`."""

    def __reduce__(self) -> tuple[type[Step], tuple[str]]:
        return Step, (self.action,)  # a third of the time that a dataclass takes; hosts pickle one per step


@dataclass(frozen=True, slots=True)
class Ask:
    """What the world has under `name`: an attribute, or what a method of that name returns (`oracle`, `render`)."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])


Call = Reset | Step | Ask


class Result(NamedTuple):
    """What came of a call. After a `Reset`, reward is 0 and nothing is over; after an `Ask`, only `value` is set."""

    slot: int
    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012 - never written to; a fresh one would cost every result of a step
    value: Any = None
    error: Exception | None = None
    """Why there is nothing else: an `EnvFault` when the world broke, a ValueError or KeyError for a bad call."""

    @property
    def over(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


Done = Callable[[Result], None]
"""Takes the result of a call; may be called in any thread, and never raises."""


def carry_out(env: gymnasium.Env[str, str], slot: int, call: Call) -> Result:
    """The result of `call` in `env`. Never raises an `Exception`: what goes wrong is in the result."""
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
    except Exception as error:  # noqa: BLE001 - it reaches the caller in the result
        return Result(slot, error=error)
    except SystemExit as error:
        if threading.current_thread() is threading.main_thread():
            raise  # maybe a signal's, and not the world's
        return Result(slot, error=EnvFault(f"The world wanted to end its process: SystemExit({error})."))
