"""The command `agentgym list`: the environments, policies, recipes and so on of the installed packages, by name.

Exit codes: 0 done, 2 wrong usage. The packages provide the sections, see `agentgym_envs.util.listing`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentgym_envs.cli.agentgym import contributions
from agentgym_envs.cli.arguments import command_parser
from agentgym_envs.cli.output import write_lines
from agentgym_envs.core.registration import full_id, look_here
from agentgym_envs.util.installation import command, install
from agentgym_envs.util.listing import Listed, Setting

GROUP = "agentgym.listings"
_USAGE = 2
_FILE_WIDTH = 120


SECTIONS = {
    "environments": ("agentgym-envs", "evaluate --env, train --world.env"),
    "agents": ("agentgym-envs", "--agent, --world.agent; a reply format, followed by habits"),
    "prompts": ("agentgym-envs", "--prompt, --world.prompt"),
    "policies": ("agentgym-eval", "evaluate --policy, collect --policy"),
    "protocols": ("agentgym-eval", "evaluate --protocol"),
    "recipes": ("agentgym-trainer", "train RECIPE"),
    "algorithms": ("agentgym-trainer", "train --algorithm"),
    "advantages": ("agentgym-trainer", "train --algorithm.advantages"),
    "samplers": ("agentgym-trainer", "train --sampler"),
    "horizons": ("agentgym-trainer", "train --horizon"),
    "rewards": ("agentgym-trainer", "train --reward"),
    "engines": ("agentgym-trainer", "train --engine.kind"),
}
"""Each section with the package that provides it, and where commands take its names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(argv)
    look_here()
    try:
        found = _found(asked.name)
    except _errors() as error:
        from agentgym_envs.util.redaction import redacted

        sys.stderr.write(redacted(f"agentgym list: {error}\n"))
        return _USAGE
    if asked.json:
        record = {section: [asdict(entry) for entry in entries] for section, entries in found.items()}
        write_lines([json.dumps(record, indent=2, ensure_ascii=False, default=_plain)])
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _FILE_WIDTH
    lines = _overview(found, width) if asked.name is None else _in_full(found, width)
    write_lines(lines)
    return 0


def _errors() -> tuple[type[Exception], ...]:
    """Return what a section of another package, or an environment, may raise. Gymnasium is imported only for errors."""
    from gymnasium.error import DependencyNotInstalled

    return ValueError, ImportError, DependencyNotInstalled


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = command_parser(
        "list",
        "List what commands take by name: environments, agents, policies, recipes, algorithms and so on.",
        ("", "recipes", "textcraft", "mine:mine/World-v0", "environments --json"),
    )
    about = f"one section ({', '.join(SECTIONS)}), one name such as textcraft, or an environment MODULE:ID"
    result.add_argument("name", nargs="?", help=f"{about}; default: an overview of all sections")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _found(name: str | None) -> dict[str, list[Listed]]:
    """Return the entries to print, by section.

    Raises:
        ValueError: if there is nothing of this name; the message names the nearest.
    """
    providers = contributions(GROUP)
    if name in SECTIONS and name not in providers:
        package = SECTIONS[name][0]
        raise ValueError(f"{name} are part of {package}, which isn't installed. Install it: {install(package)}")
    if name is not None and name not in SECTIONS and re.fullmatch(r"[^/]+:.*/.*", full_id(name)):
        from agentgym_envs.cli.listings import environment

        return {"environments": [environment(full_id(name), name)]}
    chosen = [name] if name in providers else [section for section in SECTIONS if section in providers]
    entries: dict[str, list[Listed]] = {section: list(_entries(providers[section].load())) for section in chosen}
    if name is None or name in providers:
        return entries
    matching = {section: [one for one in listed if _is(one, name)] for section, listed in entries.items()}
    if matching := {section: listed for section, listed in matching.items() if listed}:
        return matching
    names = [*chosen, *(_bare(one.name) for listed in entries.values() for one in listed)]
    world = name.lower() in ("world", "worlds")
    near = ["environments"] if world else difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"There is nothing called {name!r}.{hint} Sections: {', '.join(chosen)}.")


def _entries(provide: Callable[[], Iterable[Listed]]) -> Iterable[Listed]:
    return provide()


def _bare(name: str) -> str:
    """Return a name without the notation of its argument: `window` for `+window:N`."""
    return name.lstrip("+").partition(":")[0].partition("[")[0]


def _is(entry: Listed, name: str) -> bool:
    names = (entry.name, _bare(entry.name), str(entry.facts.get("id")))
    return name.lower() in [each.lower() for each in names]


def _overview(found: Mapping[str, Sequence[Listed]], width: int) -> Iterator[str]:
    for section, entries in found.items():
        yield f"{section} ({SECTIONS[section][1]})"
        column = max(len(entry.name) for entry in entries) + 4
        for entry in entries:
            text = f"{entry.about} ({entry.note})" if entry.note else entry.about
            yield from _row(entry.name, text, column, width)
        yield ""
    for package in dict.fromkeys(package for name, (package, _) in SECTIONS.items() if name not in found):
        names = ", ".join(name for name, (provider, _) in SECTIONS.items() if provider == package)
        yield f"Not installed: {names}. To install: {install(package)}"
    list_ = command("agentgym list", ours=False)
    yield f"{list_} SECTION and {list_} NAME show all settings."


def _in_full(found: Mapping[str, Sequence[Listed]], width: int) -> Iterator[str]:
    for section, entries in found.items():
        for entry in entries:
            yield from textwrap.wrap(f"{entry.name} ({section}): {entry.about}", width, subsequent_indent="  ")
            column = max((len(name) for name in entry.facts), default=0) + 4
            for name, fact in entry.facts.items():
                yield from _row(name.replace("_", " "), _written(fact), column, width)
            if entry.settings:
                yield "  settings"
                settings = {_with_default(one): one.about for one in entry.settings}
                column = min(max(map(len, settings)) + 6, 40)
                for written, about in settings.items():
                    yield from _row(f"  {written}", about, column, width)
            yield ""


def _row(name: str, text: str, column: int, width: int) -> Iterator[str]:
    """Yield the lines of a table row: the name, indented, and the text from `column` on."""
    head = f"  {name}"
    lines = textwrap.wrap(text, max(width - column, 40)) or [""]
    if len(head) > column - 2 and text:
        yield head
        head = ""
    yield f"{head:<{column}}{lines[0]}".rstrip()
    yield from (" " * column + line for line in lines[1:])


def _with_default(setting: Setting) -> str:
    return setting.name if setting.default is ... else f"{setting.name}={setting.default!r}"


def _plain(value: Any) -> Any:
    """Return a JSON value for a default that isn't one: null if there is no default."""
    return None if value is ... else str(value)


def _written(fact: Any) -> str:
    if isinstance(fact, Mapping):
        return ", ".join(f"{_written(value)} {name}" for name, value in fact.items())
    return f"{fact:,}" if isinstance(fact, int) else str(fact)
