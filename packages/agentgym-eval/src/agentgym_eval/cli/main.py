"""The commands `evaluate`, `collect` and `compare`.

Heavy modules are imported after the flags are parsed, so that `--help` is fast.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_eval.cli.command import FAILED, USAGE, Session, print_stderr, run_command
from agentgym_eval.runs.settings import (
    ALL,
    CollectSettings,
    CompareSettings,
    EvaluateSettings,
    PlaySettings,
    short_name,
)
from agentgym_eval.util.errors import UsageError, WorldMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentgym_eval.metrics.comparison import Comparison
    from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey
    from agentgym_eval.metrics.seeds import AcrossSeeds
    from agentgym_eval.policies.endpoint.settings import EndpointSettings
    from agentgym_eval.policies.policies import PolicyFactory
    from agentgym_eval.runs.comparisons import EvaluatedRun
    from agentgym_eval.runs.run import Run

_FILE_WIDTH = 180  # files and pipes have no width; the widest table fits into this one


def evaluate(argv: Sequence[str] | None = None) -> int:
    """Run the command `evaluate`, see `EvaluateSettings`. Returns the exit code."""
    return run_command("evaluate", EvaluateSettings, _evaluate, argv)


def collect(argv: Sequence[str] | None = None) -> int:
    """Run the command `collect`, see `CollectSettings`. Returns the exit code."""
    return run_command("collect", CollectSettings, _collect, argv)


def compare(argv: Sequence[str] | None = None) -> int:
    """Run the command `compare`, see `CompareSettings`. Returns the exit code."""
    return run_command("compare", CompareSettings, _compare, argv)


def _evaluate(settings: EvaluateSettings, session: Session) -> int:
    from agentgym_envs.util.installation import command

    from agentgym_eval.reports import write_reports
    from agentgym_eval.runs.comparisons import against_first
    from agentgym_eval.runs.run import open_runs

    asked = replace(settings, env=_worlds(settings.env), out=settings.out and _resolved(settings.out))
    if asked.detect is not None:
        return _plan(asked, asked.detect)
    factories = {policy: _policy_factory(policy, asked.endpoint) for policy in asked.policy}
    _check_folder(asked)
    session.folder = asked.folder
    played: list[EvaluatedRun] = []
    missing: dict[str, WorldMissing] = {}

    def skip(world: PlaySettings, why: WorldMissing) -> None:
        if world.env not in missing:
            print_stderr(f"Skipping {world.env}: {why}")
        missing[world.env] = why

    code = 0
    for policy, folders in asked.runs().items():
        with open_runs(folders, factories[policy], missing=skip if asked.several else None) as runs:
            skipped = _play(runs, session, several=asked.several)
            played += [_played(asked, run) for run in runs if run not in skipped]
            code = USAGE if skipped or missing else code
    if not played:
        raise UsageError("None of the policies can play any of the environments.")
    title = f"{asked.label} in {', '.join(asked.env)}, {asked.split} split"
    comparisons = against_first(played, asked.seed)
    if asked.several:
        write_reports(asked.folder, [run.evaluated for run in played], comparisons, title=title)
    _print(played, comparisons, title)
    view = f"{command('view')} {shlex.quote(str(asked.folder))}"
    sys.stdout.write(f"The report and all episodes are in {asked.folder}; view them with: {view}\n")
    overall = [run.evaluated.report.overall for run in played]
    broke = "harness failed" if asked.harness.name else "environment broke"
    return max(code, *(_verdict(metrics.failed, metrics.episodes, asked.max_failed, broke) for metrics in overall))


def _plan(asked: EvaluateSettings, difference: float) -> int:
    from agentgym_eval.reports.plan import planned
    from agentgym_eval.runs.environments import choose_tasks, open_world

    folders = next(iter(asked.runs().values()))
    for folder, world in folders.items():
        with closing(open_world(world)) as env:
            tasks = choose_tasks(env, world)
        sys.stdout.writelines(f"{line}\n" for line in planned(tasks, difference, folder))
    return 0


def _resolved(out: Path) -> Path:
    """Resolve `..` in a path; otherwise creating it would also create the folders before the `..`."""
    return out.resolve() if ".." in out.parts else out


def _check_folder(asked: EvaluateSettings) -> None:
    """Refuse to mix a single run with several runs in a folder, because their reports have the same file names."""
    own = (asked.folder / "episodes.jsonl").exists()
    if asked.several and own:
        raise UsageError(f"{asked.folder} holds a single run; choose another --out for several runs.")
    if not (asked.several or own) and any(asked.folder.glob("*/episodes.jsonl")):
        raise UsageError(f"{asked.folder} holds several runs; choose another --out for a single run.")


def _played(asked: EvaluateSettings, run: Run) -> EvaluatedRun:
    """Compute and write the report of a finished run."""
    from agentgym_eval.metrics.summary import report
    from agentgym_eval.reports import Evaluated, write_reports
    from agentgym_eval.runs.comparisons import EvaluatedRun
    from agentgym_eval.storage.provenance import versions

    folder, usage, playing = run.store.folder, run.usage, run.settings
    used = {"usage": usage.to_dict(asked.endpoint.price)} if usage.requests else {}
    about = {"task_set": run.task_set, "settings": asked.resolved(playing, folder), "versions": versions()} | used
    distances = _distances(run) if asked.forensics else {}
    found = report(run.episodes, ks=asked.ks, seed=asked.seed, distances=distances)
    evaluated = Evaluated(playing.label, playing.env, found, about=about)
    write_reports(folder, [evaluated], title=f"{playing.label} in {playing.env}, {asked.split} split")
    return EvaluatedRun(replace(evaluated, folder=folder), run.episodes, distances)


def _distances(run: Run) -> Mapping[EpisodeKey, Distances]:
    from agentgym_envs import text_env

    from agentgym_eval.runs.oracle_distances import can_measure, measure_run
    from agentgym_eval.storage.store import EPISODES

    env = text_env(run.env)
    if not can_measure(type(env)):
        print_stderr(f"--forensics: {run.settings.env} has no expert that decides from the current state.")
    return measure_run(run.store.folder / EPISODES, run.episodes, env, run.settings.seed)


def _print(
    played: Sequence[EvaluatedRun], comparisons: Sequence[Comparison], title: str, across: AcrossSeeds | None = None
) -> None:
    from rich.console import Console

    from agentgym_eval.reports.terminal import print_report, print_runs

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    runs = [run.evaluated for run in played]
    if len(runs) > 1:
        print_runs(runs, comparisons, title, console, across)
    else:
        task_set = runs[0].about["task_set"]
        print_report(runs[0].report, f"{title} of {task_set}" if task_set else title, console)


def _compare(settings: CompareSettings, _: Session) -> int:
    from agentgym_eval.metrics.seeds import across_seeds
    from agentgym_eval.reports import write_reports
    from agentgym_eval.runs.comparisons import against_first, differing, read_runs, seed_by_seed

    settings = replace(settings, out=settings.out and _resolved(settings.out))
    if settings.out and (settings.out / "episodes.jsonl").exists():
        raise UsageError(f"{settings.out} holds a run, whose report would be overwritten; choose another --out.")
    runs = [*settings.runs, *settings.against]
    played = read_runs(runs, settings.k, settings.seed, forensics=settings.forensics)
    comparisons = (seed_by_seed if settings.against else against_first)(played, settings.seed)
    if not any(comparison.tasks for comparison in comparisons):
        raise UsageError("These runs have no task in common; name runs of the same environment and split.")
    title = f"{len(played)} runs compared with {played[0].evaluated.policy}"
    across = None
    if settings.against:
        across, title = across_seeds(comparisons), f"Two training methods over {len(comparisons)} seeds"
    _print(played, comparisons, title, across)
    sys.stdout.writelines(f"{sentence}\n" for sentence in differing(played))
    if settings.out:
        try:
            settings.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{settings.out} can't be written to ({error}); choose another --out.") from error
        write_reports(settings.out, [run.evaluated for run in played], comparisons, across, title=title)
        sys.stdout.write(f"The report is in {settings.out}\n")
    return 0


def _collect(settings: CollectSettings, session: Session) -> int:
    from agentgym_eval.data.collection import Collection
    from agentgym_eval.metrics.usage import Usage
    from agentgym_eval.runs.run import open_runs

    asked = replace(settings, env=_worlds(settings.env), out=_resolved(settings.out))
    collection = Collection(asked)
    collection.check()
    session.folder = asked.folder
    with open_runs(asked.worlds(), _policy_factory(asked.policy, asked.endpoint)) as runs:
        _play(runs, session)
        usage = sum((run.usage for run in runs), start=Usage())
        card = collection.write([episode for run in runs for episode in run.episodes], usage)
    for world in card.worlds:
        sys.stdout.write(f"{world.summary}\n")
    total = card.total
    failed = f"{total.failed} failed episodes left out"
    sys.stdout.write(f"Wrote {total.kept} of {total.played} episodes to {asked.out}; {failed}\n")
    if not total.kept:
        print_stderr(f"None of the {total.played} episodes matches {collection.rule}.")
        return FAILED
    worst = max(card.worlds, key=lambda world: world.failed / world.played)
    return _verdict(worst.failed, worst.played, asked.max_failed)


def _worlds(named: Sequence[str]) -> tuple[str, ...]:
    """Return the named environments, with `all` replaced by the installed ones; print which ones are missing and
    why.
    """
    if ALL not in named:
        return tuple(named)
    from agentgym_eval.runs.environments import installed_worlds

    installed, missing = installed_worlds()
    for world, why in missing.items():
        print_stderr(f"Skipping {world}: {why}")
    short = [short_name(name) for name in named]
    others = [name for name in installed if name not in short]
    return tuple(name for asked in named for name in (others if asked == ALL else [asked]))


def _play(runs: Sequence[Run], session: Session, *, several: bool = False) -> Sequence[Run]:
    """Play runs of one policy. With `several`, return those whose environment it can't play, instead of raising."""
    from agentgym_eval.metrics.usage import Usage
    from agentgym_eval.runs.item_ids import read_items
    from agentgym_eval.runs.run import play_runs
    from agentgym_eval.util.progress import progress

    asked = runs[0].settings
    if asked.skip and (without := read_items(asked.items).without_tasks):
        print_stderr(f"Left out: {without}")
    title = f"{asked.label} in {', '.join(run.settings.env for run in runs)}"
    skipped: list[Run] = []

    def skip(run: Run, why: UsageError) -> None:
        skipped.append(run)
        print_stderr(f"Skipping {run.settings.policy} in {run.settings.env}: {why}")

    for sentence in (sentence for run in runs for sentence in run.left_out):
        print_stderr(sentence)
    done = [episode for run in runs for episode in run.episodes]
    session.runs += runs

    def spent() -> str:
        usage = sum((run.usage for run in runs), start=Usage())
        return usage.sentence(asked.endpoint.price) if usage.requests else ""

    with (
        progress(title, done, sum(len(run.episode_specs) for run in runs), spent=spent) as show,
        closing(play_runs(runs, unplayable=skip if several else None)) as episodes,
    ):
        for episode in episodes:
            show(episode)
    if changed := sum(len(run.store.journal.diverged) for run in runs):
        print_stderr(
            f"In {changed} episodes the environment's observations differ from those before the interruption, so the "
            "recorded replies could not be reused from there on and new ones were requested."
        )
    if used := spent():
        print_stderr(used)
    return skipped


def _policy_factory(policy: str, endpoint: EndpointSettings) -> PolicyFactory:
    """Return the factory of a policy. Environment variables for endpoints are read only here."""
    from agentgym_eval.policies.policies import find_policy

    return find_policy(policy, endpoint=endpoint, environment=os.environ)


def _verdict(failed: int, episodes: int, max_failed: float, broke: str = "environment broke") -> int:
    if failed <= max_failed * episodes:
        return 0
    print_stderr(
        f"{failed} of {episodes} episodes failed, more than --max-failed {max_failed:g} allows: the {broke}, "
        "not the policy. See `error` in the episodes for the causes; fix them and start over with --overwrite."
    )
    return FAILED
