"""A run: the episodes that settings ask for, played by a policy, in a folder from which it resumes.

Both commands and the trainer's evaluations are runs. Knows nothing about figures, tables or terminals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import EnvPool, Episode, EpisodeSpec, Player, Policy, ReplyWrapper, Task, play_many, text_env
from agentgym_envs.episodes.play_pool import play_pool

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.metered import Metered
from agentgym_eval.policies.policies import PolicyFactory, find_policy
from agentgym_eval.runs.environments import check_dependencies, deal_tasks, open_world, world_id, world_spec
from agentgym_eval.runs.extending import BEFORE, GROWING, counts_before, digest, extends, settings_in
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.storage.store import EPISODES, USAGE, Store, write_json
from agentgym_eval.util.errors import RunStopped, Unplayable, WorldMissing

_IN_A_ROW = 10
"""Fewer failed episodes one after the other say nothing about those to come."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is open for playing."""

    settings: PlaySettings
    episode_specs: tuple[EpisodeSpec, ...]
    """All episodes of the run: first every task once, then every task a second time, and so on."""
    store: Store
    policy_factory: PolicyFactory
    """Builds the policy when there is something to play."""
    env: ReplyWrapper
    """The world at hand; the others are built when playing starts."""

    @property
    def task_set(self) -> str:
        """Name of the set that the tasks are of, where the world has several sets; else empty."""
        return text_env(self.env).tasks.name

    @property
    def episodes(self) -> list[Episode]:
        """The episodes so far in the order of the jobs, which is the same however often the run was resumed."""
        played = {_key(episode): episode for episode in self.store.episodes}
        return [played[key] for key in map(_key, self.episode_specs) if key in played]

    @property
    def missing(self) -> list[EpisodeSpec]:
        """The jobs that are still to be played."""
        played = {_key(episode) for episode in self.store.episodes}
        return [job for job in self.episode_specs if _key(job) not in played]

    @property
    def left_out(self) -> Iterator[str]:
        """A sentence for each line on disk that doesn't count: a later one has the same task and sample, or the world
        has no such task.
        """
        tasks, path = text_env(self.env).tasks, self.store.folder / EPISODES
        lines: dict[tuple[str | None, int], int] = {}
        for number, episode in enumerate(self.store.episodes, 1):
            if (before := lines.get(_key(episode))) is not None:
                again = f"{episode.task_id}, sample {episode.sample}, is in line {number} again"
                yield f"{path}, line {before}: {again}, which counts instead."
            lines[_key(episode)] = number
            if episode.task_id not in tasks:
                yield f"{path}, line {number}: {episode.env} has no task {episode.task_id!r}; the line doesn't count."

    @property
    def usage(self) -> Usage:
        """What a player that is paid by the token has used in this run, in all sittings."""
        return self.store.journal.usage

    def write_usage(self) -> None:
        """Write down what was used in this run, where anything was."""
        if self.usage.requests:
            write_json(self.store.folder / USAGE, self.usage.to_dict(self.settings.endpoint.price))

    def play(self) -> Iterator[Episode]:
        """Play what is still missing; see `play_runs`."""
        return play_runs([self])

    def at_once(self, policy: Policy) -> Generator[Episode]:
        """What is missing, all worlds here, and the policy answers all of them at once: an expert reads their state."""
        jobs = self.missing
        with ExitStack() as stack:
            more = (open_world(self.settings) for _ in range(min(self.settings.slots, len(jobs)) - 1))
            envs = [self.env, *(stack.enter_context(closing(env)) for env in more)]
            yield from play_many(envs, policy, jobs)

    def alone(self, player: Player, runner: asyncio.Runner) -> Generator[Episode]:
        """What is missing, each trajectory asking when it is its turn. What is asynchronous goes on while an episode is
        waited for.
        """
        jobs, stack = self.missing, AsyncExitStack()
        waiting: asyncio.Task[Any] | None = None

        async def end() -> None:
            if waiting is not None and not waiting.done():  # a second Ctrl-C came out of it
                waiting.cancel()
                await asyncio.wait([waiting])
            await stack.aclose()

        try:
            pool = stack.enter_context(EnvPool(world_spec(self.settings), min(self.settings.slots, len(jobs))))
            episodes = play_pool(pool, player, jobs, world=self.env)
            stack.push_async_callback(episodes.aclose)

            async def following() -> Episode | None:
                nonlocal waiting
                waiting = asyncio.current_task()
                return await anext(episodes, None)

            while (episode := runner.run(following())) is not None:
                yield episode
        finally:
            runner.run(end())


def play_runs(
    runs: Sequence[Run], *, unplayable: Callable[[Run, Unplayable], None] | None = None
) -> Generator[Episode]:
    """Play what is still missing in runs that `open_runs` opened together, one world after the other, and yield each
    episode when it is safely on disk. The player is built once.

    Args:
        runs: In the order in which they are played.
        unplayable: Told of a run whose world the player can't play, so that the others go on.

    Raises:
        Unplayable: of such a world, when nobody is to be told.
        UsageError: when the policy can't be built.
        RunStopped: when whoever plays can't go on; see there.
    """
    waiting = [run for run in runs if run.missing]
    if not waiting:
        return
    asked = waiting[0].settings
    waiting[0].store.start()  # what fails from here on keeps it from being played
    # Another seed in each sitting: a model would otherwise draw again the numbers it drew in the first.
    seed = asked.seed + sum(len(run.store.episodes) for run in runs)
    player = waiting[0].policy_factory(temperature=asked.temperature, seed=seed, max_tokens=asked.max_tokens)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        for run in waiting:
            stack.callback(run.write_usage)  # last, since closing a player may bring more replies
        if isinstance(player, Player):
            stack.callback(lambda: runner.run(player.close()))
        if isinstance(player, Metered):
            player.budget = asked.endpoint.limits()
            player.usage = sum((run.usage for run in runs), start=Usage())
        for run in waiting:
            run.store.start()
            if isinstance(player, Metered):
                player.journal = run.store.journal
            playing = run.alone(player, runner) if isinstance(player, Player) else run.at_once(player)
            try:
                with closing(playing) as episodes:
                    for episode in _settled(run, episodes):
                        run.store.append(episode)
                        run.write_usage()
                        yield episode
            except Unplayable as error:
                if unplayable is None:
                    raise Unplayable(f"{error}{_without(run, runs)}") from error
                unplayable(run, error)
            except gymnasium.error.DependencyNotInstalled as error:  # which the world finds out at its first reset
                raise WorldMissing(str(error)) from error
            run.store.rest()


def _without(run: Run, runs: Sequence[Run]) -> str:
    """How the other worlds are played on without that of `run`; empty where nothing was played."""
    played = [other for other in runs if other.store.episodes]
    if not played:
        return ""
    kept = f" What was played is kept in {run.store.folder.parent if len(runs) > 1 else run.store.folder}."
    if len(runs) == 1:
        return kept
    if run in played:
        return f"{kept} Begin again without {run.settings.env}, with --overwrite or another --out."
    again = "the same command without --overwrite" if run.settings.overwrite else "the same command"
    return f"{kept} Leave {run.settings.env} out of --env, and {again} goes on there."


def _settled(run: Run, episodes: Iterator[Episode]) -> Iterator[Episode]:
    """Pass episodes on, but failed ones only when another has ended well since: where the world or its server is gone,
    no task after the other is written off, and the same command plays them when it is back.

    Raises:
        RunStopped: when more have failed in a row than the settings bear of the whole run.
    """
    bearable = max(_IN_A_ROW - 1, int(run.settings.max_failed * len(run.episode_specs)))
    failed = list[Episode]()
    for episode in episodes:
        failed.append(episode)
        if not episode.failed:
            yield from failed
            failed.clear()
        elif len(failed) > bearable:
            raise RunStopped(
                f"{len(failed)} episodes in {run.settings.env} failed one after the other and are not kept, the last "
                f"one with {episode.error}. Mend the world, or play on whatever fails with --max-failed 1."
            )
    yield from failed


@contextmanager
def open_run(settings: PlaySettings, folder: Path, maker: PolicyFactory | None = None) -> Generator[Run]:
    """Open the run in `folder`, begun or resumed; see `open_runs`."""
    with open_runs({folder: settings}, maker) as (run,):
        yield run


@contextmanager
def open_runs(
    asked: Mapping[Path, PlaySettings],
    maker: PolicyFactory | None = None,
    *,
    missing: Callable[[PlaySettings, WorldMissing], None] | None = None,
) -> Generator[tuple[Run, ...]]:
    """Open a run for each world, begun or resumed. No folder is touched before all that is asked for is found.

    Args:
        asked: What is played, by the folder where its episodes lie. Settings of several worlds differ in `env` and
            `options` alone.
        maker: Builds the policy; when given, the `policy` in the settings is no more than its name.
        missing: Told of a world that needs what isn't installed, so that the others are opened.

    Raises:
        WorldMissing: for such a world when nobody is to be told, or when there is no other.
        UsageError: when a world, its options, a task or the policy's name don't exist, or a folder can't be used; see
            `Store`.
    """
    with ExitStack() as stack:
        envs = _open_worlds(asked, stack, missing)
        maker = maker or find_policy(next(iter(asked.values())).policy)
        earlier = {settings.env: settings_in(folder) for folder, settings in asked.items() if not settings.overwrite}
        before = {s.env: counts_before(earlier.get(s.env, {}), s) for s in asked.values()}
        dealt = deal_tasks([(env, asked[folder]) for folder, env in envs.items()], before)
        runs: list[Run] = []
        for (folder, env), tasks in zip(envs.items(), dealt, strict=True):
            settings = asked[folder]
            jobs = [
                EpisodeSpec(task.id, sample, settings.seed, task.split)
                for sample in range(settings.samples)
                for task in tasks
            ]
            identity, resolved = _identity(settings, tasks, before[settings.env]), _resolved(env, tasks)
            growing = GROWING if extends(earlier.get(settings.env, {}), settings, env, tasks) else frozenset[str]()
            store = Store(folder, identity, resolved=resolved, may_differ=growing, overwrite=settings.overwrite)
            runs.append(Run(settings, tuple(jobs), store, maker, env))
        for run in runs:
            stack.enter_context(run.store)
        yield tuple(runs)


def _open_worlds(
    asked: Mapping[Path, PlaySettings],
    stack: ExitStack,
    missing: Callable[[PlaySettings, WorldMissing], None] | None,
) -> dict[Path, ReplyWrapper]:
    """The worlds that can be played here, by folder; `stack` closes them."""
    envs: dict[Path, ReplyWrapper] = {}
    for folder, settings in asked.items():
        try:
            env = stack.enter_context(closing(open_world(settings)))
            check_dependencies(env)
        except WorldMissing as error:
            if missing is None or (not envs and settings is list(asked.values())[-1]):
                raise
            missing(settings, error)
        else:
            envs[folder] = env
    return envs


def _resolved(env: ReplyWrapper, tasks: Sequence[Task]) -> dict[str, Any]:
    """What the world itself has decided."""
    limit = env.spec.max_episode_steps if env.spec else None
    return {"agent": env.agent, "horizon": limit, "task_set": text_env(env).tasks.name, "tasks": len(tasks)}


def _identity(settings: PlaySettings, tasks: list[Task], before: Sequence[int]) -> dict[str, Any]:
    grown = {BEFORE: list(before)} if before else {}
    return {**settings.identity(), "env": world_id(settings.env), "tasks_sha256": digest(tasks), **grown}


def _key(job: EpisodeSpec | Episode) -> tuple[str | None, int]:
    return job.task_id, job.sample
