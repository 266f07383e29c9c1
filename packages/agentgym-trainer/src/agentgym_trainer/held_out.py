"""Held-out evaluation in the course of a run: test tasks, sampled as in training and greedily, kept in its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

from agentgym_envs import Episode, Task
from agentgym_eval.report import report
from agentgym_eval.worlds import spread

from agentgym_trainer.chat import Chat
from agentgym_trainer.config import Setup
from agentgym_trainer.figures import Outcome
from agentgym_trainer.playing import engine_player, play_deals, seed_of
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.rollout import Rollouts
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.worlds import Deal, OpenWorld, deals

Manner = Literal["sampled", "greedy"]
MANNERS: tuple[Manner, ...] = ("sampled", "greedy")
_EVALUATION = 2  # among the numbers that seeds are made of in the loop


class HeldOut:
    """The held-out tasks of a run. All of its processes play their share."""

    def __init__(
        self,
        config: Setup,
        folder: RunFolder,
        worlds: Sequence[OpenWorld],
        chat: Chat,
        tracker: Tracker,
        rollouts: Rollouts,
    ) -> None:
        """Play nothing yet."""
        self.config = config
        self.folder = folder
        self.worlds = worlds
        self.chat = chat
        self.tracker = tracker
        self.rollouts = rollouts
        self.ranks = Ranks()

    def evaluate(self, step: int, playing: Callable[[], AbstractContextManager[object]]) -> dict[Manner, list[Outcome]]:
        """Play held-out tasks at the training temperature and greedily; what was played before is read back.

        Args:
            step: Updates done.
            playing: Open while they are played; has the engine sample with the weights of this step.
        """
        played: dict[Manner, list[Outcome]] = {}
        for manner in MANNERS:
            episodes = self._episodes(step, manner, playing)
            if self.ranks.leads:
                ks = self.config.evaluation.ks if manner == "sampled" else (1,)
                self.tracker.evaluation(step, manner, report(episodes, ks=ks, seed=self.config.seed))
            played[manner] = self.ranks.tell([Outcome.of(episode) for episode in episodes])
        return played

    def play(self, dealt: Sequence[Deal], temperature: float) -> list[Episode]:
        """The episodes of all processes for the one that leads, in the order of the tasks."""
        own, engine = self.ranks.share(dealt), self.rollouts.engine
        player = engine_player(self.config, engine, self.chat, temperature=temperature)
        with self.ranks.together():
            played = play_deals(own, self.rollouts, player, horizon=self.config.horizon.longest)
        gathered = self.ranks.collect([(deal.number, some) for deal, some in zip(own, played, strict=True)])
        return [episode for _, some in sorted(gathered, key=lambda item: item[0]) for episode in some]

    def is_due(self, step: int, last: int) -> bool:
        """Whether there is an evaluation after this step of a run whose last step is `last`."""
        every = self.config.evaluation.every
        return step == last or (every > 0 and step % every == 0)

    def _episodes(
        self, step: int, manner: Manner, playing: Callable[[], AbstractContextManager[object]]
    ) -> list[Episode]:
        """The episodes, for the process that leads; the others get none."""
        config = self.config
        known = self.folder.read_evaluation(step, manner) if self.ranks.leads else None
        if self.ranks.tell(known is not None):
            return known or []
        samples, temperature = config.evaluation.samples, config.generation.temperature
        if manner == "greedy":
            samples, temperature = 1, 0.0
        with playing():
            dealt = self._deals(samples, seed_of(config.seed, step, _EVALUATION))
            episodes = self.play(dealt, temperature)
        if self.ranks.leads:
            self.folder.save_evaluation(step, manner, episodes)
        return episodes

    def _deals(self, samples: int, seed: int) -> list[Deal]:
        dealt = list[Deal]()
        for world in self.worlds:
            tasks = held_out_tasks(self.config, world)
            dealt += deals(world, tasks, samples=samples, seed=seed, after=len(dealt))
        return dealt


def held_out_tasks(config: Setup, world: OpenWorld) -> list[Task]:
    """The test tasks of a world that the run evaluates on."""
    test = world.tasks.test
    return spread(test, min(config.evaluation.tasks or len(test), len(test)))
