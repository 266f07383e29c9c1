"""Command-line parsing: help with examples, and suggestions for unknown flags.

Nothing heavy is imported here, so that `--help` is fast.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym_envs.util.installation import command

if TYPE_CHECKING:
    from agentgym_envs.cli.from_files import FromFiles

_Settings = TypeVar("_Settings")
_HELP, _HELP_ALL = {"--help", "-h"}, "--help-all"
_NO_PLUGINS = "TYPEGUARD_DISABLE_PLUGIN_AUTOLOAD"
_BUILT_IN = {"help", "help-all", "version", "tyro-print-completion", "tyro-write-completion"}
_FILE_FLAGS = ("config", "like")
_FLAT = ("config", "endpoint", "harness")
"""Nested settings whose flags have no prefix."""


def read_flags(
    name: str,
    settings_type: type[_Settings],
    arguments: Sequence[str],
    *,
    examples: Sequence[str],
    synonyms: Mapping[str, str],
    common: Mapping[str, str] | None = None,
    operands: str = "",
    config: Sequence[Any] | None = None,
    from_files: Callable[[], FromFiles[_Settings] | None] | None = None,
) -> _Settings:
    """Parse a command line into settings.

    Args:
        name: The command's name.
        settings_type: Dataclass of the settings, whose docstrings are the help.
        arguments: The command line after the name.
        examples: Command lines, shown in the help as they are typed in this installation.
        synonyms: Names of flags in other programs, with the flags that they are called here.
        common: The flags, with what they are, that `--help` shows; `--help-all` shows all of them. By default both do.
        operands: What follows the name without a flag, for the usage in the short help.
        config: Markers of `tyro.conf` for all flags.
        from_files: For commands with `--config` and `--like`: returns their settings, if there are any.

    Raises:
        SystemExit: With 0 after showing the help, with 2 after reporting wrong flags.
        UsageError: As `from_files`.
    """
    shown = "\n".join(f"  {command(example)}" for example in examples)
    description = f"{inspect.getdoc(settings_type)}\n\nExamples:\n{shown}"
    known = [*flag_names(settings_type), *(_FILE_FLAGS if from_files else ())]
    try:
        try:
            if common and _HELP & {*arguments} and _HELP_ALL not in arguments:
                sys.stdout.write(_short_help(name, operands, description, common, len(known)))
                sys.exit(0)
            import tyro

            args = ["--help" if argument == _HELP_ALL else argument for argument in arguments]
            parse = partial(tyro.cli, prog=command(name), args=args, description=description, config=config)
            with _typeguard_without_plugins() if _HELP & {*args} else nullcontext():
                if from_files is None:
                    return parse(settings_type)
                from agentgym_envs.cli.from_files import FromFiles

                wrapped: Any = FromFiles[settings_type]
                return parse(wrapped, default=from_files()).settings
        except SystemExit as end:
            if end.code == 2:
                for sentence in unknown_flags(arguments, known, synonyms):
                    sys.stderr.write(f"{name}: {sentence}\n")
            raise
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the help closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


@contextmanager
def _typeguard_without_plugins() -> Generator[None]:
    """Import typeguard, with which tyro checks defaults, without searching all installed packages for its plugins."""
    variables = os.environ
    before = variables.get(_NO_PLUGINS)
    variables[_NO_PLUGINS] = "1"
    try:
        yield
    finally:
        variables.pop(_NO_PLUGINS)
        if before is not None:
            variables[_NO_PLUGINS] = before


def _short_help(name: str, operands: str, description: str, common: Mapping[str, str], count: int) -> str:
    flags = "\n".join(f"  --{flag:<14}{about}" for flag, about in common.items())
    usage = f"{command(name)} {operands}".rstrip()
    return (
        f"usage: {usage} [--FLAG VALUE ...]\n\n{description}\n\nFlags that most users need:\n{flags}\n\n"
        f"{command(name)} --help-all lists all {count} flags.\n"
    )


def flag_names(settings: Any, within: str = "") -> Iterator[str]:
    """Yield the names, without dashes, of all flags of a settings dataclass or of an instance of one."""
    for field in fields(settings):
        name = field.name.replace("_", "-")
        if "positional()" in str(field.type):
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


def given(flags: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag; None if it isn't given."""
    found = None
    for flag, following in pairwise([*flags, ""]):
        setting, equals, value = flag.partition("=")
        if setting.replace("_", "-") == name:
            found = value if equals else following
    return found


def unknown_flags(
    arguments: Sequence[str],
    known: Sequence[str],
    synonyms: Mapping[str, str],
    elsewhere: Callable[[str], str] = lambda name: "",
) -> Iterator[str]:
    """Yield a sentence for each unknown flag, with the flag that was probably meant.

    Args:
        arguments: The command line.
        known: The names of the existing flags.
        synonyms: Names of flags in other programs, with the flags that they are called here.
        elsewhere: Returns, for a flag that belongs to other settings, a sentence that names them; an empty string
            otherwise.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        asked = flag.removeprefix("--").replace("_", "-")
        switched = asked.removeprefix("no-").replace(".no-", ".")
        if flag.startswith("--") and asked and not {asked, switched} & {*known, *_BUILT_IN}:
            yield f"There is no {flag}.{elsewhere(asked) or _meant(asked, known, synonyms)}"


def _meant(asked: str, known: Sequence[str], synonyms: Mapping[str, str]) -> str:
    named = re.findall(r"--([\w.-]*\w)", synonyms.get(asked, ""))
    if named and all(any(name == flag or name.startswith(f"{flag}.") for flag in known) for name in named):
        return f" Here that is {synonyms[asked]}."
    same_end = [name for name in known if name.rpartition(".")[2] == asked]
    near = same_end or difflib.get_close_matches(asked, known, n=1, cutoff=0.7)
    return f" Did you mean {' or '.join(f'--{name}' for name in near[:3])}?" if near else ""
