"""How many episodes may fail before the environment counts as broken."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym_eval.util.errors import RunStopped

from agentgym_trainer.rollout.groups import EpisodeOutcome

_FEW = 10
"""Fewer failed episodes don't predict that the following ones fail, too. They can't raise the success by which
checkpoints are selected (`run.metrics.selection_means`)."""


class TooManyFailed(RunStopped):
    """More episodes failed than `max_failed` allows. The state before them can be saved."""


class FailureLimit:
    """Counts failed episodes of training, or of evaluations, in this process."""

    def __init__(self, share: float) -> None:
        """Start with no episodes.

        Args:
            share: Share of all episodes that may fail, from 0 to 1; 1 allows everything.
        """
        self._share = share
        self._played = self._failed = self._in_a_row = 0

    def count(self, episodes: Iterable[EpisodeOutcome]) -> None:
        """Count the episodes of a step or of an evaluation.

        Raises:
            TooManyFailed: if at least 10 episodes failed, and these are more than the share of all episodes so far, or
                all episodes since the last one that didn't fail.
        """
        played = list(episodes)
        failed = [episode for episode in played if episode.stop == "failed"]
        self._played += len(played)
        self._failed += len(failed)
        self._in_a_row = self._in_a_row + len(failed) if len(failed) == len(played) else 0
        if self._share == 1 or not failed:
            return
        if self._in_a_row >= _FEW:
            problem = f"The last {self._in_a_row} episodes all failed"
        elif self._failed >= _FEW and self._failed > self._share * self._played:
            limit = f"--max-failed {self._share:g}"
            problem = f"{self._failed} of {self._played} episodes failed, more than {limit} allows"
        else:
            return
        raise TooManyFailed(
            f"{problem}, the last one ({failed[-1].task}) with {failed[-1].error}. An episode fails when its "
            "environment raises an exception or doesn't respond, which actions of the policy may cause, or when the "
            "engine breaks: fix that, or start a run with --max-failed 1 to allow it."
        )
