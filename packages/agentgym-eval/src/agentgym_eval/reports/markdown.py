"""A report as Markdown: what one reads in a terminal, a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_eval.reports.evaluated import Evaluated, labels, view_commands
from agentgym_eval.reports.plots import TITLES
from agentgym_eval.reports.tables import Cell, Table, facts, groups


def markdown(
    runs: Sequence[Evaluated],
    tables: Sequence[Table],
    *,
    title: str,
    folder: Path,
    pictures: Sequence[str],
) -> str:
    """The text of `report.md`.

    Args:
        runs: In the order in which they are to be read.
        tables: What the text begins with, as `summary` gives it.
        title: Of the text.
        folder: Of the report, for the commands that show its episodes.
        pictures: The curves that lie beside it: `turns`, `k`.
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
    """A table under its heading, with its notes below."""
    head = "| " + " | ".join(map(escaped, given.columns)) + " |"
    line = "|---|" + "---:|" * (len(given.columns) - 1)
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in given.rows]
    notes = [escaped(note) for note in given.notes]
    return "\n\n".join([f"{'#' * level} {escaped(given.title)}", "\n".join([head, line, *rows]), *notes])


def escaped(text: str) -> str:
    """`text` on one line, in which nothing is taken for a mark of Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _cell(cell: Cell) -> str:
    return escaped(f"{cell.text} ({cell.small})" if cell.small else cell.text)


def _runs(runs: Sequence[Evaluated]) -> Iterator[str]:
    """Each run by itself; under its name where there are several."""
    level = 3 if len(runs) > 1 else 2
    for name, run in zip(labels(runs), runs, strict=True):
        if len(runs) > 1:
            yield f"## {escaped(name)}"
        yield from (table(given, level=level) for given in groups(run))
        for heading, values in facts(run).items():
            listed = "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in values.items())
            yield f"{'#' * level} {escaped(heading)}\n\n{listed}"
