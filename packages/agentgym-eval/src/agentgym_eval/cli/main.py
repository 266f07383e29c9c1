"""The commands `evaluate`, `collect` and `compare`.

Exit codes: 0 done, 1 too many episodes failed, nothing was kept or the player is gone, 2 wrong usage, 3 the budget is
spent, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM), 138 ended by SIGUSR1.
Whatever is heavy is imported after the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym_eval.cli.examples import EXAMPLES, SYNONYMS
from agentgym_eval.cli.flags import read_flags
from agentgym_eval.runs.settings import (
    ALL,
    CollectSettings,
    CompareSettings,
    EvaluateSettings,
    PlaySettings,
    short_name,
)
from agentgym_eval.util.errors import BudgetSpent, RunStopped, UsageError, WorldMissing
from agentgym_eval.util.stopping import Interruption

if TYPE_CHECKING:
    from agentgym_eval.metrics.comparison import Comparison
    from agentgym_eval.metrics.seeds import AcrossSeeds
    from agentgym_eval.policies.endpoint.settings import EndpointSettings
    from agentgym_eval.policies.policies import PolicyFactory
    from agentgym_eval.runs.comparisons import EvaluatedRun
    from agentgym_eval.runs.run import Run

_FAILED, _USAGE, _SPENT = 1, 2, 3
_FILE_WIDTH = 180  # a file or pipe has no width; this holds the widest table
_Settings = TypeVar("_Settings", EvaluateSettings, CollectSettings, CompareSettings)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """`evaluate`: see `EvaluateSettings`. Returns the exit code."""
    return _command("evaluate", EvaluateSettings, _evaluate, argv)


def collect(argv: Sequence[str] | None = None) -> int:
    """`collect`: see `CollectSettings`. Returns the exit code."""
    return _command("collect", CollectSettings, _collect, argv)


def compare(argv: Sequence[str] | None = None) -> int:
    """`compare`: see `CompareSettings`. Returns the exit code."""
    return _command("compare", CompareSettings, _compare, argv)


@dataclass
class _Sitting:
    """What a command that is interrupted has to tell."""

    folder: Path | None = None
    """Where what is played lies; None where nothing is."""
    runs: list[Run] = field(default_factory=list["Run"])
    """Those that were opened."""


def _command(
    name: str, noun: type[_Settings], run: Callable[[_Settings, _Sitting], int], argv: Sequence[str] | None
) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0
    try:
        settings = read_flags(name, noun, arguments, examples=EXAMPLES[name], synonyms=SYNONYMS[name])
    except UsageError as error:  # of settings within the settings, which tyro passes on
        _tell(f"{name}: {error}")
        return _USAGE
    from agentgym_envs.core.registry import look_here
    from agentgym_envs.util.redaction import redact_logs

    look_here()
    redact_logs()
    sitting = _Sitting()
    with Interruption() as interruption:
        try:
            return run(settings, sitting)
        except UsageError as error:
            _tell(f"{name}: {error}")
            return _USAGE
        except (RunStopped, OSError, KeyboardInterrupt) as stop:  # of the system: the disk is full
            why, code = f"{name}: {stop}".rstrip("."), _SPENT if isinstance(stop, BudgetSpent) else _FAILED
            if isinstance(stop, KeyboardInterrupt):
                why, code = interruption.word, interruption.exit_code
            _tell(f"{why}.{_how_to_go_on(name, arguments, sitting)}")
            return code


def _how_to_go_on(name: str, arguments: Sequence[str], sitting: _Sitting) -> str:
    if sitting.folder is None:
        return ""
    from agentgym_envs.util.installation import command
    from agentgym_envs.util.redaction import redacted_words

    anew = "--overwrite" in arguments and not any(run.store.begun for run in sitting.runs)
    again = shlex.join(arg for arg in redacted_words(arguments) if anew or arg != "--overwrite")
    kept = [noun for noun in ("episodes", "replies") if _any_line(sitting.folder, f"{noun}.jsonl")]
    if not kept:
        return f" Nothing was played yet. Begin again with: {command(name)} {again}"
    where = "Nothing was replaced yet" if anew else "What was played is kept"
    if "--overwrite" in arguments and not anew and (earlier := _earlier_runs(sitting)):
        where += f" (and so are the earlier runs in {', '.join(map(str, earlier))}: remove them first)"
    if kept == ["replies"] and not anew:
        where = "No episode has ended yet; the replies so far are kept"
    return f" {where} in {sitting.folder}. Go on with: {command(name)} {again}"


def _earlier_runs(sitting: _Sitting) -> list[Path]:
    """The folders whose runs --overwrite hasn't come to replace."""
    if sitting.folder is None:
        return []
    begun = {run.store.folder for run in sitting.runs if run.store.begun}
    return sorted({file.parent for file in sitting.folder.glob("*/episodes.jsonl") if file.stat().st_size} - begun)


def _any_line(folder: Path, name: str) -> bool:
    """Whether one of the runs in a folder holds such a file that isn't empty."""
    return any(file.stat().st_size for depth in ("", "*/") for file in folder.glob(f"{depth}{name}"))


def _tell(sentence: str) -> None:
    from agentgym_envs.util.redaction import redacted

    sys.stderr.write(redacted(sentence) + "\n")


def _evaluate(settings: EvaluateSettings, sitting: _Sitting) -> int:
    from agentgym_envs.util.installation import command

    from agentgym_eval.reports import write_reports
    from agentgym_eval.runs.comparisons import against_first
    from agentgym_eval.runs.run import open_runs

    asked = replace(settings, env=_worlds(settings.env), out=settings.out and _straight(settings.out))
    if asked.detect is not None:
        return _plan(asked, asked.detect)
    makers = {policy: _maker(policy, asked.endpoint) for policy in asked.policy}
    _check_room(asked)
    sitting.folder = asked.folder
    played: list[EvaluatedRun] = []
    missing: dict[str, WorldMissing] = {}

    def leave(world: PlaySettings, why: WorldMissing) -> None:
        if world.env not in missing:
            _tell(f"Without {world.env}: {why}")
        missing[world.env] = why

    code = 0
    for policy, folders in asked.runs().items():
        with open_runs(folders, makers[policy], missing=leave if asked.several else None) as runs:
            left = _play(runs, sitting, several=asked.several)
            played += [_played(asked, run) for run in runs if run not in left]
            code = _USAGE if left or missing else code
    if not played:
        raise UsageError("None of the policies can play any of the worlds.")
    title = f"{', '.join(asked.policy)} in {', '.join(asked.env)}, {asked.split} split"
    comparisons = against_first(played, asked.seed)
    if asked.several:
        write_reports(asked.folder, [run.evaluated for run in played], comparisons, title=title)
    _print(played, comparisons, title)
    told = f"{asked.folder} holds the report and every episode: {command('view')} {shlex.quote(str(asked.folder))}"
    sys.stdout.write(f"{told}\n")
    overall = [run.evaluated.report.overall for run in played]
    return max(code, *(_verdict(figures.failed, figures.episodes, asked.max_failed) for figures in overall))


def _plan(asked: EvaluateSettings, difference: float) -> int:
    from agentgym_eval.reports.plan import planned
    from agentgym_eval.runs.environments import choose_tasks, open_world

    folders = next(iter(asked.runs().values()))
    for folder, world in folders.items():
        with closing(open_world(world)) as env:
            tasks = choose_tasks(env, world)
        sys.stdout.writelines(f"{line}\n" for line in planned(tasks, difference, folder))
    return 0


def _straight(out: Path) -> Path:
    """The same place without a way through folders that aren't there, which would be made in passing."""
    return out.resolve() if ".." in out.parts else out


def _check_room(asked: EvaluateSettings) -> None:
    """Refuse to mix a run with several in a folder: each kind has its report there."""
    own = (asked.folder / "episodes.jsonl").exists()
    if asked.several and own:
        raise UsageError(f"{asked.folder} holds a run of its own; choose another --out for several.")
    if not (asked.several or own) and any(asked.folder.glob("*/episodes.jsonl")):
        raise UsageError(f"{asked.folder} holds several runs; choose another --out for one by itself.")


def _played(asked: EvaluateSettings, run: Run) -> EvaluatedRun:
    """A run that has been played to its end, and what it comes to; its report is written."""
    from agentgym_eval.metrics.summary import report
    from agentgym_eval.reports import Evaluated, write_reports
    from agentgym_eval.runs.comparisons import EvaluatedRun
    from agentgym_eval.storage.provenance import versions

    folder, usage, playing = run.store.folder, run.usage, run.settings
    used = {"usage": usage.to_dict(asked.endpoint.price)} if usage.requests else {}
    about = {"task_set": run.task_set, "settings": asked.resolved(playing, folder), "versions": versions()} | used
    found = report(run.episodes, ks=asked.ks, seed=asked.seed)
    evaluated = Evaluated(playing.policy, playing.env, found, about=about)
    write_reports(folder, [evaluated], title=f"{playing.policy} in {playing.env}, {asked.split} split")
    return EvaluatedRun(replace(evaluated, folder=folder), run.episodes)


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


def _compare(settings: CompareSettings, _: _Sitting) -> int:
    from agentgym_eval.metrics.seeds import across_seeds
    from agentgym_eval.reports import write_reports
    from agentgym_eval.runs.comparisons import against_first, differing, read_runs, seed_by_seed

    settings = replace(settings, out=settings.out and _straight(settings.out))
    if settings.out and (settings.out / "episodes.jsonl").exists():
        raise UsageError(f"{settings.out} holds a run, whose own report would be lost; choose another --out.")
    played = read_runs([*settings.runs, *settings.against], settings.k, settings.seed)
    comparisons = (seed_by_seed if settings.against else against_first)(played, settings.seed)
    if not any(comparison.tasks for comparison in comparisons):
        raise UsageError("These runs share no task that was played in both; name runs of the same world and split.")
    title = f"{len(played)} runs compared with {played[0].evaluated.policy}"
    across = None
    if settings.against:
        across, title = across_seeds(comparisons), f"Two ways of training over {len(comparisons)} seeds"
    _print(played, comparisons, title, across)
    sys.stdout.writelines(f"{sentence}\n" for sentence in differing(played))
    if settings.out:
        try:
            settings.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{settings.out} can't be written to ({error}); choose another --out.") from error
        write_reports(settings.out, [run.evaluated for run in played], comparisons, across, title=title)
        sys.stdout.write(f"{settings.out} holds the report\n")
    return 0


def _collect(settings: CollectSettings, sitting: _Sitting) -> int:
    from agentgym_eval.data.collection import Collection
    from agentgym_eval.metrics.usage import Usage
    from agentgym_eval.runs.run import open_runs

    asked = replace(settings, env=_worlds(settings.env), out=_straight(settings.out))
    collection = Collection(asked)
    collection.check()
    sitting.folder = asked.folder
    with open_runs(asked.worlds(), _maker(asked.policy, asked.endpoint)) as runs:
        _play(runs, sitting)
        usage = sum((run.usage for run in runs), start=Usage())
        card = collection.write([episode for run in runs for episode in run.episodes], usage)
    for world in card.worlds:
        sys.stdout.write(f"{world.summary}\n")
    total = card.total
    left_out = f"{total.failed} failed ones left out"
    sys.stdout.write(f"{asked.out} holds {total.kept} of {total.played} episodes; {left_out}\n")
    if not total.kept:
        _tell(f"None of the {total.played} episodes is of the kind asked for by {collection.rule}.")
        return _FAILED
    worst = max(card.worlds, key=lambda world: world.failed / world.played)
    return _verdict(worst.failed, worst.played, asked.max_failed)


def _worlds(named: Sequence[str]) -> tuple[str, ...]:
    """The worlds that are named, with the installed ones in place of `all`; what these leave out is told."""
    if ALL not in named:
        return tuple(named)
    from agentgym_eval.runs.environments import installed_worlds

    installed, missing = installed_worlds()
    for world, why in missing.items():
        _tell(f"Without {world}: {why}")
    short = [short_name(name) for name in named]
    others = [name for name in installed if name not in short]
    return tuple(name for asked in named for name in (others if asked == ALL else [asked]))


def _play(runs: Sequence[Run], sitting: _Sitting, *, several: bool = False) -> Sequence[Run]:
    """Play runs of one policy. Those whose world it can't play are given back where it is one of several."""
    from agentgym_eval.metrics.usage import Usage
    from agentgym_eval.runs.item_ids import read_items
    from agentgym_eval.runs.run import play_runs
    from agentgym_eval.util.progress import progress

    asked = runs[0].settings
    if asked.skip and (without := read_items(asked.items).without_tasks):
        _tell(f"Left out: {without}")
    title = f"{asked.policy} in {', '.join(run.settings.env for run in runs)}"
    left: list[Run] = []

    def leave(run: Run, why: UsageError) -> None:
        left.append(run)
        _tell(f"Without {run.settings.policy} in {run.settings.env}: {why}")

    for sentence in (sentence for run in runs for sentence in run.left_out):
        _tell(sentence)
    done = [episode for run in runs for episode in run.episodes]
    sitting.runs += runs

    def spent() -> str:
        usage = sum((run.usage for run in runs), start=Usage())
        return usage.sentence(asked.endpoint.price) if usage.requests else ""

    with (
        progress(title, done, sum(len(run.episode_specs) for run in runs), spent=spent) as show,
        closing(play_runs(runs, unplayable=leave if several else None)) as episodes,
    ):
        for episode in episodes:
            show(episode)
    if changed := sum(len(run.store.journal.diverged) for run in runs):
        _tell(
            f"In {changed} of the episodes the world showed something else than before the interruption, so that the "
            "replies kept for them were of no use from there on and others were paid for."
        )
    if used := spent():
        _tell(used)
    return left


def _maker(policy: str, endpoint: EndpointSettings) -> PolicyFactory:
    """Whoever plays. What an endpoint wants from the environment is read here, and nowhere below."""
    from agentgym_eval.policies.policies import find_policy

    return find_policy(policy, endpoint=endpoint, environment=os.environ)


def _verdict(failed: int, episodes: int, bearable: float) -> int:
    if failed <= bearable * episodes:
        return 0
    _tell(
        f"{failed} of {episodes} episodes failed, more than --max-failed {bearable:g} allows: the world broke, not the "
        "player. Their `error` in the episodes says why; mend it and begin again with --overwrite."
    )
    return _FAILED
