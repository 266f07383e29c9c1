"""Sampling ahead: groups are played all the time, while the learner works too, a bounded number of updates ahead of it.

What is played lives in the thread of `Rollouts`; the learner asks for the next groups when it is ready for them and
gets them in the order in which they were dealt, or as `config.overlap` says. An episode under way goes on after an
update: its next reply is sampled with the new weights. Knows nothing of how updates are taken, nor of how tasks are
drawn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym_envs import Episode, EpisodeSpec
from agentgym_envs.episodes.play_pool import Player, play_slot

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.plugins import blaming
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, restore_group_specs
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import RolloutRunner

Draw = Callable[[int, TrainingState], Sequence[GroupSpec]]
"""What this process is to play of a draw of `config.tasks` tasks: from the draw's number, and where the run stands."""


def judged(config: RLConfig, episodes: Sequence[Episode], number: int) -> EpisodeGroup:
    """The group that these episodes are, by the rules and rewards of the configuration.

    Raises:
        ExtensionError: when the reward shaping or the advantage estimator of another package can't be used.
    """
    algorithm, task = config.algorithm, episodes[0].task_id
    with blaming(config.reward, doing=f"shape the rewards of an episode of {task}"):
        return EpisodeGroup.from_episodes(
            episodes, algorithm, masked=config.masked, number=number, reward=config.reward
        )


@dataclass(slots=True, eq=False)
class _InFlightGroup:
    """A group on its way: to be played, in play, or waiting to be taken."""

    number: int
    """Its place in the order of dealing."""
    deal: GroupSpec
    horizon: int
    """The most turns, at the version of the weights that it was dealt at."""
    episodes: list[Episode] = field(default_factory=list[Episode])

    @property
    def complete(self) -> bool:
        """Whether all its episodes have ended."""
        return len(self.episodes) == len(self.deal.episodes)

    def places(self, config: RLConfig) -> int:
        """How many of a step's tasks it stands for: more than one where the same task was drawn more than once."""
        return len(self.deal.episodes) // config.group_size


@dataclass(slots=True, eq=False)
class _EnvironmentQueue:
    """A world's free slots, and what is to be played in them."""

    world: OpenEnvironment
    free: list[int]
    waiting: deque[tuple[_InFlightGroup, EpisodeSpec]] = field(
        default_factory=deque[tuple[_InFlightGroup, EpisodeSpec]]
    )


class AsyncCollector:
    """The groups of a run, played up to K = `config.overlap.versions` updates ahead of the learner.

    No more than the groups of K + 1 steps are in play, waiting, or being trained on. Groups train in the order in which
    they were dealt, and `collect` waits for the oldest, so each trains within K updates of being dealt, whether its
    episodes are fast or slow, and a step trains the tasks that were drawn for it. That is `config.overlap.beyond`
    "wait"; with "keep" and "drop" the oldest of the complete groups train first, and what of them is more than K
    updates old by then is trained on all the same, or left out. With K = 0 a step's groups are dealt when they are
    asked for, and all of them awaited: exactly on-policy.
    """

    def __init__(
        self,
        rollouts: RolloutRunner,
        player: Player,
        config: RLConfig,
        worlds: Sequence[OpenEnvironment],
        draw: Draw,
        *,
        ranks: Ranks,
    ) -> None:
        """Play nothing before the first `collect`.

        Args:
            rollouts: The engine and its thread.
            player: Who plays.
            config: Of which this reads `overlap`, `tasks`, `samples`, `steps`, what is `masked`, `reward` and the
                algorithm.
            worlds: Where the tasks are that are drawn.
            draw: Draws tasks; called in the thread of `rollouts` while `collect` waits.
            ranks: How many processes share the tasks of a step.
        """
        self._rollouts, self._player, self._config, self._ranks = rollouts, player, config, ranks
        self._worlds, self._draw = worlds, draw
        self._tasks = len(ranks.share(range(config.tasks_per_step)))
        self._drawn: deque[GroupSpec] | None = None
        """What was drawn and not yet dealt; None before the first `collect`."""
        self._draws = 0
        self._dealt = 0
        self._under_way: list[_InFlightGroup] = []
        """The groups that were dealt and not yet taken, in the order of dealing."""
        self._places = 0
        """How many of a step's tasks the groups on their way stand for."""
        self._tables: dict[str, _EnvironmentQueue] = {}
        self._at_work = set[asyncio.Task[None]]()
        self._changed = asyncio.Event()
        """Set when a group is complete, or playing has failed."""
        self._error: BaseException | None = None
        self._settling = False

    def collect(self, progress: TrainingState) -> list[EpisodeGroup]:
        """The groups for the next update, in the order of dealing. The first time these are, before any others, those
        that were under way when the run was saved (`progress.ahead`), begun again.

        Among them are those that were to be resampled or had grown too old, marked so; others were played in their
        place.

        Raises:
            EngineGone: when the engine can't be brought back; or whatever else the player raises.
        """
        return self._rollouts.run(self._collect(progress), checked=True)

    def under_way(self) -> dict[str, Any]:
        """What was drawn and not taken by the last `collect`, as JSON values: how many draws there were, and the deals
        that are under way or next, in their order. For checkpoints: a run that goes on from one begins these again, so
        that nothing is lost for having been slow, or trains twice for having been fast.
        """
        deals = [dealt.deal for dealt in self._under_way] + list(self._drawn or ())
        return {"draws": self._draws, "deals": [deal.to_json() for deal in deals]}

    def settle(self) -> None:
        """Play the episodes under way to their end and begin no other before the next `collect`. All slots are free
        then, for an evaluation.
        """
        self._rollouts.run(self._settle(), checked=True)

    def close(self) -> None:
        """Cancel what is in play. May be called twice."""
        self._rollouts.run(self._cancel())

    async def _collect(self, progress: TrainingState) -> list[EpisodeGroup]:
        self._settling = False
        if self._drawn is None:
            self._drawn = deque(self._begun_before(progress))
        most = self._tasks * (1 + self._config.algorithm.groups.rounds)
        taken: list[EpisodeGroup] = []
        kept = resampled = 0
        while kept < self._tasks and kept + resampled < most:
            self._top_up(progress, kept)
            if not self._places:
                break  # the world has fewer tasks than the run has processes, and none is left for this one
            dealt = await self._next()
            self._under_way.remove(dealt)
            self._places -= dealt.places(self._config)
            group = self._judged(dealt)
            if self._is_too_old(group, progress.step):
                group = replace(group, treatment="drop")
            elif group.treatment == "resample":
                resampled += dealt.places(self._config)
            else:
                kept += dealt.places(self._config)
            taken.append(group)
        return sorted(taken, key=lambda group: group.number)

    async def _next(self) -> _InFlightGroup:
        """The group whose turn it is, once it is complete."""
        while (dealt := self._ready()) is None:
            self._changed.clear()
            await self._changed.wait()
        return dealt

    def _ready(self) -> _InFlightGroup | None:
        if self._error is not None:
            raise self._error  # what it ended would be waited for in vain
        in_turn = self._under_way[:1] if self._config.async_rollout.on_stale == "wait" else self._under_way
        return next((dealt for dealt in in_turn if dealt.complete), None)

    def _top_up(self, progress: TrainingState, kept: int) -> None:
        """Deal as many groups as may be on their way, beside those that are kept for this step already."""
        left = self._config.steps - 1 - progress.step
        ahead = min(self._config.async_rollout.max_staleness, left)
        while self._places + kept < self._tasks * (1 + ahead) and self._deal(progress):
            pass
        for table in self._tables.values():
            for _ in range(min(len(table.free), len(table.waiting))):
                self._employ(table, table.free.pop(0))

    def _deal(self, progress: TrainingState) -> bool:
        """Put the next group on its table, if there is one. Tasks are drawn a step's at a time."""
        assert self._drawn is not None
        if not self._drawn:
            number = max(self._draws, progress.step)
            self._drawn.extend(self._draw(number, progress))
            self._draws = number + 1
        if not self._drawn:
            return False
        deal = self._drawn.popleft()
        number = self._dealt * self._ranks.count + self._ranks.index
        dealt = _InFlightGroup(number, deal, progress.stage.turns)
        self._dealt += 1
        self._under_way.append(dealt)
        self._places += dealt.places(self._config)
        table = self._tables.setdefault(
            deal.world.name, _EnvironmentQueue(deal.world, list(range(len(deal.world.pool))))
        )
        table.waiting.extend((dealt, job) for job in deal.episodes)
        return True

    def _begun_before(self, progress: TrainingState) -> Sequence[GroupSpec]:
        """What this process begins again of what was under way when the run was saved. Where there were other processes
        then, all of it is shared out anew.
        """
        if not progress.ahead:
            return ()
        self._draws = max(known["draws"] for known in progress.ahead)
        if len(progress.ahead) == self._ranks.count:
            own = progress.ahead[self._ranks.index]
            self._draws = own["draws"]
            return restore_group_specs(own["deals"], self._worlds)
        every = [deal for known in progress.ahead for deal in known["deals"]]
        return restore_group_specs(self._ranks.share(every), self._worlds)

    def _judged(self, dealt: _InFlightGroup) -> EpisodeGroup:
        return judged(self._config, sorted(dealt.episodes, key=lambda episode: episode.sample), dealt.number)

    def _is_too_old(self, group: EpisodeGroup, step: int) -> bool:
        overlap = self._config.async_rollout
        return overlap.on_stale == "drop" and group.outcome.lag(step) > overlap.max_staleness

    def _employ(self, table: _EnvironmentQueue, slot: int) -> None:
        task = asyncio.get_running_loop().create_task(self._occupy(table, slot))
        self._at_work.add(task)
        task.add_done_callback(self._leave)

    async def _occupy(self, table: _EnvironmentQueue, slot: int) -> None:
        """Play in a slot what waits at its table, the oldest first."""
        pool, wrapped = table.world.pool, table.world.wrapped
        try:
            while table.waiting and not self._settling:
                dealt, job = table.waiting.popleft()
                episode = await play_slot(pool, slot, self._player, job, world=wrapped, horizon=dealt.horizon)
                dealt.episodes.append(episode)
                if dealt.complete:
                    self._changed.set()
                await asyncio.sleep(0)  # where neither world nor player ever wait, the others would not get a turn
        finally:
            table.free.append(slot)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._changed.set()

    async def _settle(self) -> None:
        self._settling = True
        await asyncio.gather(*self._at_work)

    async def _cancel(self) -> None:
        for task in self._at_work:
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)
