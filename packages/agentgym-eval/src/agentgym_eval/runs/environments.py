"""Resolution of command-line names into environments, agents and tasks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import gymnasium
from agentgym_envs import WORLDS, EnvFault, ReplyWrapper, Task, Tasks, TaskSet, WorldSpec, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.prompts import PromptFunction, find_prompt
from agentgym_envs.core.registration import REMOTE, full_id
from agentgym_envs.core.registry import UnknownOption, find_spec, read_resolved, world_class, world_options
from agentgym_envs.core.tasks import SPLITS

from agentgym_eval.runs.item_ids import task_ids
from agentgym_eval.runs.protocols import find_protocol
from agentgym_eval.runs.settings import PlaySettings, short_name
from agentgym_eval.util.errors import UsageError, WorldMissing, listed


def world_id(name: str) -> str:
    """Return the Gymnasium id for `name`: an id, a short name, or `MODULE:ID`, which imports the module.

    Raises:
        UsageError: If there is no such environment or module.
    """
    try:
        return find_spec(full_id(name)).id
    except ValueError as error:
        raise UsageError(str(error)) from error


def installed_worlds() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the short names of this package's installed environments, and for the others what is missing."""
    found, missing = list[str](), dict[str, str]()
    for world in WORLDS:
        try:
            with closing(WorldSpec(world.id).build()) as env:
                text_env(env).check_dependencies()
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            missing[short_name(world.id)] = str(error)
        else:
            found.append(short_name(world.id))
    return tuple(found), missing


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` pairs. Values that are no Python literals are strings; `${NAME}` in them stands for an
    environment variable.

    Raises:
        UsageError: If a pair has no key or `=`, or a variable isn't set.
    """
    try:
        options = dict(map(read_resolved, pairs))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if "max_episode_steps" in options:
        raise UsageError("Set the maximum number of turns with --horizon, not with --options.")
    return options


def world_spec(settings: PlaySettings) -> WorldSpec:
    """Return the environment's specification for a pool, without the reply wrapper.

    Raises:
        UsageError: If there is no such environment, or an option is malformed.
    """
    options, remote = parse_options(settings.options), world_id(settings.env) == REMOTE
    if remote and "env" in options:
        options["env"] = full_id(str(options["env"]))
    if settings.horizon is not None:  # replaces the environment's limit, which may be lower
        options["horizon" if remote else "max_episode_steps"] = settings.horizon
    if _pictures(settings) and _takes_screenshots(str(options.get("env", "")) if remote else full_id(settings.env)):
        options.setdefault("screenshot", True)
    return WorldSpec(full_id(settings.env), options)


def _pictures(settings: PlaySettings) -> int:
    """Return how many pictures the agent gets."""
    return settings.pictures or agent(settings.agent or "react").scaffold.pictures


def _takes_screenshots(world: str) -> bool:
    """Return whether an environment has the option `screenshot`; False if it isn't known here."""
    with suppress(ValueError, ImportError, gymnasium.error.DependencyNotInstalled):
        found = world_class(world)
        return found is not None and "screenshot" in signature(found).parameters
    return False


def open_world(settings: PlaySettings) -> ReplyWrapper:
    """Create one environment in its reply wrapper.

    Raises:
        WorldMissing: If a package that it needs is missing.
        UsageError: If there is no such environment or prompt, it rejects the options, or the protocol isn't for these
            tasks.
    """
    spec, name = world_spec(settings), world_id(settings.env)
    prompt = _prompt(settings)
    if settings.protocol and not settings.items:
        find_protocol(settings.protocol).check_task_set(settings.env, spec.options)
    try:
        env = spec.build()
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise WorldMissing(str(error)) from error
    except (ValueError, gymnasium.error.Error) as error:
        raise UsageError(str(error)) from error
    played = spec.options.get("env", name) if name == REMOTE else name
    own = {world.id: world.agent for world in WORLDS}.get(played, "react")
    parsed_agent = agent(own if settings.agent is None else settings.agent)
    if settings.pictures:
        scaffold = replace(parsed_agent.scaffold, pictures=settings.pictures)
        parsed_agent = replace(parsed_agent, scaffold=scaffold)
    if parsed_agent.scaffold.pictures and not text_env(env).has_screenshots:
        env.close()
        raise UsageError(
            f"{settings.env} has no screenshots with these options, so its agent can't get pictures; leave out "
            f"{'--pictures' if settings.pictures else 'the habit pictures of --agent'}."
        )
    wrapped = parsed_agent.wrap(env, instructions=prompt if settings.instructions else "")
    try:
        if prompt is not None:
            _check_prompt(wrapped, settings)
        wrapped.turn_limit()
    except UsageError:
        env.close()
        raise
    except ValueError as error:
        env.close()
        raise UsageError(f"{error} On the command line, this is --horizon.") from error
    return wrapped


def for_one_environment(error: UsageError, settings: PlaySettings, others: Iterable[PlaySettings]) -> str:
    """Return how to give another environment, only, an option that this one doesn't have.

    Args:
        error: What `open_world` raised.
        settings: Its settings.
        others: Those of all environments that are played together.

    Returns:
        A sentence; empty for other errors, and if no environment has the option.
    """
    own = _option_names(settings)
    for other in others if isinstance(error.__cause__, UnknownOption) else ():
        theirs = _option_names(other) - own
        for pair in settings.options:
            if pair in other.options and pair.partition("=")[0] in theirs:
                return f" For one environment only, write {short_name(other.env)}:{pair}."
    return ""


def _option_names(settings: PlaySettings) -> set[str]:
    with suppress(ValueError, ImportError, gymnasium.error.Error):
        return {*world_options(find_spec(full_id(settings.env)))}
    return set()


def _prompt(settings: PlaySettings) -> PromptFunction | None:
    try:
        return None if settings.prompt is None else find_prompt(settings.prompt)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_prompt(env: ReplyWrapper, settings: PlaySettings) -> None:
    """Write the system message, so that a prompt that fails does so before anything is played."""
    try:
        env.get_wrapper_attr("instructions")
    except (ValueError, EnvFault, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The prompt of {settings.env} can't be written: {error}") from error


def check_dependencies(env: ReplyWrapper) -> None:
    """Check that the programs exist that the environment starts only when it is played.

    Raises:
        WorldMissing: If one is missing.
    """
    try:
        text_env(env).check_dependencies()
    except gymnasium.error.DependencyNotInstalled as error:
        raise WorldMissing(str(error)) from error


def agent(spec: str) -> Agent:
    """Return the agent of this name.

    Raises:
        UsageError: If there is none.
    """
    try:
        return Agent.parse(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def choose_tasks(env: ReplyWrapper, settings: PlaySettings) -> list[Task]:
    """Return the tasks that the settings select in one environment; see `select_tasks`."""
    (tasks,) = select_tasks([(env, settings)])
    return tasks


def select_tasks(
    worlds: Sequence[tuple[ReplyWrapper, PlaySettings]], before: Mapping[str, Sequence[int]] | None = None
) -> list[list[Task]]:
    """Return the selected tasks of each environment, in the order of the split or as named. Named tasks are assigned to
    the environment that has them.

    Args:
        worlds: Environments, with settings that differ only in `env`, `options` and what a protocol determines.
        before: By `env`, the numbers of tasks that an extended run had before, in order; these tasks stay selected.

    Raises:
        UsageError: If a task is unknown, a split is empty, there are fewer tasks than requested, an environment has
            none of the named tasks, or tasks can't be loaded or played with the environment's options.
    """
    sets = {settings.env: _task_set(env, settings) for env, settings in worlds}
    asked = worlds[0][1]
    try:
        if asked.task or asked.items:
            return _named(asked.task or task_ids(asked.items, skip=asked.skip), sets)
        grown = before or {}
        return [_of_split(sets[settings.env], settings, grown.get(settings.env, ())) for _, settings in worlds]
    except ValueError as error:  # a task can't be played with these options
        raise UsageError(str(error)) from error


def _task_set(env: ReplyWrapper, settings: PlaySettings) -> TaskSet:
    try:
        return text_env(env).tasks
    except (EnvFault, ValueError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The tasks of {settings.env} can't be loaded: {error}") from error


def _of_split(tasks: TaskSet, settings: PlaySettings, before: Sequence[int]) -> list[Task]:
    split = tasks.split(settings.split)
    if not split:
        available = listed([f"{name} ({len(tasks.split(name))})" for name in SPLITS if tasks.split(name)]) or "none"
        raise UsageError(
            f"{settings.env} has no {settings.split} tasks under these options. Splits with tasks: {available}."
        )
    wanted = len(split) if settings.tasks is None else settings.tasks
    if wanted > len(split) and settings.protocol is None:
        raise UsageError(
            f"{settings.env} has {len(split)} {settings.split} tasks under these options, not {wanted}: "
            "change --tasks, or choose another --split or --options."
        )
    return widened(split, (*before, wanted))


def _named(ids: Sequence[str], sets: Mapping[str, TaskSet]) -> list[list[Task]]:
    missing = [task_id for task_id in ids if not any(task_id in tasks for tasks in sets.values())]
    if missing:
        raise UsageError(
            f"{_no_task(missing[0], sets)} {len(missing)} of the {len(ids)} named tasks don't exist with these --env "
            f"and --options: {listed(missing)}."
        )
    by_env: dict[str, list[Task]] = {env: [] for env in sets}
    for task_id in dict.fromkeys(ids):
        env = next(env for env, tasks in sets.items() if task_id in tasks)
        by_env[env].append(sets[env][task_id])
    for env, tasks in by_env.items():
        if not tasks:
            raise UsageError(f"None of the {len(ids)} named tasks is of {env}; remove it from --env.")
    return list(by_env.values())


def _no_task(task_id: str, sets: Mapping[str, TaskSet]) -> str:
    """Return the error message for an unknown task, from the environment that its id starts with, or else the first
    one.
    """
    world = next((env for env in sets if task_id.startswith(f"{short_name(env)}/")), next(iter(sets)))
    try:
        return f"There is {sets[world][task_id].id}."
    except KeyError as error:
        return str(error.args[0])


def spread(tasks: Tasks, count: int, chosen: Sequence[Task] = ()) -> list[Task]:
    """Return `count` of the tasks, deterministically: each category in proportion to its size (at least one task if
    `count` allows it; apportioned by the Webster/Sainte-Laguë method) and, within it, evenly over difficulties and
    clusters.

    Args:
        tasks: Tasks of a split.
        count: Number of tasks to return, at most as many as there are.
        chosen: Fewer tasks that were returned before. They are included in the result.
    """
    ids = {task.id for task in chosen}
    groups: dict[str, list[tuple[int, str, int, Task]]] = defaultdict(list)
    found: list[tuple[int, Task]] = []
    sizes, already = Counter[str](), Counter[str]()
    for position, task in enumerate(tasks):
        sizes[task.category] += 1
        if task.id in ids:
            already[task.category] += 1
            found.append((position, task))
        else:
            groups[task.category].append((task.difficulty, task.cluster, position, task))
    for category, whole in _shares(dict(sizes), count).items():
        group, share = sorted(groups[category], key=lambda entry: entry[:3]), whole - already[category]
        found.extend(group[(2 * i + 1) * len(group) // (2 * share)][2:] for i in range(share))
    return [task for _, task in sorted(found, key=lambda entry: entry[0])]


def widened(tasks: Tasks, counts: Sequence[int]) -> list[Task]:
    """Return the tasks of a run that was extended to each of these numbers in order; see `spread`. A protocol's number
    may be larger than that of the tasks; then all are returned.
    """
    chosen: list[Task] = []
    for count in counts:
        chosen = spread(tasks, min(count, len(tasks)), chosen)
    return chosen


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Return each group's share of `count`, never more than its size, as `count` is at most the sum of sizes."""
    given = dict.fromkeys(sizes, 0)

    def priority(name: str) -> tuple[float, int, str]:
        quotient = sizes[name] / (2 * given[name] + 1) if given[name] else math.inf
        return quotient, sizes[name], name

    for _ in range(count):
        given[max(sizes, key=priority)] += 1
    return given
