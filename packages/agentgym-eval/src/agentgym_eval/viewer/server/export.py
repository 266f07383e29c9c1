"""Export of the viewer as static files: all pages of a folder, with links that open from disk and no external assets.

The pages are the same as on the live site, with other links. `static/export.js` replaces the server: it filters, sorts
and searches the lists, and shows two episodes side by side.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

from agentgym_eval.util.errors import UsageError
from agentgym_eval.util.progress import counted
from agentgym_eval.viewer.index.filters import Listing
from agentgym_eval.viewer.index.index import Index, NotFound
from agentgym_eval.viewer.index.indexer import searchable_text
from agentgym_eval.viewer.index.links import Address, FileLinks
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page
from agentgym_eval.viewer.pages.comparison_table import TableQuery, comparable_runs, table_page
from agentgym_eval.viewer.pages.curves import CurvesQuery, curves_page
from agentgym_eval.viewer.pages.episode import episode_page, screenshots
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.messages import all_messages_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.side_by_side import siblings_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.annotations import TYPES, annotations_content

_LIVE_ONLY = ("htmx.min.js", "htmx.LICENSE.txt", "playing.js", "playing.css", "messages.js", "selection.js")
_BATCH = 1000  # rows per query
_MOST_BASELINES = 20
"""The most runs of a table that is written with each of them as the baseline; a larger one has only the first."""


def export(index: Index, out: Path, most: int) -> int:
    """Write all pages into the folder `out`, which is created only when the export is complete.

    Args:
        index: The index; refreshed before the export.
        out: A folder that is empty or doesn't exist.
        most: Maximum number of episodes; each one becomes a page.

    Returns:
        The number of files written.

    Raises:
        UsageError: if there are more episodes, or `out` isn't empty or can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another one for --export.")
    index.refresh()
    rows = list(_rows(index))
    if len(rows) > most:
        raise UsageError(
            f"There are {len(rows):,} episodes in {index.root}, and each becomes a page. Export a subfolder, or "
            f"export them all with --most {len(rows)}."
        )
    with _atomic_folder(out) as folder:
        files = 0
        for name, content in _files(index, rows):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            files += 1
    return files


def _rows(index: Index) -> Iterator[Row]:
    page = 1
    while rows := index.list(Filters(page=page, size=_BATCH)).rows:
        yield from rows
        page += 1


@contextmanager
def _atomic_folder(out: Path) -> Generator[Path]:
    """Yield a temporary folder that is moved to `out` if the block succeeds."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
            folder = Path(temporary) / "pages"
            folder.mkdir()
            yield folder
            if out.exists():
                out.rmdir()
            shutil.move(folder, out)
    except NotFound as error:
        raise UsageError(f"Files changed during the export: {error} Try again.") from error
    except OSError as error:
        raise UsageError(f"{out} can't be written ({error}); choose another folder for --export.") from error


def _files(index: Index, rows: list[Row]) -> Iterator[tuple[str, str | bytes]]:
    """Yield the name and content of every exported file."""
    groups = _groups(rows)
    tables = comparable_runs(Site(index, FileLinks()))
    baselines = {run: runs[0] if len(runs) > _MOST_BASELINES else run for runs in tables for run in runs}
    names = FileLinks(
        groups=groups, tables=baselines
    )  # relative to the first page, so they are also the file names in `out`
    root_site = Site(index, names)

    def site(name: str) -> Site:
        return replace(root_site, links=replace(names, page=name))

    for asset in resources.files("agentgym_eval.viewer").joinpath("static").iterdir():
        if asset.name not in _LIVE_ONLY:
            yield names.asset(asset.name), asset.read_bytes()
    yield names.runs(), runs_page(root_site)
    yield (name := names.episodes()), episodes_page(site(name), Filters(), Listing(rows, len(rows), Filters()))
    yield names.asset("words.js"), _search_script(index, rows)
    if index.annotated:
        for kind in TYPES:
            yield names.annotations(kind), annotations_content(index, Filters(), kind)
    yield names.frames(), site(names.frames()).render("frames.html")
    for run in index.runs:
        yield (name := names.run(run.slug)), run_page(site(name), run.slug)
    training = tuple(run.slug for run in index.runs if run.kind == "train")
    yield (name := names.curves()), curves_page(site(name), CurvesQuery(training))
    yield (name := names.compare()), site(name).render("pairs.html", pairs=_comparable(rows), tables=tables)
    for runs in tables:
        for baseline in filter(names.is_baseline, runs):
            yield (name := names.compare_runs(runs, baseline)), table_page(site(name), TableQuery(runs, baseline))
    with counted("Exporting", len(rows), "episodes") as advance:
        for row in rows:
            address = row.address
            yield (name := names.episode(address)), episode_page(site(name), address)
            yield names.raw(address), index.line(address)
            if index.episode(address).turns:
                yield (name := names.all_messages(address)), all_messages_page(site(name), address)
            for turn, path in screenshots(root_site, address):
                yield names.picture(address, turn), path.read_bytes()
            if groups.get(address) == address:
                yield (name := names.siblings(address)), siblings_page(site(name), address)
            advance()
    written: set[str] = set()
    while pending := names.compared.keys() - written:  # rendering a comparison adds links to its further pages
        for name in sorted(pending):
            yield name, compare_page(site(name), ComparisonQuery.parse(names.compared[name]))
        written |= pending


def _groups(rows: Iterable[Row]) -> dict[Address, Address]:
    """Map each attempt that has siblings to the first of them, whose page shows them side by side."""
    groups: dict[tuple[str, str, str, str], list[Address]] = {}
    for row in rows:
        groups.setdefault((row.address.run, row.address.file, row.env, row.task), []).append(row.address)
    return {address: group[0] for group in groups.values() if len(group) > 1 for address in group}


def _comparable(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Map each run to the runs that share a task with it."""
    tasks: dict[str, set[str]] = {}
    for row in rows:
        tasks.setdefault(row.address.run, set()).add(row.task)
    pairs = {run: [other for other in tasks if other != run and tasks[other] & tasks[run]] for run in tasks}
    return {run: others for run, others in pairs.items() if others}


def _search_script(index: Index, rows: Iterable[Row]) -> str:
    """The searchable text of each episode in the list, as a script that is loaded on the first search."""
    texts = [searchable_text(index.episode(row.address)) for row in rows]
    return f"window.agentgymWords = {json.dumps(texts)};\n"
