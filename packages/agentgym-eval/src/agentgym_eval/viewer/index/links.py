"""URLs of all pages; no other module constructs addresses.

Templates take all links from here, so the same templates serve the live site, whose addresses begin with `/`, and an
export, whose links are relative file names that open from disk.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

_LONGEST = 200
"""Maximum length of the name of an exported comparison, before a digest that tells longer ones apart: file systems
allow 255 bytes."""
LIST, ALL = "list", "all"
"""The query of an episode that was opened from the list of all episodes, which has no filters."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The location of an episode."""

    run: str
    """The run's slug."""
    file: str
    """The slug of the file in the run."""
    number: int
    """Its line in the file, from 0."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links of the live site."""

    live = True
    """Whether a server responds; only then pages poll and post."""

    def asset(self, name: str) -> str:
        """Return the link to a file in `static/`."""
        return self._file(f"static/{name}")

    def runs(self, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to the list of runs, which is the first page; `run_list.RunFilters` names the filters."""
        return self._page("", filters)

    def runs_csv(self, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to the list of runs as CSV; live site only."""
        return self._file("runs.csv") + _query(filters)

    def run(self, run: str, **query: str | int) -> str:
        """Return the link to a run, by its slug; `query` has the smoothing and the search of its small charts."""
        return self._page(f"run/{run}", query)

    def edit(self, run: str, action: str = "edit") -> str:
        """Return the link to the form for a run's name and tags, or where its fields are posted: `label`, `tags/add`,
        `tags/remove`; live site only.
        """
        return self._page(f"run/{run}/{action}")

    def tags(self, action: str, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to which selected runs and a tag to `add` or `remove` are posted; live site only.

        Args:
            action: `add` or `remove`.
            filters: Filters of the list of runs that is shown afterwards.
        """
        return self._page(f"tags/{action}", filters)

    def trash(self, action: str = "") -> str:
        """Return the link to the trash, or to one of its questions, of which each is also where the answer is posted:
        `move` selected runs there, `empty` it; live site only.
        """
        return self._page(f"trash/{action}" if action else "trash")

    def restore(self, key: str) -> str:
        """Return the link to which a run in the trash is posted that is to be restored, by its key; live site only."""
        return self._page(f"trash/{key}/restore")

    def curves(self, runs: Iterable[str] = (), **query: str | int) -> str:
        """Return the link to the curves of runs, by their slugs; `curves.CurvesQuery` names the other values."""
        pairs = [("run", run) for run in runs] + [(name, str(value)) for name, value in query.items() if value != ""]
        return self._page("curves") + (f"?{urlencode(pairs)}" if pairs else "")

    def report(self, run: str) -> str:
        """Return the link to an evaluation's report.html, by the run's slug; live site only."""
        return self._file(f"report/{run}.html")

    def episodes(self, filters: Mapping[str, str | int] | None = None, **more: str | int) -> str:
        """Return the link to the list of episodes; `queries.Filters` names the filters."""
        return self._page("episodes", {**(filters or {}), **more})

    def episode(self, address: Address, turn: int | None = None, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to an episode's replay, optionally at a turn.

        Args:
            address: The episode.
            turn: The turn to show first.
            filters: Filters of the list that the page's links to the next and the previous episode follow; without
                them, that is the episode's file.
        """
        query = {} if filters is None else filters or {LIST: ALL}
        return self._page(_episode("episode", address), query) + (f"#turn-{turn}" if turn is not None else "")

    def scenes(self, address: Address) -> str:
        """Return the link to a replay that includes the scenes of a slow environment."""
        return self._page(_episode("episode", address), {"scenes": 1})

    def picture(self, address: Address, turn: int) -> str:
        """Return the link to the screenshot recorded at the start of a turn; after the last turn, of the end."""
        return self._file(f"{_episode('picture', address)}/{turn}.png")

    def siblings(self, address: Address) -> str:
        """Return the link to all attempts at the same task in the same file, side by side."""
        return self._page(_episode("siblings", address))

    def side_by_side(self, left: Address, right: Address) -> str:
        """Return the link to two episodes side by side."""
        one, two = (f"{each.run}/{each.file}/{each.number}" for each in (left, right))
        return self._page("side-by-side", {"a": one, "b": two})

    def compare(self, a: str = "", b: str = "", **more: str) -> str:
        """Return the link to the comparison of two runs, by their slugs, on their common tasks."""
        return self._page("compare", {"a": a, "b": b, **more})

    def compare_runs(self, runs: Iterable[str], baseline: str = "", **evaluation: str) -> str:
        """Return the link to the table that compares any number of runs with one of them, by their slugs, by default
        with the first; `evaluation` has the values of `evaluation_choice.EvaluationChoice`.
        """
        pairs = [*(("run", run) for run in runs), ("baseline", baseline), *evaluation.items()]
        return f"{self._page('compare')}?{urlencode(pairs)}"

    def is_baseline(self, run: str) -> bool:
        """Return whether `compare_runs` has a page with this run as the baseline."""
        return True

    def raw(self, address: Address) -> str:
        """Return the link to an episode's line of JSON."""
        return self._file(_episode("raw", address) + ".json")

    def annotate(self, address: Address, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the address to which an episode's annotation is posted; for `filters` see `episode`."""
        query = {} if filters is None else filters or {LIST: ALL}
        return self._page(_episode("annotate", address), query)

    def annotations(self, kind: str, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to the annotations of a list's episodes, as `jsonl` or `csv`."""
        return self._file(f"annotations.{kind}") + _query(filters)

    def messages(self, address: Address, turn: int) -> str:
        """Return the link to the messages that the model received for a turn."""
        return self._page(_episode("messages", address) + f"/{turn}")

    def messages_json(self, address: Address, turn: int) -> str:
        """Return the link to these messages as JSON; live site only."""
        return self._file(_episode("messages", address) + f"/{turn}.json")

    def play(self, **fields: str | int) -> str:
        """Return the link to the start form of interactive play, with `fields` filled in."""
        return self._page("play", fields)

    def game(self, key: str, move: str = "") -> str:
        """Return the link to a game, or to the address to which one of its moves is posted."""
        return self._page(f"play/{key}" + (f"/{move}" if move else ""))

    def _page(self, name: str, query: Mapping[str, str | int] | None = None) -> str:
        return self._file(quote(name)) + _query(query)

    def _file(self, name: str) -> str:
        return f"/{name}"


@dataclass(frozen=True, slots=True)
class FileLinks(Links):
    """Links of an export, as written in the page `page`."""

    page: str = "index.html"
    """The file that contains the links, relative to the export's folder."""
    groups: Mapping[Address, Address] = field(default_factory=dict[Address, Address])
    """Maps each attempt that has siblings to the one whose page shows them all."""
    tables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps each run that is in a table of runs to the baseline of the table to link to, by their slugs."""
    compared: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """The comparisons linked so far, which the export must write: maps page names to queries."""
    live = False

    def episode(self, address: Address, turn: int | None = None, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to an episode's replay, whose neighbours in an export are always those in its file."""
        return Links.episode(self, address, turn)

    def annotations(self, kind: str, filters: Mapping[str, str | int] | None = None) -> str:
        """Return the link to the file with all annotations."""
        return Links.annotations(self, kind)

    def messages(self, address: Address, turn: int) -> str:
        """Return the link to the messages of a turn, on the page of all turns."""
        return f"{self.all_messages(address)}#turn-{turn}"

    def all_messages(self, address: Address) -> str:
        """Return the link to the messages of all turns of an episode."""
        return self._page(_episode("messages", address))

    def siblings(self, address: Address) -> str:
        """Return the link to the page that all attempts of a group share."""
        return self._page(_episode("siblings", self.groups.get(address, address)))

    def side_by_side(self, left: Address, right: Address) -> str:
        """Return the link to two episodes in iframes; there are too many pairs to write a page for each."""
        root = FileLinks()  # the page with the iframes is in the root folder
        return self.frames() + _query({"a": root.episode(left), "b": root.episode(right)})

    def frames(self) -> str:
        """Return the link to the page with the iframes."""
        return self._page("side-by-side")

    def curves(self, runs: Iterable[str] = (), **query: str | int) -> str:
        """Return the link to the curves of all training runs; an export has no other selection."""
        return self._page("curves")

    def compare(self, a: str = "", b: str = "", **more: str) -> str:
        """Return the link to the page of a comparison and register it in `compared`."""
        if not (a and b):
            return self._page("compare")
        name = "--".join((a, b, *filter(None, more.values())))
        if len(name) > _LONGEST:
            name = f"{name[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        self.compared[f"compare/{name}.html"] = {"a": a, "b": b, **more}
        return self._page(f"compare/{name}")

    def compare_runs(self, runs: Iterable[str], baseline: str = "", **evaluation: str) -> str:
        """Return the link to the table with a run as the baseline; an export has no other runs or evaluations in it."""
        return self._page(f"compare-runs/{self.tables[baseline]}")

    def is_baseline(self, run: str) -> bool:
        """Return whether there is a table with this run as the baseline."""
        return self.tables.get(run) == run

    def _page(self, name: str, query: Mapping[str, str | int] | None = None) -> str:
        return self._file(quote(f"{name or 'index'}.html")) + _query(query)

    def _file(self, name: str) -> str:
        return posixpath.relpath(name, posixpath.dirname(self.page) or ".")


def parse_address(text: str) -> Address:
    """Parse an address as `Links.side_by_side` writes it into a query. Raises `ValueError`."""
    run, file, number = text.split("/")
    return Address(run, file, int(number))


def _episode(page: str, address: Address) -> str:
    return f"{page}/{address.run}/{address.file}/{address.number}"


def _query(query: Mapping[str, str | int] | None) -> str:
    nonempty = {name: value for name, value in (query or {}).items() if value != ""}
    return f"?{urlencode(nonempty)}" if nonempty else ""
