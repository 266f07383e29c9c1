"""What every page is called: the one place that makes addresses.

Pages ask these for links and never write a path themselves, so the same templates serve a live site, whose addresses
begin at `/`, and an export, whose links are relative file names that open from disk.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where an episode lies."""

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
    """Whether a server answers: pages poll and post only then."""

    def asset(self, name: str) -> str:
        """A file in `static/`."""
        return self._file(f"static/{name}")

    def runs(self, filters: Mapping[str, str | int] | None = None) -> str:
        """The list of runs, which is the first page, under filters; see `run_list.RunFilters` for their names."""
        return self._page("", filters)

    def run(self, run: str) -> str:
        """A run, by its slug."""
        return self._page(f"run/{run}")

    def report(self, run: str) -> str:
        """The page that an evaluation wrote of itself, by the run's slug: of the live site alone."""
        return self._file(f"report/{run}.html")

    def episodes(self, filters: Mapping[str, str | int] | None = None, **more: str | int) -> str:
        """The list of episodes under filters; see `queries.Filters` for their names."""
        return self._page("episodes", {**(filters or {}), **more})

    def episode(self, address: Address, turn: int | None = None) -> str:
        """An episode's replay, at a turn."""
        return self._page(_episode("episode", address)) + (f"#turn-{turn}" if turn is not None else "")

    def scenes(self, address: Address) -> str:
        """An episode's replay with the scenes of a world that takes its time to draw them."""
        return self._page(_episode("episode", address), {"scenes": 1})

    def picture(self, address: Address, turn: int) -> str:
        """The picture that was kept of what a turn began with; behind the last turn, of the end."""
        return self._file(f"{_episode('picture', address)}/{turn}.png")

    def siblings(self, address: Address) -> str:
        """The attempts at the same task in the same file, side by side."""
        return self._page(_episode("siblings", address))

    def beside(self, left: Address, right: Address) -> str:
        """Two episodes side by side."""
        one, two = (f"{each.run}/{each.file}/{each.number}" for each in (left, right))
        return self._page("beside", {"a": one, "b": two})

    def compare(self, a: str = "", b: str = "", **more: str) -> str:
        """Two runs, by their slugs, on the tasks that both played."""
        return self._page("compare", {"a": a, "b": b, **more})

    def raw(self, address: Address) -> str:
        """An episode's own line of JSON."""
        return self._file(_episode("raw", address) + ".json")

    def play(self, **given: str | int) -> str:
        """Playing by hand, with fields of the form filled in."""
        return self._page("play", given)

    def game(self, key: str, move: str = "") -> str:
        """A game that is played by hand, or where a move of it is posted."""
        return self._page(f"play/{key}" + (f"/{move}" if move else ""))

    def _page(self, name: str, query: Mapping[str, str | int] | None = None) -> str:
        return self._file(quote(name)) + _query(query)

    def _file(self, name: str) -> str:
        return f"/{name}"


@dataclass(frozen=True, slots=True)
class FileLinks(Links):
    """Links of an export, as they are written in the page called `page`."""

    page: str = "index.html"
    """The file that the links stand in, below the export's folder."""
    groups: Mapping[Address, Address] = field(default_factory=dict[Address, Address])
    """For attempts at the same task in the same file the one whose page shows them all."""
    compared: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Which comparisons were linked to: the query of each by the name of its page, which is to be written then."""
    live = False

    def siblings(self, address: Address) -> str:
        """The page that all attempts of a group share."""
        return self._page(_episode("siblings", self.groups.get(address, address)))

    def beside(self, left: Address, right: Address) -> str:
        """Two episodes side by side, each in a frame of its own: there are too many pairs to write them all."""
        there = FileLinks()  # the frames lie beside the first page
        return self.frames() + _query({"a": there.episode(left), "b": there.episode(right)})

    def frames(self) -> str:
        """The page that holds the frames."""
        return self._page("beside")

    def compare(self, a: str = "", b: str = "", **more: str) -> str:
        """A page for each comparison."""
        if not (a and b):
            return self._page("compare")
        name = "--".join(("compare/" + a, b, *filter(None, more.values())))
        self.compared[f"{name}.html"] = {"a": a, "b": b, **more}
        return self._page(name)

    def _page(self, name: str, query: Mapping[str, str | int] | None = None) -> str:
        return self._file(quote(f"{name or 'index'}.html")) + _query(query)

    def _file(self, name: str) -> str:
        return posixpath.relpath(name, posixpath.dirname(self.page) or ".")


def parse_address(text: str) -> Address:
    """The address that `Links.beside` writes into a query. Raises `ValueError`."""
    run, file, number = text.split("/")
    return Address(run, file, int(number))


def _episode(page: str, address: Address) -> str:
    return f"{page}/{address.run}/{address.file}/{address.number}"


def _query(query: Mapping[str, str | int] | None) -> str:
    kept = {name: value for name, value in (query or {}).items() if value != ""}
    return f"?{urlencode(kept)}" if kept else ""
