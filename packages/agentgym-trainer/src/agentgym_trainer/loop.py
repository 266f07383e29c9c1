"""The training loop: load, collect, trajectories, batch, assess, credit, update; again, with a slightly better player.

The one room where rollouts and the learner meet. Everything drawn at step t comes from (seed, t) and from what lies in
the checkpoint, so a run that was killed goes on from its last checkpoint exactly as if it had not been. With many
processes all draw the same and each plays its share; figures and decisions are made of what all played.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from agentgym_envs import Episode, Job, Task
from agentgym_eval.report import report
from agentgym_eval.worlds import spread
from numpy.typing import NDArray

from agentgym_trainer.batch import make_batch
from agentgym_trainer.chat import Chat
from agentgym_trainer.checkpoint import Checkpoints, Progress
from agentgym_trainer.config import Config
from agentgym_trainer.engines import EngineGone
from agentgym_trainer.figures import (
    Group,
    GroupOutcome,
    Outcome,
    cut_while_improving,
    held_out_figures,
    step_figures,
    success_rate,
)
from agentgym_trainer.horizon import Seen
from agentgym_trainer.learner import Learner
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.rollout import Budget, EnginePlayer, Match, Rollouts
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.sampler import apportion, draw
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.trajectory import trajectory
from agentgym_trainer.worlds import OpenWorld, jobs

Manner = Literal["sampled", "greedy"]
MANNERS: tuple[Manner, ...] = ("sampled", "greedy")
_ROLLOUT, _UPDATE, _EVALUATION = range(3)
_LEARNING = ("load", "rollout", "assess", "update")


@dataclass(frozen=True, slots=True)
class Deal:
    """Episodes of one task that are to be played."""

    number: int
    """Place among all that are played in this step or evaluation."""
    world: OpenWorld
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step has to learn from."""

    own: list[Group]
    """The groups that this process played."""
    groups: list[GroupOutcome]
    """What came of those of all processes: first of those drawn first, then of those in the place of others."""
    tokens: dict[str, int]
    """How many of them the engines read, found in their caches and sampled, over all processes."""


class Loop:
    """Reinforcement learning from a given start."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        worlds: Sequence[OpenWorld],
        learner: Learner,
        chat: Chat,
        tracker: Tracker,
        rollouts: Rollouts,
    ) -> None:
        self.config = config
        self.folder = folder
        self.worlds = worlds
        self.learner = learner
        self.chat = chat
        self.tracker = tracker
        self.rollouts = rollouts
        self.ranks = Ranks()
        self.checkpoints = Checkpoints(folder.checkpoints, keep=config.keep, say=tracker.say)
        self._loaded: int | None = None
        self._seconds = defaultdict[str, float](float)

    def run(self, stopping: Callable[[], bool]) -> Progress:
        """Train from the last checkpoint, if there is one, to the last step.

        Args:
            stopping: Asked after every step; when it says so, the run is saved and ends early.

        Raises:
            EngineGone: when the engine can't be brought back. What is done is saved.
        """
        config, resumed = self.config, self.checkpoints.resume(self.learner)
        progress = resumed or Progress(stage=config.horizon.begin())
        if self.ranks.leads:
            self.folder.rewind(progress.step)
        try:
            if not progress.step:
                self.evaluate(0)
            stopped = self.ranks.any(stopping())
            while progress.learned or (progress.step < config.steps and not stopped):
                progress = progress if progress.learned else self.learn(progress)
                progress = self.conclude(progress)
                # Asked once, so that a run never ends early without having been saved.
                stopped = self.ranks.any(stopping())
                is_best = progress.best is not None and progress.best.step == progress.step
                if stopped or is_best or self._is_due(progress.step, config.save_every):
                    self._save(progress)
                    resumed = progress
        except EngineGone:
            # The learner is where `progress` is: nothing but sampling was under way.
            if progress.step and progress != resumed:
                self._save(progress)
            raise
        return progress

    def learn(self, progress: Progress) -> Progress:
        """One update from new episodes. What hangs on held-out tasks is still to come."""
        config = self.config
        collected = self.collect(progress)
        groups = collected.groups
        metrics = self.update(progress.step, [group for group in collected.own if group.treatment == "keep"])
        success = {group.task: mean for group in groups if (mean := success_rate(group.episodes)) is not None}
        after = replace(
            progress,
            step=progress.step + 1,
            env_steps=progress.env_steps + sum(episode.turns for group in groups for episode in group.episodes),
            sampler=config.sampler.after(progress.sampler, success),
        )
        line = self._line(after, collected, metrics)
        return replace(after, learned={"cut": cut_while_improving(groups), "line": line})

    def conclude(self, progress: Progress) -> Progress:
        """An evaluation if it is due, the line of the step, and where the run stands then."""
        step, learned = progress.step, progress.learned or {}
        held_out = self.evaluate(step) if self._is_due(step, self.config.evaluation.every) else {}
        tested = held_out_figures(held_out)
        line = learned["line"] | {"held_out": tested}
        for name, figures in line["worlds"].items():
            figures["held_out"] = held_out_figures(held_out, name)
        line["seconds"] |= self._taken()
        if self.ranks.leads:
            self.folder.log(line)
        self.tracker.step(line)
        stage = self.config.horizon.after(progress.stage, step, Seen(tested.get("sampled"), learned["cut"]))
        return replace(progress, stage=stage, learned=None).evaluated(tested.get("sampled"))

    def collect(self, progress: Progress) -> Collected:
        """The groups of this step: those drawn first, and those played in the place of groups to be resampled."""
        config, own, known = self.config, list[Group](), list[GroupOutcome]()
        rng = np.random.default_rng([config.seed, progress.step, _ROLLOUT])
        wanted = apportion(config.tasks, [world.weight for world in self.worlds], rng)
        self._load(progress.step)
        used = self._used()
        with self._timed("rollout"):
            for _ in range(config.algorithm.groups.rounds + 1):
                fresh = self._play_groups(self._draw(wanted, progress, known, rng), progress)
                own += fresh
                seen = sorted(self.ranks.gather([group.outcome for group in fresh]), key=lambda group: group.number)
                known += seen
                again = Counter(group.world for group in seen if group.treatment == "resample")
                wanted = [again[world.name] for world in self.worlds]
            self._rest()
        *tokens, busy = self._used() - used
        self._seconds["engine"] += busy
        totals = np.sum(self.ranks.gather([tokens]), axis=0).astype(int).tolist()
        return Collected(own, known, dict(zip(("prefilled", "reused", "generated"), totals, strict=True)))

    def _draw(
        self, wanted: Sequence[int], progress: Progress, before: Sequence[GroupOutcome], rng: np.random.Generator
    ) -> list[Deal]:
        """So many training tasks of each world, none of which was played `before` in this step."""
        config, deals = self.config, list[Deal]()
        for world, count in zip(self.worlds, wanted, strict=True):
            without = {group.task for group in before if group.world == world.name}
            ids = world.tasks.train.ids
            chosen = draw(config.sampler, ids, count, state=progress.sampler, rng=rng, without=without)
            tasks, seed = [world.tasks.train[i] for i in chosen], int(rng.integers(2**62))
            deals += _deals(world, tasks, samples=config.samples, seed=seed, after=len(before) + len(deals))
        return deals

    def _play_groups(self, deals: Sequence[Deal], progress: Progress) -> list[Group]:
        config, own = self.config, self.ranks.share(deals)
        with self.ranks.together():
            played = self._play(own, horizon=progress.stage.turns, temperature=config.generation.temperature)
        rules = config.algorithm.groups
        return [
            Group.judged(episodes, rules, train_cut=config.train_cut, number=deal.number)
            for deal, episodes in zip(own, played, strict=True)
        ]

    def update(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        """Credit and one update of the weights."""
        config, algorithm = self.config, self.config.algorithm
        usable = [(group.number, episode) for group in groups for episode in group.usable]
        with self._timed("assess"):
            batch = make_batch([trajectory(episode) for _, episode in usable])
            experience = self.learner.assess(batch, algorithm)
            credit = algorithm.credit(experience, self.learner.total)
        with self._timed("update"):
            learned = self.learner.update(
                batch,
                experience,
                credit,
                algorithm,
                epochs=config.epochs,
                minibatches=config.minibatches,
                seed=_seed(config.seed, step, _UPDATE),
                places=[(number, episode.sample) for number, episode in usable],
            )
        packed = {name: learned.pop(name) for name in ("padding", "fill") if name in learned}
        trained, tokens = np.sum(self.ranks.gather([(len(usable), len(batch.ids_S))]), axis=0).tolist()
        return {"trained": trained, "tokens": {"trained": tokens, **packed}, **credit.metrics, **learned}

    def evaluate(self, step: int) -> dict[Manner, list[Outcome]]:
        """Play held-out tasks at the training temperature and greedily; what was played before is read back."""
        played: dict[Manner, list[Outcome]] = {}
        with self._timed("evaluation"):
            for manner in MANNERS:
                episodes = self._held_out(step, manner)
                if self.ranks.leads:
                    ks = self.config.evaluation.ks if manner == "sampled" else (1,)
                    self.tracker.evaluation(step, manner, report(episodes, ks=ks, seed=self.config.seed))
                played[manner] = self.ranks.tell([Outcome.of(episode) for episode in episodes])
        return played

    def _held_out(self, step: int, manner: Manner) -> list[Episode]:
        """The episodes, for the process that leads; the others get none."""
        config = self.config
        known = self.folder.read_evaluation(step, manner) if self.ranks.leads else None
        if self.ranks.tell(known is not None):
            return known or []
        samples, temperature = (config.evaluation.samples, config.generation.temperature)
        if manner == "greedy":
            samples, temperature = 1, 0.0
        deals, seed = list[Deal](), _seed(config.seed, step, _EVALUATION)
        for world in self.worlds:
            tasks = spread(
                world.tasks.test, min(config.evaluation.tasks or len(world.tasks.test), len(world.tasks.test))
            )
            deals += _deals(world, tasks, samples=samples, seed=seed, after=len(deals))
        own = self.ranks.share(deals)
        self._load(step)
        with self.ranks.together():
            played = self._play(own, horizon=config.horizon.longest, temperature=temperature)
        self._rest()
        gathered = self.ranks.collect([(deal.number, some) for deal, some in zip(own, played, strict=True)])
        episodes = [episode for _, some in sorted(gathered, key=lambda item: item[0]) for episode in some]
        if self.ranks.leads:
            self.folder.save_evaluation(step, manner, episodes)
        return episodes

    def _play(self, deals: Sequence[Deal], *, horizon: int, temperature: float) -> list[list[Episode]]:
        """The episodes of each deal in the order of the samples, whichever ended first."""
        generation = self.config.generation
        budget = Budget(turn=generation.max_tokens, context=generation.max_context, episode=generation.max_said)
        engine, name = self.rollouts.engine, self.config.model
        player = EnginePlayer(engine, self.chat, budget, name=name, temperature=temperature)
        matches = [
            Match(world, [job for deal in some for job in deal.jobs], horizon)
            for world, some in groupby(deals, key=lambda deal: deal.world)
        ]
        played = {(deal.world.name, deal.jobs[0].task_id): list[Episode]() for deal in deals}
        for episode in self.rollouts.play(matches, player):
            played[episode.env, episode.task_id].append(episode)
        return [sorted(episodes, key=lambda episode: episode.sample) for episodes in played.values()]

    def _load(self, step: int) -> None:
        """Have the engine sample with the weights of this step. Caches are empty then, as in a run that was resumed."""
        if self._loaded != step:
            with self._timed("load"):
                weights = self.learner.weights(step)
                with self.ranks.together():
                    self.rollouts.load(weights)
            self._loaded = step

    def _rest(self) -> None:
        """Make room for the learner. What caches hold must not show in what is sampled next."""
        with self.ranks.together():
            self.rollouts.rest()

    def _used(self) -> NDArray[np.float64]:
        """What the engine has done so far."""
        usage = self.rollouts.engine.usage
        return np.array([usage.prefilled, usage.reused, usage.generated, usage.busy])

    def _save(self, progress: Progress) -> None:
        with self._timed("checkpoint"):
            self.checkpoints.save(self.learner, self.chat.tokenizer, progress)

    def _is_due(self, step: int, every: int) -> bool:
        """Whether what is done every so many steps (never, when 0) and after the last one is done after this one."""
        return step == self.config.steps or (every > 0 and step % every == 0)

    @contextmanager
    def _timed(self, phase: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - began

    def _taken(self) -> dict[str, float]:
        """Seconds of each phase since this was last asked."""
        seconds, self._seconds = self._seconds, defaultdict[str, float](float)
        return dict(seconds)

    def _line(self, progress: Progress, collected: Collected, metrics: dict[str, Any]) -> dict[str, Any]:
        """The step's line, without what is held out. What the checkpoint took is that of the step before: the step's
        own is still to come.
        """
        stage, seconds = progress.stage, self._taken()
        figures = step_figures(collected.groups, [world.name for world in self.worlds])
        tokens = figures["tokens"] | collected.tokens | metrics.pop("tokens")
        return {
            "step": progress.step,
            "env_steps": progress.env_steps,
            "horizon": stage.turns,
            "stage": {"number": stage.number, "since": stage.since, "why": stage.why},
            **figures,
            "tokens": tokens,
            **metrics,
            "seconds": seconds,
            "tokens_per_s": tokens["seen"] / sum(seconds.get(name, 0.0) for name in _LEARNING),
        }


def _deals(world: OpenWorld, tasks: Sequence[Task], *, samples: int, seed: int, after: int) -> list[Deal]:
    """A deal for each of the tasks, numbered on from `after`."""
    by_task = groupby(jobs(tasks, samples=samples, seed=seed), key=lambda job: job.task_id)
    return [Deal(number, world, tuple(some)) for number, (_, some) in enumerate(by_task, after)]


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)
