"""A run: the episodes that settings ask for, played by a policy, in a folder from which it resumes.

Both commands and the trainer's evaluations are runs. Knows nothing about figures, tables or terminals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import EnvPool, Episode, Job, Player, Policy, ReplyWrapper, Task, Tasks, play_many, text_env
from agentgym_envs.play_pool import play_pool

from agentgym_eval.errors import UsageError
from agentgym_eval.policies import Maker, find_policy
from agentgym_eval.settings import PlaySettings
from agentgym_eval.store import Store
from agentgym_eval.worlds import choose_tasks, open_world, world_id, world_spec


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is open for playing."""

    settings: PlaySettings
    jobs: tuple[Job, ...]
    """All episodes of the run: first every task once, then every task a second time, and so on."""
    store: Store
    maker: Maker
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
        return [played[key] for key in map(_key, self.jobs) if key in played]

    def play(self) -> Iterator[Episode]:
        """Play what is still missing, and yield each episode when it is safely on disk.

        Raises:
            UsageError: when the policy can't be built, or the world needs what isn't installed.
            RunStopped: when whoever plays can't go on; see there.
        """
        played = {_key(episode) for episode in self.store.episodes}
        pending = [job for job in self.jobs if _key(job) not in played]
        if not pending:
            return
        asked = self.settings
        # Another seed in each sitting: a model would otherwise draw again the numbers it drew in the first.
        seed = asked.seed + len(played)
        player = self.maker(temperature=asked.temperature, seed=seed, max_tokens=asked.max_tokens)
        alone = isinstance(player, Player)
        try:
            with closing(self._alone(player, pending) if alone else self._at_once(player, pending)) as episodes:
                for episode in episodes:
                    self.store.append(episode)
                    yield episode
        except gymnasium.error.DependencyNotInstalled as error:  # of what a world starts at its first reset
            raise UsageError(str(error)) from error

    def _at_once(self, policy: Policy, jobs: Sequence[Job]) -> Generator[Episode]:
        """All worlds are here, and the policy answers all of them at once: an expert reads their state."""
        with ExitStack() as stack:
            more = (open_world(self.settings) for _ in range(min(self.settings.slots, len(jobs)) - 1))
            envs = [self.env, *(stack.enter_context(closing(env)) for env in more)]
            yield from play_many(envs, policy, jobs)

    def _alone(self, player: Player, jobs: Sequence[Job]) -> Generator[Episode]:
        """Each trajectory asks when it is its turn. What is asynchronous goes on while an episode is waited for."""
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                stack.push_async_callback(player.close)
                slots = min(self.settings.slots, len(jobs))
                pool = stack.enter_context(EnvPool(world_spec(self.settings), slots))
                episodes = play_pool(pool, player, jobs, world=self.env)
                stack.push_async_callback(episodes.aclose)

                async def following() -> Episode | None:
                    return await anext(episodes, None)

                while (episode := runner.run(following())) is not None:
                    yield episode
            finally:
                runner.run(stack.aclose())


@contextmanager
def open_run(settings: PlaySettings, folder: Path, maker: Maker | None = None) -> Generator[Run]:
    """Open the run in `folder`, begun or resumed.

    Args:
        settings: What is played.
        folder: Where its episodes lie.
        maker: Builds the policy; when given, `settings.policy` is no more than its name.

    Raises:
        UsageError: when the world, its options, a task or the policy's name don't exist, or the folder can't be used;
            see `Store`.
    """
    with closing(open_world(settings)) as env:
        maker = maker or find_policy(settings.policy)
        tasks = choose_tasks(env, settings)
        jobs = tuple(
            Job(task.id, sample, settings.seed, task.split) for sample in range(settings.samples) for task in tasks
        )
        with Store(folder, _identity(settings, tasks), overwrite=settings.overwrite) as store:
            yield Run(settings, jobs, store, maker, env)


def _identity(settings: PlaySettings, tasks: list[Task]) -> dict[str, Any]:
    digest = Tasks([task.id for task in tasks], {task.id: task for task in tasks}.__getitem__).digest()
    return {**settings.identity(), "env": world_id(settings.env), "tasks_sha256": digest}


def _key(job: Job | Episode) -> tuple[str | None, int]:
    return job.task_id, job.sample
