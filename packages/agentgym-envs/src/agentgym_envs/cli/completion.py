"""Scripts that complete the commands of `agentgym`, their flags and the recipes of `train`, for bash, zsh and fish.

The names are written into the script, because starting Python at every press of the tab key would be slow.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint

_SHORT_HELP = {"train", "evaluate", "collect"}
"""Commands of which `--help-all` lists all flags, and `--help` those that most users need."""


@dataclass(frozen=True)
class Completed:
    """What is completed after a command."""

    about: str
    """A description of the command."""
    flags: Sequence[str]
    names: Sequence[str] = ()
    """Names that may follow the command directly."""


def flags_of(command: EntryPoint) -> list[str]:
    """Return the flags in a command's help."""
    run: Callable[[Sequence[str]], object] = command.load()
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        run(["--help-all" if command.name in _SHORT_HELP else "--help"])
    heads = [re.split(r"\s{2,}", line.strip("│ "))[0] for line in text.getvalue().splitlines()]
    found = [flag for head in heads if head.startswith("-") for flag in re.findall(r"--[a-z][\w.-]*", head)]
    return list(dict.fromkeys(found))


def check_shell(shell: str) -> None:
    """Raise ValueError if there is no script for a shell."""
    if shell not in _SHELLS:
        raise ValueError(f"There is no completion for {shell!r}; choose one of {', '.join(_SHELLS)}.")


def script(shell: str, commands: Mapping[str, Completed]) -> str:
    """Return the script for a shell: `bash`, `zsh` or `fish`."""
    return _SHELLS[shell](commands)


def _bash(commands: Mapping[str, Completed]) -> str:
    cases = [
        f"        {name}) flags={shlex.quote(' '.join(found.flags))} names={shlex.quote(' '.join(found.names))};;"
        for name, found in commands.items()
    ]
    return "\n".join(
        [
            "_agentgym() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" flags="" names=""',
            '    case "${COMP_WORDS[1]}" in',
            *cases,
            "    esac",
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version --completion" -- "$current"))',
            '    elif [ "${current#-}" != "$current" ]; then',
            '        COMPREPLY=($(compgen -W "$flags" -- "$current"))',
            '    elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$names" ]; then',
            '        COMPREPLY=($(compgen -W "$names" -- "$current"))',
            "    else",
            "        COMPREPLY=()",
            "    fi",
            "}",
            "complete -o default -F _agentgym agentgym",
            "",
        ]
    )


def _zsh(commands: Mapping[str, Completed]) -> str:
    cases = [
        f"        {name}) flags=({' '.join(found.flags)}); names=({' '.join(map(shlex.quote, found.names))});;"
        for name, found in commands.items()
    ]
    return "\n".join(
        [
            "#compdef agentgym",
            "_agentgym() {",
            "    local -a flags names",
            '    case "${words[2]}" in',
            *cases,
            "    esac",
            "    if (( CURRENT == 2 )); then",
            f"        compadd -- {' '.join(commands)} --help --version --completion",
            '    elif [[ "$PREFIX" == -* ]]; then',
            "        compadd -- $flags",
            "    elif (( CURRENT == 3 && $#names )); then",
            "        compadd -- $names",
            "    else",
            "        _files",
            "    fi",
            "}",
            "compdef _agentgym agentgym",
            "",
        ]
    )


def _fish(commands: Mapping[str, Completed]) -> str:
    lines = list[str]()
    for name, found in commands.items():
        about, after = shlex.quote(found.about), f"-n '__fish_seen_subcommand_from {name}'"
        lines.append(f"complete -c agentgym -f -n __fish_use_subcommand -a {name} -d {about}")
        lines += [f"complete -c agentgym {after} -l {flag.removeprefix('--')}" for flag in found.flags]
        lines += [f"complete -c agentgym {after} -a {shlex.quote(value)}" for value in found.names]
    return "\n".join([*lines, ""])


_SHELLS: dict[str, Callable[[Mapping[str, Completed]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
