"""Results of the Python interface: the report of a run, and the comparison of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentgym_envs import Episode

from agentgym_eval import reports
from agentgym_eval.metrics import summary as metrics
from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.reports.cells import Table
from agentgym_eval.reports.evaluated import Evaluated, as_json
from agentgym_eval.reports.markdown import markdown
from agentgym_eval.reports.page import page
from agentgym_eval.reports.plots import TITLES, draw_curves
from agentgym_eval.reports.tables import groups, summary
from agentgym_eval.runs.comparisons import EvaluatedRun


@dataclass(frozen=True, slots=True)
class Report:
    """A run of one policy in one environment, as `evaluate` plays it and `load_run` reads it."""

    folder: Path
    """The run folder, or the file of episodes that was read."""
    title: str
    run: EvaluatedRun = field(repr=False)
    """The episodes with their metrics, as `agentgym_eval.runs.comparisons` takes them."""

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.run.evaluated.policy

    @property
    def env(self) -> str:
        """The environment's name."""
        return self.run.evaluated.world

    @property
    def metrics(self) -> metrics.Report:
        """All metrics: `overall`, `by_category`, `by_difficulty`, `by_turns` and so on."""
        return self.run.evaluated.report

    @property
    def success(self) -> Interval:
        """The share of attempts that reached the goal, with its 95% interval: `mean`, `low` and `high`."""
        return self.metrics.overall.success

    @property
    def pass_at(self) -> Mapping[int, Interval]:
        """pass@k by k, with 95% intervals."""
        return self.metrics.overall.pass_at

    @property
    def pass_hat(self) -> Mapping[int, Interval]:
        """pass^k by k, with 95% intervals."""
        return self.metrics.overall.pass_hat

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run, as in its `run.json`; empty for a file of episodes."""
        return self.run.evaluated.about.get("settings", {})

    @property
    def usage(self) -> Mapping[str, Any]:
        """Requests, tokens and cost of a paid endpoint; empty for other policies."""
        return self.run.evaluated.about.get("usage", {})

    @property
    def left_out(self) -> Sequence[str]:
        """A sentence for each line of the file that doesn't count, because a later one has the same task and sample."""
        return self.run.left_out

    @property
    def notes(self) -> Sequence[str]:
        """A sentence if `compare` was to measure the expert's distances, and they can't be measured or saved."""
        return self.run.notes

    @property
    def tables(self) -> Sequence[Table]:
        """The tables of the report: the results, then by category, difficulty, failure cause and stop reason."""
        return [*summary([self.run.evaluated], []), *groups(self.run.evaluated)]

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes: first one attempt at each task, then the second attempts, and so on."""
        yield from self.run.episodes

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return as_json([self.run.evaluated], [])

    def markdown(self) -> str:
        """Return the report as Markdown."""
        return _markdown([self.run.evaluated], [], None, self.title, self.folder)

    def html(self) -> str:
        """Return the report as an HTML page of its own, with plots."""
        return _html([self.run.evaluated], [], None, self.title, self.folder)


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Runs and their comparison task by task, as `compare` makes it."""

    runs: Sequence[Report]
    """In display order."""
    comparisons: Sequence[Comparison]
    """Each run with the first, or each with the one of the same seed; p-values are adjusted in the former case."""
    across_seeds: AcrossSeeds | None
    """The comparison of two training methods over their seeds, if `against` was given."""
    differing: Sequence[str]
    """A sentence for each setting in which the runs differ, besides policy, environment and tasks."""
    title: str

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return as_json(self._evaluated, self.comparisons, self.across_seeds)

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        return _markdown(self._evaluated, self.comparisons, self.across_seeds, self.title, Path())

    def html(self) -> str:
        """Return the comparison as an HTML page of its own, with plots."""
        return _html(self._evaluated, self.comparisons, self.across_seeds, self.title, Path())

    def write(self, folder: Path) -> None:
        """Write `report.json`, `report.md`, `report.html` and the plots into an existing folder."""
        reports.write_reports(folder, self._evaluated, self.comparisons, self.across_seeds, title=self.title)

    @property
    def _evaluated(self) -> list[Evaluated]:
        return [report.run.evaluated for report in self.runs]


def _markdown(
    runs: Sequence[Evaluated], comparisons: Sequence[Comparison], across: AcrossSeeds | None, title: str, folder: Path
) -> str:
    written = [name for name in TITLES if (folder / f"{name}.png").is_file()] if folder.parts else []
    tables = list(summary(runs, comparisons, across))
    return markdown(runs, tables, title=title, folder=folder, pictures=written)


def _html(
    runs: Sequence[Evaluated], comparisons: Sequence[Comparison], across: AcrossSeeds | None, title: str, folder: Path
) -> str:
    with TemporaryDirectory() as drawn:
        curves = draw_curves(Path(drawn), runs)
    return page(runs, list(summary(runs, comparisons, across)), title=title, folder=folder, curves=curves)
