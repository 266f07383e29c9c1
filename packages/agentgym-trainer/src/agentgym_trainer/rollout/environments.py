"""The environments of a run: one, or a mixture with weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import gymnasium
from agentgym_envs import (
    EnvFault,
    EnvPool,
    Episode,
    EpisodeSpec,
    Policy,
    ReplyWrapper,
    Task,
    TaskSet,
    play_many,
    text_env,
)
from agentgym_envs.core.registry import UnknownOption
from agentgym_envs.util.redaction import resolved
from agentgym_eval.runs.environments import check_dependencies, open_world, world_spec
from agentgym_eval.runs.oracle_distances import can_measure
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig, Evaluation, Generation, WorldConfig
from agentgym_trainer.curriculum.horizon import Stage


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An environment of the run: a local instance, and a pool with one instance for each concurrent episode."""

    name: str
    """The Gymnasium id of its tasks and episodes."""
    weight: float
    """Its share of the tasks of each step, relative to the other environments."""
    wrapped: ReplyWrapper
    """The local instance, which has the tasks and instructions and parses replies."""
    pool: EnvPool
    """The instances that are played, without a `ReplyWrapper`."""

    @property
    def tasks(self) -> TaskSet:
        """All tasks with the environment's options."""
        return text_env(self.wrapped).tasks

    def play(self, policy: Policy, tasks: Sequence[Task], *, seed: int, horizon: int) -> Iterator[Episode]:
        """Play each task once in the local instance, with a policy that doesn't wait, such as an expert.

        What the environment draws differs between the episodes of a task that occurs several times.
        """
        specs = episode_specs(tasks, samples=1, seed=seed)
        drawn = [replace(spec, env_seed=seed + spec.sample) for spec in specs]
        yield from play_many(self.wrapped, policy, drawn, horizon=horizon)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The episodes of a group, to be played."""

    number: int
    """Index among the groups of the step or evaluation."""
    world: OpenEnvironment
    episodes: tuple[EpisodeSpec, ...]
    stage: Stage | None = None
    """The stage of the schedule in which it was started; None before that."""

    def to_json(self) -> dict[str, Any]:
        """JSON values from which `restore_group_specs` makes the same episodes."""
        first = self.episodes[0]
        record = {"env": self.world.name, "task": first.task_id, "seed": first.seed, "episodes": len(self.episodes)}
        return record if self.stage is None else {**record, "stage": asdict(self.stage)}


def episode_specs(tasks: Sequence[Task], *, samples: int, seed: int) -> list[EpisodeSpec]:
    """Specs of `samples` episodes of each task, grouped by task. A task that occurs twice gets twice as many samples,
    with different indices.
    """
    times = Counter(task.id for task in tasks)
    return [EpisodeSpec(task, sample, seed) for task, count in times.items() for sample in range(count * samples)]


def group_specs(
    world: OpenEnvironment, tasks: Sequence[Task], *, samples: int, seed: int, after: int = 0
) -> list[GroupSpec]:
    """A group for each of the tasks, numbered from `after`."""
    by_task = groupby(episode_specs(tasks, samples=samples, seed=seed), key=lambda spec: spec.task_id)
    return [GroupSpec(number, world, tuple(some)) for number, (_, some) in enumerate(by_task, after)]


def restore_group_specs(records: Sequence[Mapping[str, Any]], worlds: Sequence[OpenEnvironment]) -> list[GroupSpec]:
    """The group specs that `GroupSpec.to_json` wrote, numbered from 0."""
    named = {world.name: world for world in worlds}
    return [
        GroupSpec(
            number,
            named[record["env"]],
            tuple(EpisodeSpec(record["task"], sample, record["seed"]) for sample in range(record["episodes"])),
            Stage(**record["stage"]) if "stage" in record else None,
        )
        for number, record in enumerate(records)
    ]


@contextmanager
def open_environments(config: BaseConfig) -> Generator[list[OpenEnvironment]]:
    """Open all environments of the configuration while the context is open.

    Raises:
        UsageError: if an environment doesn't exist, doesn't take its options, has no tasks, is named twice, or needs a
            program that isn't installed.
    """
    with ExitStack() as stack:
        opened: dict[str, OpenEnvironment] = {}
        for world in config.worlds:
            new = _open(world, config, stack)
            if new.name in opened:
                raise UsageError(
                    f"A mixture names each environment once; {new.name} is in it twice. Merge the two entries."
                )
            opened[new.name] = new
        yield list(opened.values())


def check_environments(config: BaseConfig) -> None:
    """Check that the environments of the configuration exist and take their options and agents. None is started.

    Raises:
        UsageError: if one doesn't.
    """
    with ExitStack() as stack:
        for world in config.worlds:
            _local(_settings(world, config), stack)


def prompt_texts(config: BaseConfig) -> dict[str, str]:
    """Return the system messages that the prompts of the configuration write, by prompt and environment.

    Raises:
        UsageError: as `open_environments`; and if there is no such prompt, or it fails.
    """
    found = dict[str, str]()
    for world in config.worlds:
        if world.prompt:
            with ExitStack() as stack:
                found[f"{world.prompt} in {world.env}"] = _local(_settings(world, config), stack).instructions
    return found


def _settings(world: WorldConfig, config: BaseConfig) -> PlaySettings:
    return PlaySettings(
        env=world.env,
        policy="the model in training",
        agent=world.agent,
        prompt=world.prompt or None,
        instructions=world.instructions,
        horizon=config.horizon.longest,
        options=world.options,
    )


def _local(settings: PlaySettings, stack: ExitStack) -> ReplyWrapper:
    try:
        return stack.enter_context(closing(open_world(settings)))
    except UsageError as error:
        if isinstance(error.__cause__, UnknownOption):
            hint = "--world.options KEY=VALUE ... replaces all options of the recipe; without values it removes them."
            raise UsageError(f"{error} {hint}") from error
        raise


def _open(world: WorldConfig, config: BaseConfig, stack: ExitStack) -> OpenEnvironment:
    settings = _settings(world, config)
    wrapped = _local(settings, stack)
    check_dependencies(wrapped)
    check_context(wrapped, config.generation)
    if config.evaluation.forensics and not can_measure(type(text_env(wrapped))):
        raise UsageError(
            f"evaluation.forensics needs an expert that decides from the current state, which {world.env} does not "
            "have; leave it out: --evaluation.no-forensics."
        )
    name = _name(world, wrapped, config.evaluation)
    try:
        pool = EnvPool(world_spec(settings), config.slots, resolved(world.backend) or None, deadline=world.deadline)
    except (ValueError, ImportError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"{world.env} can't be put in a pool: {error}") from error
    return OpenEnvironment(name, world.weight, wrapped, stack.enter_context(pool))


def check_context(env: ReplyWrapper, generation: Generation) -> None:
    """Check that an agent that summarizes its context does so before the context is full.

    Raises:
        UsageError: if it doesn't.
    """
    limit, longest = env.scaffold.context_tokens, generation.max_context
    if limit and limit + generation.max_tokens >= longest:
        raise UsageError(
            f"The agent {env.agent} summarizes a context of more than {limit} tokens, and a reply has up to "
            f"{generation.max_tokens}, so contexts of {longest} tokens would end episodes before: set the agent's "
            "number lower, or --generation.max-context higher, by an observation's tokens at least, and up to the "
            "context of the model."
        )


def _name(world: WorldConfig, env: ReplyWrapper, evaluation: Evaluation) -> str:
    try:
        tasks = text_env(env).tasks
        if not tasks.train:
            raise UsageError(f"{world.env} has no train tasks under these options; training needs some.")
        if not tasks.split(evaluation.split):
            raise UsageError(
                f"{world.env} has no dev tasks under these options, which evaluations during the run need: its "
                f"{len(tasks.train)} train tasks are too few to set some of them aside. Choose options with more, "
                "give the environment's TaskSet a `dev` split, or evaluate on training tasks: --evaluation.split train."
            )
        if evaluation.test and not tasks.test:
            raise UsageError(
                f"{world.env} has no test tasks under these options, which the final evaluation needs; skip it with "
                "--evaluation.no-test."
            )
        return tasks.train[0].env
    except (EnvFault, ValueError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The tasks of {world.env} can't be loaded: {error}") from error
