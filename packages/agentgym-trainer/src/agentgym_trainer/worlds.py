"""The worlds of a run: one, or a mixture with weights. Opens them as the configuration asks; knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import gymnasium
from agentgym_envs import (
    EnvFault,
    EnvPool,
    Episode,
    Job,
    Policy,
    ReplyWrapper,
    Task,
    TaskSet,
    play_many,
    text_env,
)
from agentgym_eval.errors import UsageError
from agentgym_eval.settings import PlaySettings
from agentgym_eval.worlds import open_world, world_spec

from agentgym_trainer.config import Config, World


@dataclass(frozen=True, slots=True)
class OpenWorld:
    """One world of the run: one of it at hand, and as many in a pool as episodes are played at once."""

    name: str
    """The Gymnasium id that its tasks and episodes carry."""
    weight: float
    """Its share of each step's tasks, up to a factor."""
    wrapped: ReplyWrapper
    """The one at hand: knows the tasks and instructions, and parses replies."""
    pool: EnvPool
    """The others, without wrappers: they take actions."""

    @property
    def tasks(self) -> TaskSet:
        """All tasks under the world's options."""
        return text_env(self.wrapped).tasks

    def watch(self, policy: Policy, tasks: Sequence[Task], *, seed: int, horizon: int) -> Iterator[Episode]:
        """Let a player who needs no engine, such as an expert, play each task once in the world at hand."""
        yield from play_many([self.wrapped], policy, jobs(tasks, samples=1, seed=seed), horizon=horizon)


def jobs(tasks: Sequence[Task], *, samples: int, seed: int) -> list[Job]:
    """The jobs of `samples` episodes of each task. A task that is there twice is played with other samples, not with
    the same ones again.
    """
    drawn = Counter[str]()
    made: list[Job] = []
    for task in tasks:
        made += [Job(task.id, drawn[task.id] + sample, seed) for sample in range(samples)]
        drawn[task.id] += samples
    return made


@contextmanager
def open_worlds(config: Config) -> Generator[list[OpenWorld]]:
    """Open every world of the configuration, and close them all at the end.

    Raises:
        UsageError: when one doesn't exist, doesn't take its options, has no tasks, or is named twice.
    """
    total = sum(world.weight for world in config.worlds)
    with ExitStack() as stack:
        opened: list[OpenWorld] = []
        for world in config.worlds:
            # One more than the share, since what is left over by rounding goes to one world or another.
            tasks = min(config.tasks, int(config.tasks * world.weight / total) + 1)
            slots = min(config.slots, tasks * config.samples * (1 + config.overlap.versions))
            opened.append(_open(world, slots, config.horizon.longest, stack))
            if any(other.name == opened[-1].name for other in opened[:-1]):
                raise UsageError(
                    f"A mixture names each world once; {opened[-1].name} is in it twice. Join their options into one."
                )
        yield opened


def _open(world: World, slots: int, horizon: int, stack: ExitStack) -> OpenWorld:
    settings = PlaySettings(
        env=world.env,
        policy="the model in training",
        wrapper=world.wrapper,
        instructions=world.instructions,
        horizon=horizon,
        options=world.options,
    )
    wrapped = stack.enter_context(closing(open_world(settings)))
    name = _name(world, wrapped)
    try:
        pool = EnvPool(world_spec(settings), slots, world.backend or None, deadline=world.deadline)
    except (ValueError, ImportError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"{world.env} can't be opened {slots} times: {error}") from error
    return OpenWorld(name, world.weight, wrapped, stack.enter_context(pool))


def _name(world: World, env: ReplyWrapper) -> str:
    try:
        tasks = text_env(env).tasks
        for split in ("train", "test"):
            if not tasks.split(split):
                raise UsageError(f"{world.env} has no {split} tasks under these options; training needs some.")
        return tasks.train[0].env
    except (EnvFault, ValueError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The tasks of {world.env} can't be had: {error}") from error
