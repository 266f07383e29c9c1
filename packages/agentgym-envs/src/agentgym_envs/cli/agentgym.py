"""The command `agentgym`, which runs the commands of the installed packages: `agentgym evaluate --env textcraft`.

It is the only program that the packages install: elsewhere, `view` is vim and `convert` is ImageMagick. Only the
package of the requested command is imported.
"""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution

from agentgym_envs.util.installation import command, install, package_version

KNOWN = {
    "train": ("agentgym-trainer", "train an agent with reinforcement learning or from data"),
    "evaluate": ("agentgym-eval", "play held-out tasks and write a report"),
    "compare": ("agentgym-eval", "compare runs on their common tasks"),
    "view": ("agentgym-eval", "view runs and episodes in a browser"),
    "collect": ("agentgym-eval", "collect episodes as training data"),
    "convert": ("agentgym-eval", "convert episodes to and from other formats"),
    "serve": ("agentgym-envs", "serve environments over HTTP"),
    "searchqa-index": ("agentgym-envs", "index a corpus for SearchQA"),
    "list": ("agentgym-envs", "list environments, policies, recipes and so on"),
    "doctor": ("agentgym-envs", "check what is installed and works"),
    "check": ("agentgym-envs", "check an environment of yours against the contract"),
    "new": ("agentgym-envs", "write a package with an environment of your own"),
    "install-browser": ("agentgym-envs", "install a browser for WebArena"),
}
"""Each command with its package and a description."""
_LISTINGS, _PROBES = "agentgym.listings", "agentgym.probes"
GROUP = "agentgym.commands"
"""Entry points `NAME = MODULE:FUNCTION` of the commands. The function takes the arguments, by default those of the
process, and returns the exit code."""
_PACKAGES = ("agentgym-envs", "agentgym-eval", "agentgym-trainer")
_USAGE = 2
_SHORTEST = 3
"""Letters of the shortest abbreviation."""
_OF_ALL = {"--help", "--version"}
_INDENT, _WIDTH = " " * 19, 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run `agentgym COMMAND ...` and return the command's exit code, or 2 if there is no such command."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    found = installed()
    if name in ("-h", "--help"):
        sys.stdout.write(_listing(found))
        return 0
    if name == "--help-all":
        sys.stdout.write(_listing(found, flags=True))
        return 0
    if name == "--version":
        sys.stdout.writelines(f"{package_version(package)}\n" for package in _PACKAGES if _is_installed(package))
        return 0
    if name == "--completion":
        return _completion(arguments, found)
    meant = [name] if name in found else _abbreviated(name, found)
    if len(meant) != 1:
        sys.stderr.write(f"agentgym: {_unknown(name, found)}\n")
        return _USAGE
    run: Callable[[Sequence[str]], int] = found[meant[0]].load()
    return run(arguments)


def _abbreviated(name: str, found: Iterable[str]) -> list[str]:
    """Return the commands that begin with `name`, or have a part after a hyphen that does, as in `eval` and `index`."""
    long_enough = len(name) >= _SHORTEST
    return [each for each in found if long_enough and any(part.startswith(name) for part in (each, *each.split("-")))]


def _completion(arguments: Sequence[str], found: dict[str, EntryPoint]) -> int:
    """Print the script that completes command lines in a shell."""
    from agentgym_envs.cli.completion import check_shell, script
    from agentgym_envs.cli.completion_cache import cached_script, plugins

    def make() -> str:
        from agentgym_envs.cli.completion_names import completed_commands

        commands = {name: (KNOWN[name][1], point) for name, point in found.items()}
        return script(shell, completed_commands(commands, contributions(_LISTINGS), contributions(_PROBES).values()))

    shell = arguments[0] if arguments else ""
    try:
        check_shell(shell)
        sys.stdout.write(cached_script(shell, [*found.values(), *plugins()], make))
    except ValueError as error:
        sys.stderr.write(f"agentgym --completion: {error}\n")
        return _USAGE
    return 0


def _recipes() -> list[str]:
    """Return the names of the recipes of `train`."""
    recipes = contributions(_LISTINGS).get("recipes")
    return [recipe.name for recipe in recipes.load()()] if recipes else []


def installed() -> dict[str, EntryPoint]:
    """Return the commands of the installed packages by name."""
    found = contributions(GROUP)
    return {name: found[name] for name in KNOWN if name in found}


def contributions(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group in the packages that are installed, by name."""
    packages = [distribution(package) for package in _PACKAGES if _is_installed(package)]
    return {point.name: point for package in packages for point in package.entry_points.select(group=group)}


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _listing(found: dict[str, EntryPoint], *, flags: bool = False) -> str:
    """Return the help, with the flags of all commands if asked, for which their settings are imported."""
    agentgym = command("agentgym", ours=False)
    lines = [
        f"usage: {agentgym} COMMAND [--help] [--version] ...",
        f"       {agentgym} --help-all",
        f"       {agentgym} --completion bash|zsh|fish",
        *("", "Commands, which can be abbreviated (eval, index):"),
    ]
    for name, point in found.items():
        lines += [f"  {name:<17}{KNOWN[name][1]}", *(_flag_lines(point) if flags else ())]
    missing = dict.fromkeys(KNOWN[name][0] for name in KNOWN if name not in found)
    for package in missing:
        names = ", ".join(name for name, (provider, _) in KNOWN.items() if provider == package)
        lines += ["", f"Not installed: {names}. To install: {install(package)}"]
    about = "lists the settings of a command" + (" with their descriptions" if flags else "")
    lines += ["", f"{agentgym} COMMAND --help {about}."]
    if not flags:
        lines += [f"{agentgym} --help-all lists the flags of all commands."]
    return "\n".join(lines) + "\n"


def _flag_lines(point: EntryPoint) -> list[str]:
    from agentgym_envs.cli.completion import flags_of

    names = [flag.name for flag in flags_of(point)]
    shown = " ".join(
        name for name in names if name not in _OF_ALL and name.replace("no-", "", 1) not in {*names} - {name}
    )
    return textwrap.wrap(shown, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _unknown(name: str, found: dict[str, EntryPoint]) -> str:
    if name in KNOWN:
        return f"{name} is part of {KNOWN[name][0]}, which isn't installed. Install it: {install(KNOWN[name][0])}"
    if name in _recipes():
        return f"{name} is a recipe, which {command('agentgym', ours=False)} train {name} runs."
    if kinds := [recipe for recipe in _recipes() if recipe.startswith(f"{name}-")]:
        train = command("agentgym", ours=False)
        return (
            f"There is no command {name!r}, but there are recipes: {train} train {kinds[0]}. All: {train} list recipes."
        )
    near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no command {name!r}.{hint} There are: {', '.join(found)}."
