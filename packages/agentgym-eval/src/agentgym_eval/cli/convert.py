"""The command `convert`, which converts episodes between file formats.

Exit codes: 0 done, 1 nothing left to write, 2 wrong usage, 130 interrupted. Heavy modules are imported after the flags
are parsed, so that `--help` is fast.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agentgym_envs.cli.flags import read_flags
from agentgym_envs.util.flag_markers import arg, positional, switch

from agentgym_eval.cli.examples import COMMON, EXAMPLES, SYNONYMS
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.util.errors import UsageError, listed

if TYPE_CHECKING:
    from agentgym_envs import Episode

_EMPTY, _USAGE, _INTERRUPTED = 1, 2, 130
_SHOWN = 5  # reasons that are printed


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """Convert episodes between file formats; the input format is detected from the content.

    Reads this package's episodes, AgentGym's conversations, chat messages (TRL, OpenAI), ShareGPT, prompts with
    completions, preference pairs and Alpaca, as JSON lines, a JSON array, or a folder of such files.
    """

    inputs: Annotated[tuple[Path, ...], positional(), arg(name="in", metavar="IN [IN ...]")]
    """Files and folders to read."""
    to: Literal["episodes", "trl", "agentgym", "items", "pairs"]
    """Output format: episodes of this package, TRL's conversations, AgentGym's conversations, AgentGym's item ids of
    the tasks, or TRL's preference pairs, which pair up episodes of the same task by their scores."""
    out: Path
    """Output file."""
    score: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Score of conversations whose file has none, from 0 to 1."""
    skip: Annotated[bool, switch()] = False
    """Leave out, and count, records of tasks that exist only in AgentGym or only in this package. Such records are an
    error otherwise."""
    keep: Annotated[bool, switch()] = False
    """Keep AgentGym's conversations of tasks that this package doesn't have, without an environment. Such conversations
    are an error otherwise."""
    label: str = ""
    """Convert only episodes that a reader gave this label in the viewer."""
    pairs: Pairing = field(default_factory=Pairing)
    """How episodes are paired, for --to pairs."""
    overwrite: bool = False
    """Overwrite the output file if it exists."""

    def __post_init__(self) -> None:
        if not self.inputs:
            from agentgym_envs.util.installation import command

            raise UsageError(f"No input files; name at least one: {command('convert')} FILE --to trl --out OUT.")
        if self.score is not None and not 0 <= self.score <= 1:
            raise UsageError(f"--score must be between 0 and 1, not {self.score:g}.")
        if self.pairs != Pairing() and self.to != "pairs":
            raise UsageError(f"The --pairs flags apply only to --to pairs, not to --to {self.to}.")
        if self.skip and self.keep:
            raise UsageError("--skip and --keep exclude each other; give one of the two.")


def convert(argv: Sequence[str] | None = None) -> int:
    """Run the command `convert`, see `ConvertSettings`. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0
    examples, synonyms = EXAMPLES["convert"], SYNONYMS["convert"]
    settings = read_flags(
        "convert",
        ConvertSettings,
        arguments,
        examples=examples,
        synonyms=synonyms,
        common=COMMON["convert"],
        operands="IN [IN ...]",
    )
    try:
        return _convert(settings)
    except UsageError as error:
        sys.stderr.write(f"convert: {error}\n")
        return _USAGE
    except RecursionError:
        sys.stderr.write("convert: A record in these files is nested too deeply to be written. Nothing was written.\n")
        return _USAGE
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. Nothing was written.\n")
        return _INTERRUPTED


def _convert(settings: ConvertSettings) -> int:
    from agentgym_envs.util.files import write_whole

    from agentgym_eval.data.formats import content, training_runs

    out = settings.out
    if out.is_dir() or (out.exists() and not settings.overwrite):
        raise UsageError(f"{out} exists already; choose another --out, or replace a file with --overwrite.")
    left_out: list[str] = []
    changed: list[str] = []
    found = _records(settings, left_out, changed)
    _print_reasons("Left out", left_out)
    _print_reasons("Changed", changed)
    if trained := [str(run) for path in settings.inputs for run in training_runs(path)]:
        sys.stderr.write(f"Of training runs, only the rollouts were read, not the evaluations: {listed(trained)}\n")
    if not found:
        sys.stderr.write(f"convert: {_why_nothing(settings)}\n")
        return _EMPTY
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content(found, settings.to))
    except OSError as error:
        raise UsageError(f"{out} can't be written ({error}); choose another --out.") from error
    sys.stdout.write(f"{out} holds {len(found)} records; {len(left_out)} left out\n")
    return 0


def _why_nothing(settings: ConvertSettings) -> str:
    if settings.to != "pairs":
        return "Nothing was left to write."
    from agentgym_envs.util.installation import command

    return (
        f"No task has two comparable episodes whose scores differ by at least {settings.pairs.min_gap:g} "
        "(--pairs.min-gap). Collect several attempts at each task with a policy that varies, as in: "
        f"{command('collect')} --policy oracle:0.3 --samples 4"
    )


def _print_reasons(heading: str, occurrences: Sequence[str]) -> None:
    """Print the most frequent reasons with their counts."""
    reasons = Counter(occurrences).most_common()
    for reason, times in reasons[:_SHOWN]:
        sys.stderr.write(f"{heading}: {reason}{f' ({times} times)' if times > 1 else ''}\n")
    if more := sum(times for _, times in reasons[_SHOWN:]):
        sys.stderr.write(f"{heading}: {more} more\n")


def _records(settings: ConvertSettings, left_out: list[str], changed: list[str]) -> list[dict[str, Any]]:
    """Return the records to write. Appends to `left_out` the reason for each record that is left out, and to `changed`
    a description of each change.
    """
    from agentgym_eval.data.formats import read_data, records
    from agentgym_eval.data.pairs import make_pairs, to_trl

    skip = left_out.append if settings.skip else None

    def usable() -> Iterator[Episode]:
        read = read_data(
            settings.inputs,
            score=settings.score,
            skip=skip,
            keep=settings.keep,
            half=left_out.append,
            on_change=changed.append,
            label=settings.label.strip(),
        )
        for episode in _counting(read):
            if episode.failed and settings.to != "episodes":
                left_out.append("failed episodes are exported only with --to episodes")
            else:
                yield episode

    if settings.to == "pairs":
        return [to_trl(pair) for pair in make_pairs(usable(), settings.pairs)]
    return list(records(usable(), settings.to, skip=skip))


def _counting(episodes: Iterator[Episode]) -> Iterator[Episode]:
    """Yield the episodes and show their running count on a terminal."""
    from rich.console import Console

    with Console(stderr=True).status("Reading") as status:
        for number, episode in enumerate(episodes, 1):
            status.update(f"{number:,} episodes")
            yield episode
