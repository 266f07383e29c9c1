"""Reading a command line: its help with examples, and for a flag that doesn't exist the one that was meant.

Nothing heavy is imported here, so that `--help` answers at once.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

import tyro

_Settings = TypeVar("_Settings")
_TYROS = {"help", "version", "tyro-print-completion", "tyro-write-completion"}
_FLAT = ("config", "endpoint")
"""Settings within the settings whose flags have no prefix."""


def read_flags(
    name: str,
    noun: type[_Settings],
    arguments: Sequence[str],
    *,
    examples: Sequence[str],
    synonyms: Mapping[str, str],
) -> _Settings:
    """The settings that a command line asks for.

    Args:
        name: Of the command.
        noun: The settings' dataclass, whose docstrings are the help.
        arguments: What stands behind the name.
        examples: Whole command lines, shown in the help.
        synonyms: Names that flags have in other programs, and what they are called here.

    Raises:
        SystemExit: with 0 when help was asked for and shown, with 2 when the flags are wrong and that was told.
    """
    description = f"{inspect.getdoc(noun)}\n\nExamples:\n" + "\n".join(f"  {example}" for example in examples)
    try:
        try:
            return tyro.cli(noun, prog=name, args=arguments, description=description)
        except SystemExit as end:
            if end.code == 2:
                known = list(flag_names(noun))
                for sentence in unknown_flags(arguments, known, synonyms):
                    sys.stderr.write(f"{name}: {sentence}\n")
            raise
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # who asked for help has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def flag_names(settings: Any, within: str = "") -> Iterator[str]:
    """The names of all flags of settings, which are a dataclass or an instance of one, without the dashes."""
    for field in fields(settings):
        name = field.name.replace("_", "-")
        if "Positional" in str(field.type):
            continue
        value = getattr(settings, field.name, None)
        if value is None and field.default_factory is not MISSING:
            value = field.default_factory()
        nested = value if isinstance(value, tuple) else ()
        if is_dataclass(value):
            yield from flag_names(value, within if field.name in _FLAT else f"{within}{name}.")
        elif nested and is_dataclass(nested[0]):
            for number, part in enumerate(nested):
                yield from flag_names(part, f"{within}{name}.{number}.")
        else:
            yield within + name


def unknown_flags(
    arguments: Sequence[str],
    known: Sequence[str],
    synonyms: Mapping[str, str],
    elsewhere: Callable[[str], str] = lambda asked: "",
) -> Iterator[str]:
    """A sentence for each flag that there isn't, with the one that was meant.

    Args:
        arguments: Of the command line.
        known: The names of the flags that there are.
        synonyms: Names that flags have in other programs, and what they are called here.
        elsewhere: Where a flag is one of other settings, a sentence that says of which.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        asked = flag.removeprefix("--").replace("_", "-")
        switched = asked.removeprefix("no-").replace(".no-", ".")
        if flag.startswith("--") and asked and not {asked, switched} & {*known, *_TYROS}:
            yield f"There is no {flag}.{elsewhere(asked) or _meant(asked, known, synonyms)}"


def _meant(asked: str, known: Sequence[str], synonyms: Mapping[str, str]) -> str:
    named = re.findall(r"--([\w.-]*\w)", synonyms.get(asked, ""))
    if named and all(any(name == flag or name.startswith(f"{flag}.") for flag in known) for name in named):
        return f" Here that is {synonyms[asked]}."
    same_end = [name for name in known if name.rpartition(".")[2] == asked]
    near = same_end or difflib.get_close_matches(asked, known, n=1, cutoff=0.7)
    return f" Did you mean {' or '.join(f'--{name}' for name in near[:3])}?" if near else ""
