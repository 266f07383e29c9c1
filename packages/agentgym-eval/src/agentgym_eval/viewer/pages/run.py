"""The page of a run: how training went, what evaluations came to, what files hold; figures lead to their episodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.viewer.index.evaluation_report import read_report, read_usage, report_page
from agentgym_eval.viewer.index.metrics import FileFigures
from agentgym_eval.viewer.index.runs import EpisodeFile, Run
from agentgym_eval.viewer.pages.chart import Chart, Point, Series
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.training_metrics import FIGURES, figure, read_metrics, stages, warnings
from agentgym_eval.viewer.pages.words import share

_LINKED = 240
"""Training steps whose points lead to their episodes; of more, so many are chosen evenly."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A file with its figures."""

    file: EpisodeFile
    figures: FileFigures
    success: Interval | None
    """None where that isn't worth an interval: data that were chosen, or a training step."""


def run_page(site: Site, slug: str) -> str:
    """The page of a run. Raises `NotFound`."""
    run = site.index.run(slug)
    found = {each.file: each for each in site.index.file_figures() if each.run == slug}
    shown = (_shown(site, run, file, found[file.slug]) for file in run.files if file.slug in found)
    files = sorted(shown, key=_latest_first)
    groups = site.index.groups(slug, files[0].file.slug) if run.kind == "evaluate" and files else {}
    return site.render(
        "run.html",
        run=run,
        figures=site.index.figures().get(slug),
        files=[each for each in files if each.file.part != "rollouts"],
        rollouts=[each for each in files if each.file.part == "rollouts"],
        last={
            (each.file.split, each.file.manner): each.file.slug
            for each in reversed(files)
            if each.file.part == "evaluation"
        },
        groups=groups,
        reported=read_report(run),
        page=report_page(run),
        used=read_usage(run),
        stops=[] if run.kind == "train" else site.index.facets(slug)["stop"],
        curve=_curve(site, run, files),
        charts=_charts(run),
        warnings=warnings(read_metrics(run)),
        settings=list(_flat(run.settings)),
        others=site.index.sharing(slug),
    )


def _shown(site: Site, run: Run, file: EpisodeFile, figures: FileFigures) -> Shown:
    worth = file.part in ("evaluation", "played")
    return Shown(file, figures, site.index.success(run.slug, file.slug) if worth else None)


def _latest_first(shown: Shown) -> tuple[bool, int, str]:
    step = shown.file.step
    return step is None, -(step or 0), shown.file.slug


def _curve(site: Site, run: Run, files: list[Shown]) -> Chart | None:
    """Success by training step; None for runs without a step."""
    lines = read_metrics(run)
    splits = dict.fromkeys((run.split, "test"))
    evaluated = [
        _evaluated(site, run, split, manner, files, lines) for split in splits for manner in ("sampled", "greedy")
    ]
    if not lines and not any(each.points for each in evaluated):
        return None
    rollouts = {each.file.step: each.file for each in files if each.file.part == "rollouts"}
    every = max(1, -(-len(lines) // _LINKED))
    points = [
        _trained(site, run, record, rollouts if at % every == 0 or at == len(lines) - 1 else {})
        for at, record in enumerate(lines)
    ]
    bands = stages(lines)
    series = [Series("in training", [point for point in points if point]), *evaluated]
    return Chart("Success", series, bands if len(bands) > 1 else (), unit=(0.0, 1.0))


def _trained(site: Site, run: Run, record: dict[str, Any], rollouts: Mapping[int | None, EpisodeFile]) -> Point | None:
    """A training step: the episodes that it learned from."""
    success = figure(record, "success")
    success = figure(record, "sampled", "success") if success is None else success
    if success is None:
        return None
    step = record["step"]
    file = rollouts.get(step)
    link = site.links.episodes(run=run.slug, file=file.slug) if file else ""
    return Point(step, success, f"step {step}: {share(success)} in training", link=link)


def _evaluated(
    site: Site, run: Run, split: str, manner: str, files: list[Shown], lines: list[dict[str, Any]]
) -> Series:
    """Evaluations on a split in one manner: with intervals where their episodes are there."""
    points: dict[int, Point] = {}
    for record in lines:
        found = [figure(record, name, manner) for name in (split, "held_out")]
        success = next((each for each in found if each is not None and split == run.split), None)
        if success is not None:
            label = f"step {record['step']}: {share(success)} on {split} tasks, {manner}"
            points[record["step"]] = Point(record["step"], success, label)
    for each in files:
        file, found = each.file, each.success
        of_these = file.part == "evaluation" and (file.split, file.manner) == (split, manner)
        if of_these and file.step is not None and found and found.tasks:
            interval = f"{share(found.mean)} ({share(found.low)} to {share(found.high)})"
            label = f"step {file.step}: {interval} on {split} tasks, {manner}"
            link = site.links.episodes(run=run.slug, file=file.slug)
            points[file.step] = Point(file.step, found.mean, label, found.low, found.high, link)
    return Series(f"{split} tasks, {manner}", [points[step] for step in sorted(points)])


def _charts(run: Run) -> list[Chart]:
    """Small charts of what else was written down of at least two steps, and of each world where there are several."""
    lines = read_metrics(run)
    charts = [_small(label, [_series(label, lines, name)]) for name, label in FIGURES.items()]
    worlds = list(dict.fromkeys(name for record in lines for name in record.get("worlds", {})))
    if len(worlds) > 1:
        by_world = [_series(name.rpartition("/")[2], lines, "worlds", name, "success") for name in worlds]
        charts.insert(0, _small("Success in training, by world", by_world))
    return [chart for chart in charts if any(len(each.points) > 1 for each in chart.series)]


def _small(title: str, series: list[Series]) -> Chart:
    return Chart(title, series, width=420, height=190)


def _series(name: str, lines: list[dict[str, Any]], *names: str) -> Series:
    found = ((record["step"], figure(record, *names)) for record in lines)
    return Series(name, [Point(step, value) for step, value in found if value is not None], dots=False)


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted names, as flags are called."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
