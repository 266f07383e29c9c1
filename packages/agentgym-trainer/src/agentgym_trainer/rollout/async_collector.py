"""Asynchronous rollouts: groups are sampled while the learner works, a bounded number of updates ahead of it.

Episodes run in the thread of the `RolloutRunner`. The learner collects groups in the order in which they were drawn, or
as `config.async_rollout` says. An episode in flight continues after an update: its next reply is sampled with the new
weights.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym_envs import Episode, EpisodeSpec, ExpertStart, Policy

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.plugins import blaming
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, restore_group_specs
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import EpisodePlayer, RolloutRunner, play_in_slot

Draw = Callable[[int, TrainingState], Sequence[GroupSpec]]
"""This process's share of a draw of tasks, from the number of the draw and the training state."""


def classified(config: RLConfig, episodes: Sequence[Episode], number: int, stage: int, step: int) -> EpisodeGroup:
    """Classify a group that began in a stage, and is to train after `step` updates, by the group filter and rewards of
    the configuration.

    Raises:
        PluginError: if the reward shaping or the advantage estimator of another package can't be used.
    """
    algorithm, task = config.algorithm, episodes[0].task_id
    with blaming(config.reward, doing=f"shape the rewards of an episode of {task}"):
        return EpisodeGroup.from_episodes(
            episodes,
            algorithm,
            masked=config.masked,
            number=number,
            stage=stage,
            reward=config.reward,
            has_teacher=bool(config.distillation.teacher and config.distillation.decay(step, config.steps)),
        )


@dataclass(slots=True, eq=False)
class _InFlightGroup:
    """A group that was drawn and not yet collected."""

    number: int
    """Index in the order of drawing."""
    spec: GroupSpec
    stage: Stage
    """The stage in which it was first started, which has the limit on the policy's turns."""
    episodes: list[Episode] = field(default_factory=list[Episode])
    expert_start: ExpertStart | None = field(init=False)
    """Where its episodes begin; shared, so that the expert plays the task once."""

    def __post_init__(self) -> None:
        self.expert_start = None if self.stage.remaining is None else ExpertStart(self.stage.remaining)

    @property
    def complete(self) -> bool:
        """Whether all its episodes have ended."""
        return len(self.episodes) == len(self.spec.episodes)

    def places(self, config: RLConfig) -> int:
        """How many of a step's tasks it counts for: several where the same task was drawn several times."""
        return len(self.spec.episodes) // config.group_size


@dataclass(slots=True, eq=False)
class _SlotQueue:
    """The free slots of an environment, or of the harness, and the episodes that wait for one."""

    free: list[int]
    waiting: deque[tuple[_InFlightGroup, EpisodeSpec]] = field(
        default_factory=deque[tuple[_InFlightGroup, EpisodeSpec]]
    )


class AsyncCollector:
    """Samples the groups of a run up to K = `config.async_rollout.max_staleness` updates ahead of the learner.

    At most the groups of K + 1 steps are in flight, waiting, or being trained on. With `on_stale` "wait", groups train
    in the order in which they were drawn, and `collect` waits for the oldest: each group trains within K updates of
    being drawn, however slow its episodes are, and a step trains the tasks that were drawn for it. With "keep" and
    "drop", the oldest complete groups train first; groups that are more than K updates old are then trained on
    nevertheless, or dropped. With K = 0 the groups of a step are drawn and awaited in the step: exactly on-policy.
    """

    def __init__(
        self,
        rollouts: RolloutRunner,
        policy: Policy | EpisodePlayer,
        config: RLConfig,
        worlds: Sequence[OpenEnvironment],
        draw: Draw,
        *,
        ranks: Ranks,
    ) -> None:
        """Start nothing before the first `collect`.

        Args:
            rollouts: The engine and its thread.
            policy: Replies in all episodes.
            config: Of the run.
            worlds: The environments that tasks are drawn of.
            draw: Draws tasks; called in the thread of `rollouts` while `collect` waits.
            ranks: The processes that share the tasks of a step.
        """
        self._rollouts, self._policy, self._config, self._ranks = rollouts, policy, config, ranks
        self._worlds, self._draw = worlds, draw
        self._tasks = len(ranks.share(range(config.tasks_per_step)))
        self._drawn: deque[GroupSpec] | None = None
        """Groups that were drawn and not yet started; None before the first `collect`."""
        self._draws = 0
        self._started = 0
        self._under_way: list[_InFlightGroup] = []
        """Groups that were started and not yet collected, in the order of drawing."""
        self._places = 0
        """How many of a step's tasks the groups in flight count for."""
        self._harness_slots = 0 if isinstance(policy, Policy) else config.harness_concurrency
        """Concurrent episodes of a harness in all environments, which needs no slot of a pool; more would only be
        waited for by `settle`. 0 without one."""
        self._queues: dict[str, _SlotQueue] = {}
        """By the name of the environment; a harness has a single one."""
        self._workers = set[asyncio.Task[None]]()
        self._changed = asyncio.Event()
        """Set when a group is complete or a slot has raised."""
        self._error: BaseException | None = None
        self._settling = False

    def collect(self, state: TrainingState) -> list[EpisodeGroup]:
        """The groups for the next update, in the order of drawing. After a resume, the groups that were in flight when
        the run was saved (`state.in_flight`) are played first, from their beginning.

        Groups that were resampled or too old are included, marked by their treatment; others were played instead.

        Raises:
            EngineGone: if the engine can't be brought back.
            Exception: whatever else the policy raises.
        """
        return self._rollouts.run(self._collect(state), checked=True)

    def in_flight(self) -> dict[str, Any]:
        """The groups that were drawn and not yet collected, as JSON values for checkpoints: the number of draws so far,
        and the groups in order. A run that resumes plays these again, so that no group is lost for being slow or trains
        twice for being fast.
        """
        specs = [flight.spec for flight in self._under_way] + list(self._drawn or ())
        return {"draws": self._draws, "groups": [spec.to_json() for spec in specs]}

    def settle(self) -> None:
        """Finish the episodes in flight and start no others before the next `collect`: all slots are free for an
        evaluation then.
        """
        self._rollouts.run(self._settle(), checked=True)

    def close(self) -> None:
        """Cancel the episodes in flight. May be called twice."""
        self._rollouts.end(self._cancel())

    async def _collect(self, state: TrainingState) -> list[EpisodeGroup]:
        self._settling = False
        if self._drawn is None:
            self._drawn = deque(self._in_flight_at_save(state))
        most = self._tasks * (1 + self._config.algorithm.groups.rounds)
        taken: list[EpisodeGroup] = []
        kept = resampled = 0
        while kept < self._tasks and kept + resampled < most:
            self._top_up(state, min(self._tasks - kept, most - kept - resampled))
            if not self._places:
                break  # the environment has fewer tasks than the run has processes, and none is left for this one
            flight = await self._next()
            self._under_way.remove(flight)
            self._places -= flight.places(self._config)
            group = self._classified(flight, state.step)
            if self._is_too_old(group, state.step):
                group = replace(group, treatment="resample")
            elif group.treatment == "resample":
                resampled += flight.places(self._config)
            else:
                kept += flight.places(self._config)
            taken.append(group)
        return sorted(taken, key=lambda group: group.number)

    async def _next(self) -> _InFlightGroup:
        """Wait for the group that is collected next."""
        while (flight := self._ready()) is None:
            self._changed.clear()
            await self._changed.wait()
        return flight

    def _ready(self) -> _InFlightGroup | None:
        if self._error is not None:
            raise self._error  # its episodes would never end
        in_turn = self._under_way[:1] if self._config.async_rollout.on_stale == "wait" else self._under_way
        return next((flight for flight in in_turn if flight.complete), None)

    def _top_up(self, state: TrainingState, wanted: int) -> None:
        """Start as many groups as may be in flight: those that this step still takes, and those of the next steps.

        Args:
            state: The state of the run.
            wanted: How many groups this step takes at most.
        """
        left = self._config.steps - 1 - state.step
        ahead = min(self._config.async_rollout.max_staleness, left)
        while self._places < wanted + self._tasks * ahead and self._queue_next(state):
            pass
        for queue in self._queues.values():
            for _ in range(min(len(queue.free), len(queue.waiting))):
                self._start(queue, queue.free.pop(0))

    def _queue_next(self, state: TrainingState) -> bool:
        """Queue the next group, if there is one. Tasks of a whole step are drawn together."""
        assert self._drawn is not None
        if not self._drawn:
            number = max(self._draws, state.step)
            self._drawn.extend(self._draw(number, state))
            self._draws = number + 1
        if not self._drawn:
            return False
        spec = self._drawn.popleft()
        number = self._started * self._ranks.count + self._ranks.index
        stage = spec.stage or state.stage
        flight = _InFlightGroup(number, replace(spec, stage=stage), stage)
        self._started += 1
        self._under_way.append(flight)
        self._places += flight.places(self._config)
        name, slots = ("", self._harness_slots) if self._harness_slots else (spec.world.name, len(spec.world.pool))
        queue = self._queues.setdefault(name, _SlotQueue([*range(slots)]))
        queue.waiting.extend((flight, episode) for episode in spec.episodes)
        return True

    def _in_flight_at_save(self, state: TrainingState) -> Sequence[GroupSpec]:
        """The groups of this process among those in flight when the run was saved. If the number of processes has
        changed since, all of them are distributed again.
        """
        if not state.in_flight:
            return ()
        self._draws = max(known["draws"] for known in state.in_flight)
        if len(state.in_flight) == self._ranks.count:
            own = state.in_flight[self._ranks.index]
            self._draws = own["draws"]
            return restore_group_specs(own["groups"], self._worlds)
        every = [group for known in state.in_flight for group in known["groups"]]
        return restore_group_specs(self._ranks.share(every), self._worlds)

    def _classified(self, flight: _InFlightGroup, step: int) -> EpisodeGroup:
        episodes = sorted(flight.episodes, key=lambda episode: episode.sample)
        return classified(self._config, episodes, flight.number, flight.stage.number, step)

    def _is_too_old(self, group: EpisodeGroup, step: int) -> bool:
        overlap = self._config.async_rollout
        return overlap.on_stale == "drop" and group.outcome.lag(step) > overlap.max_staleness

    def _start(self, queue: _SlotQueue, slot: int) -> None:
        task = asyncio.get_running_loop().create_task(self._work(queue, slot))
        self._workers.add(task)
        task.add_done_callback(self._worker_done)

    async def _work(self, queue: _SlotQueue, slot: int) -> None:
        """Play the waiting episodes of a queue in a slot, the oldest first."""
        try:
            while queue.waiting and not self._settling:
                flight, spec = queue.waiting.popleft()
                episode = await play_in_slot(
                    self._policy, flight.spec.world, slot, spec, flight.stage.turns, expert_start=flight.expert_start
                )
                flight.episodes.append(episode)
                if flight.complete:
                    self._changed.set()
                await asyncio.sleep(0)  # lets the other slots run where neither environment nor policy ever waits
        finally:
            queue.free.append(slot)

    def _worker_done(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._changed.set()

    async def _settle(self) -> None:
        self._settling = True
        await asyncio.gather(*self._workers)

    async def _cancel(self) -> None:
        for task in self._workers:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
