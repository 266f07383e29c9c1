"""The worlds of a run: one, or a mixture with weights. Opens them as the configuration asks; knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import gymnasium
from agentgym_envs import EnvFault, Episode, Job, Policy, Task, TaskSet, play_many, text_env
from agentgym_eval.errors import UsageError
from agentgym_eval.settings import PlaySettings
from agentgym_eval.worlds import open_world

from agentgym_trainer.config import Config, World


@dataclass(frozen=True, slots=True)
class OpenWorld:
    """One world of the run, opened as many times as episodes are played in it at once."""

    name: str
    """The Gymnasium id that its tasks and episodes carry."""
    weight: float
    """Its share of each step's tasks, up to a factor."""
    envs: Sequence[gymnasium.Env[str, str]]

    @property
    def tasks(self) -> TaskSet:
        """All tasks under the world's options."""
        return text_env(self.envs[0]).tasks

    def play(
        self, policy: Policy, tasks: Sequence[Task], *, samples: int, seed: int, horizon: int
    ) -> Iterator[Episode]:
        """Play `samples` episodes of each task, and yield them as they end.

        A task that is there twice is played with other samples, not with the same ones again.
        """
        drawn = Counter[str]()
        jobs: list[Job] = []
        for task in tasks:
            jobs += [Job(task.id, drawn[task.id] + sample, seed) for sample in range(samples)]
            drawn[task.id] += samples
        yield from play_many(self.envs, policy, jobs, horizon=horizon)


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
            slots = min(config.slots, tasks * config.samples)
            envs = [_open(world, config.horizon.longest, stack) for _ in range(slots)]
            name = _name(world, envs[0])
            if any(other.name == name for other in opened):
                raise UsageError(
                    f"A mixture names each world once; {name} is in it twice. Join their options into one."
                )
            opened.append(OpenWorld(name, world.weight, envs))
        yield opened


def _open(world: World, horizon: int, stack: ExitStack) -> gymnasium.Env[str, str]:
    settings = PlaySettings(
        env=world.env,
        policy="the model in training",
        wrapper=world.wrapper,
        instructions=world.instructions,
        horizon=horizon,
        options=world.options,
    )
    return stack.enter_context(closing(open_world(settings)))


def _name(world: World, env: gymnasium.Env[str, str]) -> str:
    try:
        tasks = text_env(env).tasks
        for split in ("train", "test"):
            if not tasks.split(split):
                raise UsageError(f"{world.env} has no {split} tasks under these options; training needs some.")
        return tasks.train[0].env
    except (EnvFault, ValueError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The tasks of {world.env} can't be had: {error}") from error
