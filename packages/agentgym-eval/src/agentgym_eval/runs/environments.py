"""From the names on a command line to worlds and tasks. Knows no world by name but through the registry."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium
from agentgym_envs import WORLDS, EnvFault, ReplyWrapper, Task, Tasks, TaskSet, WorldSpec, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.core.registry import REMOTE, find_spec, full_id, read_resolved
from agentgym_envs.core.tasks import SPLITS

from agentgym_eval.runs.item_ids import task_ids
from agentgym_eval.runs.settings import PlaySettings, short_name
from agentgym_eval.util.errors import UsageError, WorldMissing, listed


def world_id(name: str) -> str:
    """The Gymnasium id for `name`: itself, the id after `MODULE:` once that module is imported, or a short name's.

    Raises:
        UsageError: when there is no such world or module.
    """
    try:
        return find_spec(full_id(name)).id
    except ValueError as error:
        raise UsageError(str(error)) from error


def installed_worlds() -> tuple[tuple[str, ...], dict[str, str]]:
    """The short names of our worlds that are installed, and of the others what they miss."""
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
    """The options in `KEY=VALUE` pairs; a value that is no Python literal is taken as text, and `${NAME}` in it stands
    for a variable of the environment.

    Raises:
        UsageError: for a pair without a key or `=`, and for a variable that isn't set.
    """
    try:
        options = dict(map(read_resolved, pairs))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if "max_episode_steps" in options:
        raise UsageError("The most turns of an episode are set with --horizon, not with --options.")
    return options


def world_spec(settings: PlaySettings) -> WorldSpec:
    """The world without its reply wrapper, as the settings ask for it: for a pool.

    Raises:
        UsageError: when there is no such world, or an option is malformed.
    """
    options, remote = parse_options(settings.options), world_id(settings.env) == REMOTE
    if remote and "env" in options:
        options["env"] = full_id(str(options["env"]))
    if settings.horizon is not None:  # instead of the world's limit, which may be the lower one
        options["horizon" if remote else "max_episode_steps"] = settings.horizon
    return WorldSpec(full_id(settings.env), options)


def open_world(settings: PlaySettings) -> ReplyWrapper:
    """One world in its reply wrapper, as the settings ask for it.

    Raises:
        WorldMissing: when a package for it is missing.
        UsageError: when there is no such world, or it doesn't take the options.
    """
    spec, name = world_spec(settings), world_id(settings.env)
    try:
        env = spec.build()
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise WorldMissing(str(error)) from error
    except (ValueError, gymnasium.error.Error) as error:
        raise UsageError(str(error)) from error
    played = spec.options.get("env", name) if name == REMOTE else name
    own = {world.id: world.agent for world in WORLDS}.get(played, "react")
    player = agent(own if settings.agent is None else settings.agent)
    wrapped = player.wrap(env, instructions=None if settings.instructions else "")
    try:
        wrapped.turns_told()
    except ValueError as error:
        env.close()
        raise UsageError(f"{error} On the command line that is --horizon.") from error
    return wrapped


def check_dependencies(env: ReplyWrapper) -> None:
    """See that every program is there that the world starts only when it is played.

    Raises:
        WorldMissing: when one is missing.
    """
    try:
        text_env(env).check_dependencies()
    except gymnasium.error.DependencyNotInstalled as error:
        raise WorldMissing(str(error)) from error


def agent(spec: str) -> Agent:
    """The agent of this name.

    Raises:
        UsageError: when there is none.
    """
    try:
        return Agent.parse(spec)
    except ValueError as error:
        raise UsageError(str(error)) from error


def choose_tasks(env: ReplyWrapper, settings: PlaySettings) -> list[Task]:
    """The tasks that the settings ask for in one world; see `deal_tasks`."""
    (tasks,) = deal_tasks([(env, settings)])
    return tasks


def deal_tasks(
    worlds: Sequence[tuple[ReplyWrapper, PlaySettings]], before: Mapping[str, Sequence[int]] | None = None
) -> list[list[Task]]:
    """The tasks that are asked for in each world, in the order of the split or as named; named ones go to the world
    that has them.

    Args:
        worlds: With settings that differ in `env` and `options` alone.
        before: By `env`, how many tasks a run had before it was extended to so many, in order: these stay.

    Raises:
        UsageError: for an unknown task, an empty split, more tasks than there are, a world that none of the named tasks
            is of, or tasks that can't be loaded or not be played under the world's options.
    """
    sets = {settings.env: _task_set(env, settings) for env, settings in worlds}
    asked = worlds[0][1]
    try:
        if asked.task or asked.items:
            return _named(asked.task or task_ids(asked.items, skip=asked.skip), sets)
        grown = before or {}
        return [_of_split(sets[settings.env], settings, grown.get(settings.env, ())) for _, settings in worlds]
    except ValueError as error:  # a task that can't be played under these options
        raise UsageError(str(error)) from error


def _task_set(env: ReplyWrapper, settings: PlaySettings) -> TaskSet:
    try:
        return text_env(env).tasks
    except (EnvFault, ValueError, OSError, gymnasium.error.Error) as error:
        raise UsageError(f"The tasks of {settings.env} can't be had: {error}") from error


def _of_split(tasks: TaskSet, settings: PlaySettings, before: Sequence[int]) -> list[Task]:
    split = tasks.split(settings.split)
    if not split:
        there = listed([f"{name} ({len(tasks.split(name))})" for name in SPLITS if tasks.split(name)]) or "none"
        raise UsageError(
            f"{settings.env} has no {settings.split} tasks under these options. Splits with tasks: {there}."
        )
    wanted = len(split) if settings.tasks is None else settings.tasks
    if not 1 <= wanted <= len(split):
        raise UsageError(
            f"{settings.env} has {len(split)} {settings.split} tasks under these options, not {wanted}: "
            "lower --tasks or choose another --split or --options."
        )
    return widened(split, (*before, wanted))


def _named(ids: Sequence[str], sets: Mapping[str, TaskSet]) -> list[list[Task]]:
    missing = [task_id for task_id in ids if not any(task_id in tasks for tasks in sets.values())]
    if missing:
        raise UsageError(
            f"{_no_task(missing[0], sets)} Of {len(ids)} tasks that were asked for, {len(missing)} aren't there under "
            f"these --env and --options: {listed(missing)}."
        )
    dealt: dict[str, list[Task]] = {env: [] for env in sets}
    for task_id in dict.fromkeys(ids):
        env = next(env for env, tasks in sets.items() if task_id in tasks)
        dealt[env].append(sets[env][task_id])
    for env, tasks in dealt.items():
        if not tasks:
            raise UsageError(f"None of the {len(ids)} tasks that were asked for is of {env}: leave it out of --env.")
    return list(dealt.values())


def _no_task(task_id: str, sets: Mapping[str, TaskSet]) -> str:
    """That there is none of this name, in the words of the world that it begins with, or else of the first."""
    world = next((env for env in sets if task_id.startswith(f"{short_name(env)}/")), next(iter(sets)))
    try:
        return f"There is {sets[world][task_id].id}."
    except KeyError as error:
        return str(error.args[0])


def spread(tasks: Tasks, count: int, chosen: Sequence[Task] = ()) -> list[Task]:
    """`count` of the tasks, always the same: each category with its share (at least one task where `count` allows it;
    divided as Webster and Sainte-Laguë divide seats) and, within it, evenly over the difficulties and the clusters.

    Args:
        tasks: Of a split.
        count: How many.
        chosen: Fewer tasks that were spread before. They are among those given back.
    """
    ids = {task.id for task in chosen}
    groups: dict[str, list[tuple[int, str, int, Task]]] = defaultdict(list)
    found: list[tuple[int, Task]] = []
    sizes, had = Counter[str](), Counter[str]()
    for position, task in enumerate(tasks):
        sizes[task.category] += 1
        if task.id in ids:
            had[task.category] += 1
            found.append((position, task))
        else:
            groups[task.category].append((task.difficulty, task.cluster, position, task))
    for category, whole in _shares(dict(sizes), count).items():
        group, share = sorted(groups[category], key=lambda entry: entry[:3]), whole - had[category]
        found.extend(group[(2 * i + 1) * len(group) // (2 * share)][2:] for i in range(share))
    return [task for _, task in sorted(found, key=lambda entry: entry[0])]


def widened(tasks: Tasks, counts: Sequence[int]) -> list[Task]:
    """The tasks of a run that had first so many, then was extended to so many more, and so on; see `spread`."""
    chosen: list[Task] = []
    for count in counts:
        chosen = spread(tasks, count, chosen)
    return chosen


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """How many of `count` each group gets; never more than it has, as `count` is at most the sum of the sizes."""
    given = dict.fromkeys(sizes, 0)

    def claim(name: str) -> tuple[float, int, str]:
        quotient = sizes[name] / (2 * given[name] + 1) if given[name] else math.inf
        return quotient, sizes[name], name

    for _ in range(count):
        given[max(sizes, key=claim)] += 1
    return given
