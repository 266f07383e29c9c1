"""Execution of a command that plays episodes: flags, exit codes, error messages, and how to resume after a stop.

Exit codes: 0 done, 1 too many episodes failed, nothing was kept or the policy is gone, 2 wrong usage, 3 the budget is
spent, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM), 138 ended by SIGUSR1.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym_envs.cli.flags import read_flags

from agentgym_eval.cli.examples import COMMON, EXAMPLES, SYNONYMS
from agentgym_eval.util.errors import BudgetSpent, RunStopped, UsageError
from agentgym_eval.util.stopping import Interruption

if TYPE_CHECKING:
    from agentgym_envs.cli.from_files import FromFiles

    from agentgym_eval.runs.run import Run

FAILED, USAGE, SPENT = 1, 2, 3
_Settings = TypeVar("_Settings")


@dataclass
class Session:
    """The state of a command, for its message when it is interrupted."""

    arguments: Sequence[str]
    """The command line after the name."""
    folder: Path | None = None
    """Folder of the runs; None before one is chosen."""
    runs: list[Run] = field(default_factory=list["Run"])
    """Runs that were opened."""


def run_command(
    name: str,
    settings_type: type[_Settings],
    run: Callable[[_Settings, Session], int],
    argv: Sequence[str] | None,
    *,
    from_files: bool = False,
) -> int:
    """Parse the flags of the command `name`, run it, and return its exit code.

    Args:
        name: The command's name.
        settings_type: The dataclass of its flags.
        run: Carries it out, records its folder and runs in the session, and returns the exit code.
        argv: The arguments; by default those of the process.
        from_files: Whether it has `--config` and `--like`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0

    def from_earlier() -> FromFiles[_Settings] | None:
        from agentgym_eval.cli.earlier_settings import defaults

        return defaults(settings_type, arguments)

    try:
        settings = read_flags(
            name,
            settings_type,
            arguments,
            examples=EXAMPLES[name],
            synonyms=SYNONYMS[name],
            common=COMMON.get(name),
            from_files=from_earlier if from_files else None,
        )
    except UsageError as error:  # raised by nested settings; tyro doesn't catch it
        print_stderr(f"{name}: {error}")
        return USAGE
    from agentgym_envs.core.registration import look_here
    from agentgym_envs.util.redaction import redact_logs

    look_here()
    redact_logs()
    session = Session(arguments)
    with Interruption() as interruption:
        try:
            return run(settings, session)
        except UsageError as error:
            print_stderr(f"{name}: {error}")
            return USAGE
        except (RunStopped, OSError, KeyboardInterrupt) as stop:  # OSError: the disk is full, for instance
            why, code = f"{name}: {stop}".rstrip("."), SPENT if isinstance(stop, BudgetSpent) else FAILED
            if isinstance(stop, KeyboardInterrupt):
                why, code = interruption.word, interruption.exit_code
            print_stderr(f"{why}.{_how_to_resume(name, session)}")
            return code


def _how_to_resume(name: str, session: Session) -> str:
    if session.folder is None:
        return ""
    arguments = session.arguments
    from agentgym_envs.util.installation import command
    from agentgym_envs.util.redaction import redacted_words

    not_replaced = "--overwrite" in arguments and not any(run.store.begun for run in session.runs)
    again = shlex.join(arg for arg in redacted_words(arguments) if not_replaced or arg != "--overwrite")
    kept = [kind for kind in ("episodes", "replies") if _any_line(session.folder, f"{kind}.jsonl")]
    if not kept:
        return f" No episode has been played yet. Start over with: {command(name)} {again}"
    state = "Nothing has been replaced yet" if not_replaced else "The episodes so far are kept"
    if "--overwrite" in arguments and not not_replaced and (earlier := _earlier_runs(session)):
        state += f" (and so are the earlier runs in {', '.join(map(str, earlier))}: remove them first)"
    if kept == ["replies"] and not not_replaced:
        state = "No episode has ended yet; the replies so far are kept"
    return f" {state} in {session.folder}. Resume with: {command(name)} {again}"


def _earlier_runs(session: Session) -> list[Path]:
    """Return the folders of runs that --overwrite would replace, but has not replaced yet."""
    if session.folder is None:
        return []
    begun = {run.store.folder for run in session.runs if run.store.begun}
    return sorted({file.parent for file in session.folder.glob("*/episodes.jsonl") if file.stat().st_size} - begun)


def _any_line(folder: Path, name: str) -> bool:
    """Return whether a run in the folder, or the run that is the folder, has a non-empty file of this name."""
    return any(file.stat().st_size for depth in ("", "*/") for file in folder.glob(f"{depth}{name}"))


def print_stderr(sentence: str) -> None:
    """Print a sentence to stderr, without secrets."""
    from agentgym_envs.util.redaction import redacted

    sys.stderr.write(redacted(sentence) + "\n")
