"""Scripts that complete the commands of `agentgym`, their flags and the values of these, for bash, zsh and fish.

The names are written into the script, because starting Python at every press of the tab key would be slow.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint

WITH_MORE_HELP = {"train", "evaluate", "collect", "convert", "serve"}
"""Commands of which `--help-all` lists all flags, and `--help` those that most users need."""


@dataclass(frozen=True)
class Flag:
    """A flag of a command."""

    name: str
    """The flag with its dashes."""
    values: Sequence[str] = ()
    """The known values. One that ends in a colon is followed by an argument of the user's, one that begins with a plus
    sign is appended to another value."""
    many: bool = False
    """Whether several values may follow."""


@dataclass(frozen=True)
class Completed:
    """What is completed after a command."""

    about: str
    """A description of the command."""
    flags: Sequence[Flag]
    names: Sequence[str] = ()
    """Names that may follow the command directly."""


def flags_of(command: EntryPoint) -> list[Flag]:
    """Return the flags in a command's help, with the values of those for which the help has a list in braces."""
    run: Callable[[Sequence[str]], object] = command.load()
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        run(["--help-all" if command.name in WITH_MORE_HELP else "--help"])
    found = dict[str, Flag]()
    for line in text.getvalue().splitlines():
        if re.match(r"(│ |  )-", line):  # deeper in, a description goes on
            head = re.split(r"\s{2,}", line[2:])[0]
            choices = re.search(r"\{([\w.,-]+)\}", head.replace("{None}", ""))
            values = tuple(choices[1].split(",")) if choices else ()
            for name in re.findall(r"--[a-z][\w.-]*", head):
                found.setdefault(name, Flag(name, values, many="...]" in head))
    return list(found.values())


def check_shell(shell: str) -> None:
    """Raise ValueError if there is no script for a shell."""
    if shell not in _SHELLS:
        raise ValueError(f"There is no completion for {shell!r}; choose one of {', '.join(_SHELLS)}.")


def script(shell: str, commands: Mapping[str, Completed]) -> str:
    """Return the script for a shell: `bash`, `zsh` or `fish`."""
    return _SHELLS[shell](commands)


_BASH = """_agentgym() {
    local current="${COMP_WORDS[COMP_CWORD]}" at=$((COMP_CWORD - 1)) flags="" many="" values="" flag="" word words=""
    COMPREPLY=()
    case "${COMP_WORDS[1]}" in
%(flags)s
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "%(commands)s --help --help-all --version --completion" -- "$current"))
        return
    elif [ "${current#-}" != "$current" ]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
        return
    elif [ "$current" = : ] || [ "${COMP_WORDS[at]}" = : ]; then
        return  # such as the path in hf:PATH, which the shell completes
    fi
    if [ "$current" = "=" ]; then  # --flag=
        current=""
    elif [ "${COMP_WORDS[at]}" = "=" ]; then
        at=$((at - 1))
    fi
    flag="${COMP_WORDS[at]}"
    if [ "${flag#--}" = "$flag" ]; then
        while [ "$at" -gt 1 ] && [ "${COMP_WORDS[at]#--}" = "${COMP_WORDS[at]}" ]; do
            at=$((at - 1))
        done
        case " $many " in
            *" ${COMP_WORDS[at]} "*) flag="${COMP_WORDS[at]}";;
            *) flag="";;
        esac
    fi
    [ "$COMP_CWORD" -eq 2 ] && flag=""
    case "${COMP_WORDS[1]}:$COMP_CWORD:$flag" in
%(values)s
    esac
    for word in $values; do
        case "$word" in
            +*) case "$current" in *+*) words="$words ${current%%+*}$word";; esac;;
            *) words="$words $word";;
        esac
    done
    [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "${COMPREPLY[*]}" in
        *:) compopt -o nospace 2>/dev/null;;
    esac
    return 0
}
complete -o default -F _agentgym agentgym
"""


def _bash(commands: Mapping[str, Completed]) -> str:
    flags = [
        f"        {name}) flags={_listed(flag.name for flag in found.flags)} "
        f"many={_listed(flag.name for flag in found.flags if flag.many)};;"
        for name, found in commands.items()
    ]
    values = [
        f"        {name}:*:{flag.name}) values={_listed(flag.values)};;"
        for name, found in commands.items()
        for flag in found.flags
        if flag.values
    ]
    direct = {name: found.names for name, found in commands.items() if found.names}
    values += [f"        {name}:2:) values={_listed(names)};;" for name, names in direct.items()]
    return _BASH % {"flags": "\n".join(flags), "values": "\n".join(values), "commands": " ".join(commands)}


_ZSH = """#compdef agentgym
_agentgym() {
    local -a flags many values plain
    local flag="" at=$(( CURRENT - 1 ))
    case "${words[2]}" in
%(flags)s
    esac
    if (( CURRENT == 2 )); then
        compadd -- %(commands)s --help --help-all --version --completion
        return
    elif [[ "$PREFIX" == --*=* ]]; then
        flag="${PREFIX%%%%=*}"
        compset -P '*='
    elif [[ "$PREFIX" == -* ]]; then
        compadd -- $flags
        return
    elif (( CURRENT > 3 )); then
        flag="${words[at]}"
        if [[ "$flag" != --* ]]; then
            while (( at > 2 )) && [[ "${words[at]}" != --* ]]; do
                (( at-- ))
            done
            flag="${words[at]}"
            (( ${many[(Ie)$flag]} )) || flag=""
        fi
    fi
    case "${words[2]}:$CURRENT:$flag" in
%(values)s
    esac
    if (( ! $#values )); then
        _files
    elif [[ "$PREFIX" == *:* ]]; then
        compset -P '*:'
        _files
    else
        plain=(${values:#+*})
        compadd -- ${plain:#*:}
        compadd -S '' -- ${(M)plain:#*:}
        if [[ "$PREFIX" == *+* ]]; then
            compset -P '*+'
            values=(${(M)values:#+*})
            compadd -S '' -- ${values#+}
        fi
    fi
}
if [[ "${funcstack[1]}" == _agentgym ]]; then  # as a file _agentgym in a folder of $fpath
    _agentgym "$@"
else
    compdef _agentgym agentgym
fi
"""


def _zsh(commands: Mapping[str, Completed]) -> str:
    flags = [
        f"        {name}) flags=({' '.join(flag.name for flag in found.flags)}); "
        f"many=({' '.join(flag.name for flag in found.flags if flag.many)});;"
        for name, found in commands.items()
    ]
    values = [
        f"        {name}:*:{flag.name}) values=({_quoted(flag.values)});;"
        for name, found in commands.items()
        for flag in found.flags
        if flag.values
    ]
    values += [
        f"        {name}:3:) values=({_quoted(found.names)});;" for name, found in commands.items() if found.names
    ]
    return _ZSH % {"flags": "\n".join(flags), "values": "\n".join(values), "commands": " ".join(commands)}


_FISH = """function __agentgym_first
    test (count (commandline -opc)) -eq 1
end
function __agentgym_command
    set -l words (commandline -opc)
    test "$words[2]" = "$argv[1]"
end
function __agentgym_second
    __agentgym_command $argv[1]; and test (count (commandline -opc)) -eq 2
end
function __agentgym_more
    set -l words (commandline -opc)
    set -l flags (string match -- '--*' $words)
    __agentgym_command $argv[1]; and test "$flags[-1]" = $argv[2] -a "$words[-1]" != $argv[2]
end
function __agentgym_values
    set -l word (commandline -ct | string replace -r -- '^--[^=]*=' '')
    if string match -q -- '*:*' $word
        set -l before (string replace -r -- '[^:]*$' '' $word)
        for path in (__fish_complete_path (string replace -r -- '^.*:' '' $word))
            echo $before$path
        end
        return
    end
    string match -v -- '+*' $argv
    if string match -q -- '*+*' $word
        for added in (string match -- '+*' $argv)
            echo (string replace -r -- '[+][^+]*$' '' $word)$added
        end
    end
end
complete -c agentgym -n __agentgym_first -l help
complete -c agentgym -n __agentgym_first -l help-all
complete -c agentgym -n __agentgym_first -l version
complete -c agentgym -n __agentgym_first -l completion -x -a 'bash zsh fish'
"""


def _fish(commands: Mapping[str, Completed]) -> str:
    lines = list[str]()
    for name, found in commands.items():
        lines.append(f"complete -c agentgym -n __agentgym_first -f -a {name} -d {shlex.quote(found.about)}")
        if found.names:
            lines.append(f"complete -c agentgym -n '__agentgym_second {name}' -f -a {_listed(found.names)}")
        for flag in found.flags:
            values = f"'(__agentgym_values {' '.join(flag.values)})'"
            after = f"complete -c agentgym -n '__agentgym_command {name}' -l {flag.name.removeprefix('--')}"
            lines.append(f"{after} -x -a {values}" if flag.values else after)
            if flag.values and flag.many:
                lines.append(f"complete -c agentgym -n '__agentgym_more {name} {flag.name}' -f -a {values}")
    return _FISH + "\n".join([*lines, ""])


def _listed(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


_SHELLS: dict[str, Callable[[Mapping[str, Completed]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
