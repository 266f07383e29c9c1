"""The commands `evaluate` and `collect`.

Exit codes: 0 done, 1 too many episodes failed, nothing was kept or the player is gone, 2 wrong usage, 130 interrupted.
Whatever is heavy is imported after the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import tyro

from agentgym_eval.errors import RunStopped, UsageError
from agentgym_eval.settings import CollectSettings, EvaluateSettings

if TYPE_CHECKING:
    from agentgym_eval.run import Run

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130
_FILE_WIDTH = 160  # a file or pipe has no width; this holds the widest table
_Settings = TypeVar("_Settings", EvaluateSettings, CollectSettings)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """`uv run evaluate`: see `EvaluateSettings`. Returns the exit code."""
    return _command("evaluate", EvaluateSettings, _evaluate, argv)


def collect(argv: Sequence[str] | None = None) -> int:
    """`uv run collect`: see `CollectSettings`. Returns the exit code."""
    return _command("collect", CollectSettings, _collect, argv)


def _command(name: str, noun: type[_Settings], run: Callable[[_Settings], int], argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    settings = tyro.cli(noun, prog=name, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        return run(settings)
    except UsageError as error:
        _tell(f"{name}: {error}")
        return _USAGE
    except (RunStopped, KeyboardInterrupt) as stop:
        again = shlex.join(argument for argument in arguments if argument != "--overwrite")
        why, code = (f"{name}: {stop}", _FAILED) if isinstance(stop, RunStopped) else ("Interrupted.", _INTERRUPTED)
        _tell(f"{why} What was played is kept in {settings.folder}. Go on with: uv run {name} {again}")
        return code


def _tell(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


def _evaluate(settings: EvaluateSettings) -> int:
    from rich.console import Console

    from agentgym_eval.report import report, versions
    from agentgym_eval.run import open_run
    from agentgym_eval.store import write_json
    from agentgym_eval.table import print_report

    with open_run(settings, settings.folder) as run:
        _play(run)
        result = report(run.episodes, ks=settings.ks, seed=settings.seed)
        task_set = run.task_set
    about = {"task_set": task_set, "settings": settings.resolved(), "versions": versions()}
    write_json(settings.folder / "report.json", result.to_dict() | about)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    named = f" of {task_set}" if task_set else ""
    print_report(result, f"{settings.policy} in {settings.env}, {settings.split} split{named}", console)
    console.print(f"{settings.folder} holds episodes.jsonl and report.json", soft_wrap=True, markup=False)
    return _verdict(result.overall.failed, result.overall.episodes, settings.max_failed)


def _collect(settings: CollectSettings) -> int:
    import shutil

    from agentgym_envs.files import write_whole

    from agentgym_eval.run import open_run

    if settings.out.is_dir() or (settings.out.exists() and not settings.overwrite):
        raise UsageError(f"{settings.out} exists already; choose another --out, or replace a file with --overwrite.")
    with open_run(settings, settings.folder) as run:
        settings.out.unlink(missing_ok=True)
        _play(run)
        episodes = run.episodes
        kept = [episode for episode in episodes if episode.success or (settings.keep == "all" and not episode.failed)]
        write_whole(settings.out, "".join(f"{episode.to_json()}\n" for episode in kept))
        shutil.rmtree(settings.folder)
    failed = sum(episode.failed for episode in episodes)
    sys.stdout.write(f"{settings.out} holds {len(kept)} of {len(episodes)} episodes; {failed} failed ones left out\n")
    if not kept:
        _tell(f"None of the {len(episodes)} episodes is of the kind asked for by --keep {settings.keep}.")
        return _FAILED
    return _verdict(failed, len(episodes), settings.max_failed)


def _play(run: Run) -> None:
    from agentgym_eval.progress import progress

    title = f"{run.settings.policy} in {run.settings.env}"
    with progress(title, run.episodes, len(run.jobs)) as show:
        for episode in run.play():
            show(episode)


def _verdict(failed: int, episodes: int, bearable: float) -> int:
    if failed <= bearable * episodes:
        return 0
    _tell(
        f"{failed} of {episodes} episodes failed, more than --max-failed {bearable:g} allows: the world broke, not the "
        "player. Their `error` in the episodes says why; mend it and begin again with --overwrite."
    )
    return _FAILED
