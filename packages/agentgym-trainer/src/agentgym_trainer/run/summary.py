"""The output of a finished run: tables of results before and after, the curve, the summary, and what to run next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_envs import Episode
from agentgym_envs.util.files import write_whole
from agentgym_envs.util.installation import command
from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.metrics.summary import report
from agentgym_eval.runs.trained_model import evaluation_commands
from rich.console import Console
from rich.table import Table

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.kinds import kind_of
from agentgym_trainer.models.resolve import how_to_install, is_missing
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import DECODINGS, Decoding, RunFolder, played_splits
from agentgym_trainer.run.plots import ByStep, draw_curve


def show_results(
    config: BaseConfig, folder: RunFolder, console: Console, *, model_step: int, seconds: float, suggested: str = ""
) -> None:
    """Write `curve.png` and `summary.json` and print the results of the run.

    Args:
        config: The configuration of the run.
        folder: The folder of the run.
        console: Where to print.
        model_step: Number of updates of the final model.
        seconds: Duration of the session.
        suggested: Name of a recipe to run next; empty: none.
    """
    found = {split: _metrics(config, folder, console, test=split == "test") for split in played_splits(config)}
    found = {split: metrics for split, metrics in found.items() if metrics.steps}
    steps = max(folder.evaluated_steps(DECODINGS[0]))
    _write_summary(folder, found, steps=steps, model_step=model_step, seconds=seconds)
    with writing(folder.curve):
        draw_curve(config, folder, {split: metrics.by_world for split, metrics in found.items()})
    kind = kind_of(config)
    shown = kind.columns(model_step)
    for split, metrics in reversed(found.items()):
        if columns := {step: shown[step] for step in shown if step in metrics.steps}:
            console.print(_table(config, split, columns, metrics))
    for line in (
        f"{steps} {kind.step_noun}; this session took {seconds:.0f} s. Run folder: {folder.path}",
        f"Learning curve: {folder.curve}",
        "View the run and its episodes in a browser:",
        f"  {command('view')} {shlex.quote(str(folder.path))}",
        "Evaluate the trained model on all test tasks:",
        *(f"  {each}" for each in evaluation_commands(to_json(config), folder.model, horizon=config.horizon.longest)),
        *(_suggestion(suggested) if suggested else ()),
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _suggestion(recipe: str) -> list[str]:
    """Return what to run next, after what to install."""
    found = RECIPES[recipe]
    missing = [f"  {how_to_install()}"] if is_missing(found.config.model) else []
    return [
        f"Next, {found.about}{f' ({found.cost})' * bool(found.cost)}:",
        *missing,
        f"  {command('train')} {recipe}",
    ]


@dataclass(frozen=True, slots=True)
class _Evaluations:
    """The results of a run's evaluations on one split."""

    overall: ByStep
    by_world: dict[str, ByStep]

    @property
    def steps(self) -> Collection[int]:
        """The evaluated steps."""
        return self.overall[DECODINGS[0]].keys()


def _metrics(config: BaseConfig, folder: RunFolder, console: Console, *, test: bool) -> _Evaluations:
    """Read the evaluations during training, or (`test`) those on test tasks at the end, and compute their metrics.

    Steps with a damaged evaluation are left out, with a message.
    """
    played = dict[tuple[Decoding, int], list[Episode]]()
    for step in folder.evaluated_steps(DECODINGS[0], test=test):
        read = {(decoding, step): folder.read_evaluation(step, decoding, test=test) for decoding in DECODINGS}
        whole = {key: episodes for key, episodes in read.items() if episodes is not None}
        if len(whole) == len(read):
            played |= whole
            continue
        damaged = (folder.evaluation_damage(step, decoding, test=test) for decoding in DECODINGS)
        why = "; ".join(filter(None, damaged)) or "one of its files is missing"
        sentence = f"The results leave out the evaluation after {step} steps: {why}."
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def metrics(world: str | None) -> ByStep:
        found: ByStep = {decoding: {} for decoding in DECODINGS}
        for (decoding, step), episodes in played.items():
            chosen = [episode for episode in episodes if world in (None, episode.env)]
            ks = config.evaluation.ks if decoding == "sampled" else (1,)
            found[decoding][step] = report(chosen, ks=ks, seed=config.seed).overall
        return found

    worlds = dict.fromkeys(episode.env for episodes in played.values() for episode in episodes)
    return _Evaluations(metrics(None), {world: metrics(world) for world in worlds})


def _write_summary(
    folder: RunFolder, found: Mapping[str, _Evaluations], *, steps: int, model_step: int, seconds: float
) -> None:
    def record(metrics: ByStep) -> dict[str, Any]:
        return {m: {str(step): f.to_dict() for step, f in by.items()} for m, by in metrics.items()}

    worlds = dict.fromkeys(world for each in found.values() for world in each.by_world)
    summary = {
        "steps": steps,
        "model_step": model_step,
        "seconds": round(seconds, 1),
        "evaluations": {split: record(each.overall) for split, each in found.items()},
        "worlds": {
            world: {split: record(each.by_world[world]) for split, each in found.items() if world in each.by_world}
            for world in worlds
        },
    }
    with writing(folder.summary):
        write_whole(folder.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")


_WHEN = {True: "played once, after training", False: "played during training"}


def _table(config: BaseConfig, split: str, steps: dict[int, str], found: _Evaluations) -> Table:
    """Return the table of results on a split, with a column for each of these steps."""
    overall, by_world = found.overall, found.by_world
    sampled, last = overall["sampled"], max(steps)
    title = f"{sampled[last].tasks} {split} tasks, {_WHEN[split == 'test']}; 95% intervals over tasks"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in steps.values():
        table.add_column(name, justify="right")
    sampling = {"sampled": f"sampled at {config.generation.temperature:g}", "greedy": "greedy"}
    for decoding, by in overall.items():
        for k in by[last].pass_at:
            table.add_row(
                f"pass@{k}, {sampling[decoding]}", *(_interval(by[step].pass_at[k], by[step].failed) for step in steps)
            )
    for world, metrics in by_world.items() if len(by_world) > 1 else ():
        for decoding, by in metrics.items():
            table.add_row(
                f"{world.rpartition('/')[2]}, {decoding}",
                *(_interval(by[step].success, by[step].failed) for step in steps),
            )
    for name in ("score", "turns"):
        table.add_row(f"{name}, sampled", *(f"{getattr(sampled[step], name).mean:.3f}" for step in steps))
    table.add_row("failed episodes", *(str(sum(by[step].failed for by in overall.values())) for step in steps))
    return table


def _interval(at: Interval, failed: int) -> str:
    return f"{at}{f', {failed} failed' * bool(failed)}"
