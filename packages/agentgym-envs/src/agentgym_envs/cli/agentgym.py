"""The command `agentgym`, which runs the commands of the installed packages: `agentgym evaluate --env textcraft`.

It is the only program that the packages install: elsewhere, `view` is vim and `convert` is ImageMagick. Only the
package of the requested command is imported.
"""

from __future__ import annotations

import difflib
import sys
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run `agentgym COMMAND ...` and return the command's exit code, or 2 if there is no such command."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    found = installed()
    if name in ("-h", "--help"):
        sys.stdout.write(_listing(found))
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


def _listing(found: dict[str, EntryPoint]) -> str:
    agentgym = command("agentgym", ours=False)
    lines = [f"usage: {agentgym} COMMAND [--help] [--version] ...", f"       {agentgym} --completion bash|zsh|fish", ""]
    lines += ["Commands:"]
    lines += [f"  {name:<17}{KNOWN[name][1]}" for name in found]
    missing = dict.fromkeys(KNOWN[name][0] for name in KNOWN if name not in found)
    for package in missing:
        names = ", ".join(name for name, (provider, _) in KNOWN.items() if provider == package)
        lines += ["", f"Not installed: {names}. To install: {install(package)}"]
    return "\n".join([*lines, "", f"{agentgym} COMMAND --help lists the settings of a command."]) + "\n"


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
