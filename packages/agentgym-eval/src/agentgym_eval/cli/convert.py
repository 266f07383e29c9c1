"""The command `convert`: episodes from files of one format to a file of another.

Exit codes: 0 done, 1 nothing was left to write, 2 wrong usage, 130 interrupted. Whatever is heavy is imported after the
flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from agentgym_eval.cli.examples import EXAMPLES, SYNONYMS
from agentgym_eval.cli.flags import read_flags
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.util.errors import UsageError

if TYPE_CHECKING:
    from agentgym_envs import Episode

_EMPTY, _USAGE, _INTERRUPTED = 1, 2, 130
_SHOWN = 5  # of those that are left out


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """Convert episodes to and from the formats of others; what a file holds shows in it.

    Read are our episodes, AgentGym's conversations, and what others write: messages of chat endpoints (TRL,
    OpenAI), ShareGPT, prompts with completions, preferences and alpaca, as JSON lines or a JSON array, or a folder.
    """

    inputs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(name="in", metavar="IN [IN ...]")]
    """Files and folders to read."""
    to: Literal["episodes", "trl", "agentgym", "items", "pairs"]
    """Our episodes, TRL's conversations, AgentGym's conversations, AgentGym's ids of the tasks, or TRL's
    preferences, for which episodes of a task are paired up by their scores."""
    out: Path
    """File to write."""
    score: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """What conversations scored whose file doesn't say, from 0 to 1."""
    skip: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave out, and count, what is about tasks that only one of AgentGym and we has; otherwise refused."""
    keep: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep AgentGym's conversations about tasks that we lack, as data of no world; otherwise refused."""
    pairs: Pairing = field(default_factory=Pairing)
    """Which ones are made, for `--to pairs`."""
    overwrite: bool = False
    """Replace the file."""

    def __post_init__(self) -> None:
        if not self.inputs:
            from agentgym_envs.util.installation import command

            raise UsageError(f"There is nothing to convert; name a file: {command('convert')} FILE --to trl --out OUT.")
        if self.score is not None and not 0 <= self.score <= 1:
            raise UsageError(f"--score is from 0 to 1, not {self.score:g}.")
        if self.pairs != Pairing() and self.to != "pairs":
            raise UsageError(f"--pairs are settings for --to pairs, not for --to {self.to}.")
        if self.skip and self.keep:
            raise UsageError("--skip leaves out what --keep keeps: give one of the two.")


def convert(argv: Sequence[str] | None = None) -> int:
    """`convert`: see `ConvertSettings`. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0
    examples, synonyms = EXAMPLES["convert"], SYNONYMS["convert"]
    settings = read_flags("convert", ConvertSettings, arguments, examples=examples, synonyms=synonyms)
    try:
        return _convert(settings)
    except UsageError as error:
        sys.stderr.write(f"convert: {error}\n")
        return _USAGE
    except RecursionError:
        sys.stderr.write("convert: Something in these files is nested too deep to be written. Nothing was written.\n")
        return _USAGE
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. Nothing was written.\n")
        return _INTERRUPTED


def _convert(settings: ConvertSettings) -> int:
    from agentgym_envs.util.files import write_whole

    from agentgym_eval.data.formats import content

    out = settings.out
    if out.is_dir() or (out.exists() and not settings.overwrite):
        raise UsageError(f"{out} exists already; choose another --out, or replace a file with --overwrite.")
    left_out: list[str] = []
    changed: list[str] = []
    found = _records(settings, left_out, changed)
    _tell("Left out", left_out)
    _tell("Changed", changed)
    if not found:
        sys.stderr.write("convert: Nothing was left to write.\n")
        return _EMPTY
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content(found, settings.to))
    except OSError as error:
        raise UsageError(f"{out} can't be written ({error}); choose another --out.") from error
    sys.stdout.write(f"{out} holds {len(found)} records; {len(left_out)} left out\n")
    return 0


def _tell(what: str, why: Sequence[str]) -> None:
    """Say the commonest of these, and how often."""
    reasons = Counter(why).most_common()
    for reason, times in reasons[:_SHOWN]:
        sys.stderr.write(f"{what}: {reason}{f' ({times} times)' if times > 1 else ''}\n")
    if more := sum(times for _, times in reasons[_SHOWN:]):
        sys.stderr.write(f"{what}: {more} more\n")


def _records(settings: ConvertSettings, left_out: list[str], changed: list[str]) -> list[dict[str, Any]]:
    """What is to be written. `left_out` is told why what is missing is, and `changed` what has another form."""
    from agentgym_eval.data.formats import read_data, records
    from agentgym_eval.data.pairs import make_pairs, to_trl

    skip = left_out.append if settings.skip else None

    def good() -> Iterator[Episode]:
        how: dict[str, Any] = {"score": settings.score, "skip": skip, "keep": settings.keep}
        read = read_data(settings.inputs, **how, half=left_out.append, told=changed.append)
        for episode in _shown(read):
            if episode.failed and settings.to != "episodes":
                left_out.append("failed episodes are no data for others")
            else:
                yield episode

    if settings.to == "pairs":
        return [to_trl(pair) for pair in make_pairs(good(), settings.pairs)]
    return list(records(good(), settings.to, skip=skip))


def _shown(episodes: Iterator[Episode]) -> Iterator[Episode]:
    """The same, with their number on a terminal."""
    from rich.console import Console

    with Console(stderr=True).status("Reading") as status:
        for number, episode in enumerate(episodes, 1):
            status.update(f"{number:,} episodes")
            yield episode
