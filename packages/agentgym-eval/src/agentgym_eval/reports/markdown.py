"""Reports as Markdown, for terminals, pull requests and wikis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_eval.reports.cells import Cell, Table
from agentgym_eval.reports.evaluated import Evaluated, labels, view_commands
from agentgym_eval.reports.plots import TITLES
from agentgym_eval.reports.tables import facts, groups


def markdown(
    runs: Sequence[Evaluated],
    tables: Sequence[Table],
    *,
    title: str,
    folder: Path,
    pictures: Sequence[str],
) -> str:
    """Return the content of `report.md`.

    Args:
        runs: Runs in display order.
        tables: Tables at the start of the text, from `summary`.
        title: Title of the text.
        folder: Folder of the report, for the commands that view its episodes.
        pictures: Names of the plots in the same folder: `turns`, `k`.
    """
    results, *compared = tables
    parts = [
        f"# {escaped(title)}",
        table(results, level=2),
        *(f"## {TITLES[name]}\n\n![{TITLES[name]}]({name}.png)" for name in pictures),
        *(table(given, level=2) for given in compared),
        *_runs(runs),
        "\n".join(["## Episodes\n\n```sh", *view_commands(folder, runs), "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def table(given: Table, *, level: int) -> str:
    """Return a table with its heading above and its notes below."""
    head = "| " + " | ".join(map(escaped, given.columns)) + " |"
    line = "|---|" + "---:|" * (len(given.columns) - 1)
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in given.rows]
    notes = [escaped(note) for note in given.notes]
    return "\n\n".join([f"{'#' * level} {escaped(given.title)}", "\n".join([head, line, *rows]), *notes])


def escaped(text: str) -> str:
    """Return `text` on one line, with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _cell(cell: Cell) -> str:
    return escaped(f"{cell.text} ({cell.small})" if cell.small else cell.text)


def _runs(runs: Sequence[Evaluated]) -> Iterator[str]:
    """Yield the sections of each run, under its name if there are several."""
    level = 3 if len(runs) > 1 else 2
    for name, run in zip(labels(runs), runs, strict=True):
        if len(runs) > 1:
            yield f"## {escaped(name)}"
        yield from (table(given, level=level) for given in groups(run))
        for heading, values in facts(run).items():
            listed = "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in values.items())
            yield f"{'#' * level} {escaped(heading)}\n\n{listed}"
