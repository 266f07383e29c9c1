"""The viewer as files: every page of a folder, with links that open from disk, and nothing loaded from elsewhere.

Pages are the live site's own under other links. What a server does there, `static/export.js` does here: filtering,
sorting and searching the lists, setting two episodes side by side.
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

from rich.console import Console
from rich.progress import track

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.filters import Listing
from agentgym_eval.viewer.index.index import Index, NotFound
from agentgym_eval.viewer.index.indexer import searched
from agentgym_eval.viewer.index.links import Address, FileLinks
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.pages.comparison import Asked, compare_page
from agentgym_eval.viewer.pages.episode import episode_page, pictures
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.side_by_side import siblings_page
from agentgym_eval.viewer.pages.site import Site

_LIVE_ONLY = ("htmx.min.js", "htmx.LICENSE.txt", "playing.js", "playing.css")
_AT_ONCE = 1000  # rows


def export(index: Index, out: Path, most: int) -> int:
    """Write all pages into the folder `out`, which appears when they are all there.

    Args:
        index: Brought up to date here.
        out: A folder that is empty or isn't there.
        most: Of episodes, each of which becomes a page.

    Returns:
        How many files were written.

    Raises:
        UsageError: when there are more episodes, or `out` isn't empty or can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already and not an empty folder; name another one for --export.")
    index.refresh()
    rows = list(_rows(index))
    if len(rows) > most:
        raise UsageError(
            f"There are {len(rows):,} episodes in {index.root}, and each becomes a page: export a folder below it, or "
            f"take them all with --most {len(rows)}."
        )
    with _whole(out) as folder:
        files = 0
        for name, content in _files(index, rows):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            files += 1
    return files


def _rows(index: Index) -> Iterator[Row]:
    page = 1
    while rows := index.list(Filters(page=page, size=_AT_ONCE)).rows:
        yield from rows
        page += 1


@contextmanager
def _whole(out: Path) -> Generator[Path]:
    """A folder that becomes `out` when all went well."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as made:
            folder = Path(made) / "pages"
            folder.mkdir()
            yield folder
            if out.exists():
                out.rmdir()
            shutil.move(folder, out)
    except NotFound as error:
        raise UsageError(f"Files changed while they were exported: {error} Try again.") from error
    except OSError as error:
        raise UsageError(f"{out} can't be written ({error}); name another folder for --export.") from error


def _files(index: Index, rows: list[Row]) -> Iterator[tuple[str, str | bytes]]:
    """Names and contents."""
    groups = _groups(rows)
    names = FileLinks(groups=groups)  # as on the first page, beside which all others lie
    whole = Site(index, names)

    def site(name: str) -> Site:
        return replace(whole, links=replace(names, page=name))

    for asset in resources.files("agentgym_eval.viewer").joinpath("static").iterdir():
        if asset.name not in _LIVE_ONLY:
            yield names.asset(asset.name), asset.read_bytes()
    yield names.runs(), runs_page(whole)
    yield (name := names.episodes()), episodes_page(site(name), Filters(), Listing(rows, len(rows), Filters()))
    yield names.asset("words.js"), _words(index, rows)
    yield names.frames(), site(names.frames()).render("frames.html")
    for run in index.runs:
        yield (name := names.run(run.slug)), run_page(site(name), run.slug)
    yield (name := names.compare()), site(name).render("pairs.html", pairs=_comparable(rows))
    console = Console(stderr=True)
    for row in track(rows, "episodes", console=console, transient=True, disable=not console.is_terminal):
        at = row.address
        yield (name := names.episode(at)), episode_page(site(name), at)
        yield names.raw(at), index.line(at)
        for turn, path in pictures(whole, at):
            yield names.picture(at, turn), path.read_bytes()
        if groups.get(at) == at:
            yield (name := names.siblings(at)), siblings_page(site(name), at)
    written: set[str] = set()
    while waiting := names.compared.keys() - written:  # their further pages are linked to from the first ones
        for name in sorted(waiting):
            yield name, compare_page(site(name), Asked.parse(names.compared[name]))
        written |= waiting


def _groups(rows: Iterable[Row]) -> dict[Address, Address]:
    """For each attempt that has siblings the first of them, which has the page that shows them side by side."""
    groups: dict[tuple[str, str, str, str], list[Address]] = {}
    for row in rows:
        groups.setdefault((row.address.run, row.address.file, row.env, row.task), []).append(row.address)
    return {address: group[0] for group in groups.values() if len(group) > 1 for address in group}


def _comparable(rows: Iterable[Row]) -> dict[str, list[str]]:
    """For each run those that played a task in common with it."""
    tasks: dict[str, set[str]] = {}
    for row in rows:
        tasks.setdefault(row.address.run, set()).add(row.task)
    pairs = {run: [other for other in tasks if other != run and tasks[other] & tasks[run]] for run in tasks}
    return {run: others for run, others in pairs.items() if others}


def _words(index: Index, rows: Iterable[Row]) -> str:
    """What was said and shown in each episode of the list, which is loaded once somebody searches."""
    said = [searched(json.loads(index.line(row.address))) for row in rows]
    return f"window.agentgymWords = {json.dumps(said)};\n"
