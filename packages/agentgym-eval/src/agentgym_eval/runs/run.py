"""An evaluation run: the episodes that settings ask for, played by a policy, in a folder from which the run resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import EnvPool, Episode, EpisodeSpec, Policy, ReplyWrapper, Task, play_many, play_pool, text_env
from agentgym_envs.episodes.play import play_each
from agentgym_envs.util.screenshots import FOLDER, ScreenshotStore

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.harness import EpisodePlayer, PlayerFactory, find_player
from agentgym_eval.policies.metered import Metered
from agentgym_eval.policies.objects import guarded
from agentgym_eval.policies.policies import EnvPolicy, PolicyFactory, find_policy
from agentgym_eval.runs.environments import (
    check_dependencies,
    for_one_environment,
    open_world,
    select_tasks,
    world_id,
    world_spec,
)
from agentgym_eval.runs.extending import BEFORE, GROWING, counts_before, digest, extends, settings_in
from agentgym_eval.runs.protocols import find_protocol
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.storage.attempts import repeated
from agentgym_eval.storage.store import EPISODES, PROMPT_DIGEST, USAGE, Store, write_json
from agentgym_eval.util.errors import RunStopped, Unplayable, UsageError, WorldMissing

_IN_A_ROW = 10
"""Fewer failed episodes in a row don't predict that the following ones fail, too."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose folder is open and locked."""

    settings: PlaySettings
    episode_specs: tuple[EpisodeSpec, ...]
    """All episodes of the run: first every task once, then every task a second time, and so on."""
    store: Store
    policy: PolicyFactory | Policy
    """The policy, which its owner closes, or what builds it once there is something to play."""
    env: ReplyWrapper
    """An environment of the run; a pool's environments are built when playing starts."""
    player_factory: PlayerFactory | None = None
    """Builds what plays whole episodes with the policy's model; None if the policy plays in the environment."""

    @property
    def task_set(self) -> str:
        """Name of the task set, for environments with several; otherwise empty."""
        return text_env(self.env).tasks.name

    @property
    def protocol_note(self) -> str:
        """A sentence on the protocol that the run follows, and how its tasks relate to the paper's; empty if there is
        none.
        """
        asked, tasks = self.settings, len({spec.task_id for spec in self.episode_specs})
        if not asked.protocol:
            return ""
        protocol = find_protocol(asked.protocol)
        return protocol.sentence(asked.env, tasks=tasks, task_set=self.task_set, items=bool(asked.items))

    @property
    def episodes(self) -> list[Episode]:
        """The episodes played so far, in the order of the specs, however often the run was resumed."""
        played = {_key(episode): episode for episode in self.store.episodes}
        return [played[key] for key in map(_key, self.episode_specs) if key in played]

    @property
    def missing(self) -> list[EpisodeSpec]:
        """The specs that are still to be played."""
        played = {_key(episode) for episode in self.store.episodes}
        return [spec for spec in self.episode_specs if _key(spec) not in played]

    @property
    def left_out(self) -> Iterator[str]:
        """A sentence for each line on disk that doesn't count: a later line has the same task and sample, or the
        environment has no such task.
        """
        tasks, path = text_env(self.env).tasks, self.store.folder / EPISODES
        lines: dict[tuple[str | None, int], int] = {}
        for number, episode in enumerate(self.store.episodes, 1):
            if (before := lines.get(_key(episode))) is not None:
                yield repeated(path, before, number, episode)
            lines[_key(episode)] = number
            if episode.task_id not in tasks:
                yield f"{path}, line {number}: {episode.env} has no task {episode.task_id!r}; the line doesn't count."

    @property
    def usage(self) -> Usage:
        """Token usage of this run, over all processes that worked on it."""
        return self.store.journal.usage

    def write_usage(self) -> None:
        """Write the token usage of this run to its folder, if there is any."""
        if self.usage.requests:
            price = self.settings.endpoint.price
            write_json(self.store.folder / USAGE, self.usage.to_dict(price) | ({"price": list(price)} if price else {}))

    def play(self) -> Iterator[Episode]:
        """Play what is still missing; see `play_runs`."""
        return play_runs([self])

    def play_with(
        self, policy: Policy, runner: asyncio.Runner, player: EpisodePlayer | None = None
    ) -> Generator[Episode]:
        """Play the missing episodes: with the player if there is one, in this process where the policy needs the
        environment, else in a pool.
        """
        guard = guarded(policy, self.settings.policy)
        if player is not None:
            yield from self._played(runner, lambda _: self._play_each(player))
        elif policy.needs_env:
            if isinstance(policy, EnvPolicy):
                policy.check(self.env)
            yield from play_many(self.env, guard, self.missing, pictures=self._pictures)
        else:
            yield from self._played(runner, partial(self._play_pool, guard))

    def _play_each(self, player: EpisodePlayer) -> AsyncGenerator[Episode]:
        settings, specs = self.settings, self.missing
        made = world_spec(settings)

        def play(spec: EpisodeSpec) -> Coroutine[Any, Any, Episode]:
            return player.play(self.env, made, spec, settings.horizon)

        return play_each([play] * min(settings.slots, len(specs)), specs, settings.label)

    def _play_pool(self, policy: Policy, stack: AsyncExitStack) -> AsyncGenerator[Episode]:
        specs = self.missing
        pool = stack.enter_context(EnvPool(world_spec(self.settings), min(self.settings.slots, len(specs))))
        return play_pool(pool, policy, specs, env=self.env, pictures=self._pictures)

    @property
    def _pictures(self) -> ScreenshotStore:
        """Where the screenshots are stored that the agent gets."""
        return ScreenshotStore(self.store.folder / FOLDER)

    def _played(
        self, runner: asyncio.Runner, begin: Callable[[AsyncExitStack], AsyncGenerator[Episode]]
    ) -> Generator[Episode]:
        """Play episodes concurrently. Coroutines run while an episode is awaited."""
        stack = AsyncExitStack()
        waiting: asyncio.Task[Any] | None = None

        async def end() -> None:
            if waiting is not None and not waiting.done():  # after a second Ctrl-C
                waiting.cancel()
                await asyncio.wait([waiting])
            await stack.aclose()

        try:
            episodes = begin(stack)
            stack.push_async_callback(episodes.aclose)

            async def next_episode() -> Episode | None:
                nonlocal waiting
                waiting = asyncio.current_task()
                return await anext(episodes, None)

            while (episode := runner.run(next_episode())) is not None:
                yield episode
        except KeyboardInterrupt:
            _run_scheduled(runner.get_loop())
            raise
        finally:
            runner.run(end())


def _run_scheduled(loop: asyncio.AbstractEventLoop) -> None:
    """Run the callbacks that are scheduled now. If a task was done in the iteration in which another one was
    interrupted, one of them stops the event loop, which would otherwise end the next task that runs in it too early.
    """
    loop.call_soon(loop.stop)
    loop.run_forever()


def play_runs(
    runs: Sequence[Run], *, unplayable: Callable[[Run, Unplayable], None] | None = None
) -> Generator[Episode]:
    """Play the missing episodes of runs that `open_runs` opened together, one environment after the other, and yield
    each episode once it is on disk. The policy is built once, and closed at the end; a given one stays open. If a
    protocol limits replies to other numbers of tokens in some environments, it is built once for each number.

    Args:
        runs: In the order in which they are played, those with the same limit together.
        unplayable: Called with a run whose environment the policy can't play, so that the others continue.

    Raises:
        Unplayable: for such an environment, where `unplayable` is None.
        UsageError: if the policy can't be built.
        RunStopped: if the policy can't continue, or a user's policy raises an error.
    """
    alike: dict[int, list[Run]] = {}
    for run in runs:
        if run.missing:
            alike.setdefault(run.settings.max_tokens, []).append(run)
    for waiting in alike.values():
        yield from _play_alike(waiting, runs, unplayable)


def _play_alike(
    waiting: Sequence[Run], runs: Sequence[Run], unplayable: Callable[[Run, Unplayable], None] | None
) -> Generator[Episode]:
    """Play those of the runs that are `waiting`, with one policy; see `play_runs`."""
    asked = waiting[0].settings
    waiting[0].store.start()  # an error from here on leaves a folder that can be resumed
    # Another seed in each process: a model would otherwise draw the same numbers again.
    seed = asked.seed + sum(len(run.store.episodes) for run in runs)
    given = waiting[0].policy
    owned = isinstance(given, Policy)
    sees = any(run.env.scaffold.pictures for run in waiting)
    building: dict[str, Any] = {"temperature": asked.temperature, "seed": seed, "max_tokens": asked.max_tokens}
    policy = given if owned else given(**building, **({"pictures": True} if sees else {}))
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        for run in waiting:
            stack.callback(run.write_usage)  # last, since closing a policy may bring more replies
        if not owned:
            stack.callback(lambda: runner.run(guarded(policy, asked.policy).close()))
        if sees and not (policy.sees_pictures or policy.needs_env):
            raise UsageError(
                f"The policy {asked.policy} doesn't see pictures. Leave out --pictures, or choose one that does: "
                "openai:MODEL, hf:PATH with a vision-language model, or a Policy of your own that sets "
                "sees_pictures = True and reads Message.picture."
            )
        player = None
        if build := waiting[0].player_factory:
            player = build(policy, temperature=asked.temperature, max_tokens=asked.max_tokens)
            stack.callback(_close, player, runner)
        if isinstance(policy, Metered):
            policy.budget = asked.endpoint.limits()
            policy.usage = sum((run.usage for run in runs), start=Usage())
        for run in waiting:
            run.store.start()
            if isinstance(policy, Metered):
                policy.journal = run.store.journal
            playing = run.play_with(policy, runner, player)
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
            except gymnasium.error.DependencyNotInstalled as error:  # found out at the first reset
                raise WorldMissing(str(error)) from error
            run.store.rest()


def _close(player: EpisodePlayer, runner: asyncio.Runner) -> None:
    runner.run(player.close())


def _without(run: Run, runs: Sequence[Run]) -> str:
    """How to play the other environments without that of `run`; empty where nothing was played."""
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
    """Yield episodes, failed ones only after a later one that didn't fail: while an environment or its server is down,
    no tasks are recorded as failed, and the same command plays them later.

    Raises:
        RunStopped: if more episodes fail in a row than `max_failed` allows for the whole run.
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
                f"one with {episode.error}. Fix the {run.settings.breakable}, or keep failed episodes with "
                "--max-failed 1."
            )
    yield from failed


@contextmanager
def open_run(settings: PlaySettings, folder: Path, maker: PolicyFactory | Policy | None = None) -> Generator[Run]:
    """Open the run in `folder`, new or resumed; see `open_runs`."""
    with open_runs({folder: settings}, maker) as (run,):
        yield run


@contextmanager
def open_runs(
    asked: Mapping[Path, PlaySettings],
    maker: PolicyFactory | Policy | None = None,
    *,
    missing: Callable[[PlaySettings, WorldMissing], None] | None = None,
) -> Generator[tuple[Run, ...]]:
    """Open a run for each environment, new or resumed. No folder is touched before everything that was asked for is
    found.

    Args:
        asked: Settings by run folder. Settings of several environments differ only in `env`, `options` and what a
            protocol determines.
        maker: The policy, or what builds it; if given, the settings' `policy` is only its name.
        missing: Called for an environment whose packages or programs aren't installed, so that the others are opened.

    Raises:
        WorldMissing: for such an environment where `missing` is None, or if there is no other.
        UsageError: if an environment, its options, a task or the policy don't exist, or a folder can't be used; see
            `Store`.
    """
    with ExitStack() as stack:
        envs = _open_worlds(asked, stack, missing)
        maker = maker or find_policy(next(iter(asked.values())).policy)
        player = find_player(next(iter(asked.values())).harness)
        earlier = {settings.env: settings_in(folder) for folder, settings in asked.items() if not settings.overwrite}
        before = {s.env: counts_before(earlier.get(s.env, {}), s) for s in asked.values()}
        chosen = select_tasks([(env, asked[folder]) for folder, env in envs.items()], before)
        runs: list[Run] = []
        for (folder, env), tasks in zip(envs.items(), chosen, strict=True):
            settings = asked[folder]
            specs = [
                EpisodeSpec(task.id, sample, settings.seed, task.split)
                for sample in range(settings.samples)
                for task in tasks
            ]
            identity = _identity(settings, env, tasks, before[settings.env])
            resolved = _resolved(env, tasks, settings.harness.name or env.agent)
            growing = GROWING if extends(earlier.get(settings.env, {}), settings, env, tasks) else frozenset[str]()
            overwrite, tags = settings.overwrite, settings.tags
            store = Store(folder, identity, resolved=resolved, may_differ=growing, overwrite=overwrite, tags=tags)
            runs.append(Run(settings, tuple(specs), store, maker, env, player))
        for run in runs:
            stack.enter_context(run.store)
        yield tuple(runs)


def _open_worlds(
    asked: Mapping[Path, PlaySettings],
    stack: ExitStack,
    missing: Callable[[PlaySettings, WorldMissing], None] | None,
) -> dict[Path, ReplyWrapper]:
    """The environments that can be played on this machine, by folder; `stack` closes them."""
    envs: dict[Path, ReplyWrapper] = {}
    for folder, settings in asked.items():
        try:
            env = stack.enter_context(closing(open_world(settings)))
            check_dependencies(env)
        except WorldMissing as error:
            if missing is None or (not envs and settings is list(asked.values())[-1]):
                raise
            missing(settings, error)
        except UsageError as error:
            raise UsageError(f"{error}{for_one_environment(error, settings, asked.values())}") from error
        else:
            envs[folder] = env
    return envs


def _resolved(env: ReplyWrapper, tasks: Sequence[Task], agent: str) -> dict[str, Any]:
    """Settings that the environment resolved."""
    limit = env.spec.max_episode_steps if env.spec else None
    return {"agent": agent, "horizon": limit, "task_set": text_env(env).tasks.name, "tasks": len(tasks)}


def _identity(settings: PlaySettings, env: ReplyWrapper, tasks: list[Task], before: Sequence[int]) -> dict[str, Any]:
    extra: dict[str, Any] = {BEFORE: list(before)} if before else {}
    if settings.prompt:  # its name doesn't tell whether the file or function has changed
        extra[PROMPT_DIGEST] = sha256(env.instructions.encode()).hexdigest()
    return {**settings.identity(), "env": world_id(settings.env), "tasks_sha256": digest(tasks), **extra}


def _key(spec: EpisodeSpec | Episode) -> tuple[str | None, int]:
    return spec.task_id, spec.sample
