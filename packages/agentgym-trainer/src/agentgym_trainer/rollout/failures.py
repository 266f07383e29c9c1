"""How many episodes of a sitting may fail before its environment counts as broken. Knows neither engines nor files."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym_eval.util.errors import RunStopped

from agentgym_trainer.rollout.groups import EpisodeOutcome

_FEW = 10
"""Fewer failed episodes say nothing about those to come."""


class TooManyFailed(RunStopped):
    """More episodes failed than the configuration bears. What was done before them can be saved."""


class FailureLimit:
    """The failed among the episodes of a sitting: those of training, or those of evaluations."""

    def __init__(self, share: float) -> None:
        """Count none yet.

        Args:
            share: How many of all may fail, from 0 to 1; 1 bears whatever fails.
        """
        self._share = share
        self._played = self._failed = self._in_a_row = 0

    def count(self, episodes: Iterable[EpisodeOutcome]) -> None:
        """Count what was played together: the episodes of a step, or of an evaluation.

        Raises:
            TooManyFailed: when 10 or more failed, and these are more than the share of all so far, or all that were
                played since one last went well.
        """
        played = list(episodes)
        failed = [episode for episode in played if episode.stop == "failed"]
        self._played += len(played)
        self._failed += len(failed)
        self._in_a_row = self._in_a_row + len(failed) if len(failed) == len(played) else 0
        if self._share == 1 or not failed:
            return
        if self._in_a_row >= _FEW:
            told = f"The last {self._in_a_row} episodes all failed"
        elif self._failed >= _FEW and self._failed > self._share * self._played:
            told = f"{self._failed} of {self._played} episodes failed, more than --max-failed {self._share:g} allows"
        else:
            return
        raise TooManyFailed(
            f"{told}, the last one ({failed[-1].task}) with {failed[-1].error}. An episode fails when its environment "
            "or the engine breaks, whatever the policy does: mend that, or begin a run with --max-failed 1 to bear it."
        )
