"""The map's pages.

All of them work without JavaScript; `map.js` adds dragging, zooming by wheel and layers without reloading.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.map.drawing import View, around, draw, route_points, whole
from agentgym_envs.worlds.webarena.sites.map.finding import best, closest, coordinates, find, nearby
from agentgym_envs.worlds.webarena.sites.map.journeys import MODES, journey, length_text, time_text, total
from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS, LAYERS
from agentgym_envs.worlds.webarena.sites.region import NAME, region
from agentgym_envs.worlds.webarena.sites.region.land import HEIGHT, WIDTH
from agentgym_envs.worlds.webarena.sites.web import NotFound, Site, Visit, pages


def _km(value: float) -> str:
    return length_text(1000 * value)


site = Site("map", Path(__file__).parent)
site.templates.filters.update(km=_km, time=time_text)
_ON_A_PAGE = 12
_PINS = 40
_STOPS = 3
"""Maximum number of stops on a route."""


@site.get("/")
def start(visit: Visit) -> Response:
    """Show the region, or the part of it that the query selects."""
    full = whole()
    view = View(
        _decimal(visit, "x", full.x, WIDTH),
        _decimal(visit, "y", full.y, HEIGHT),
        _decimal(visit, "width", full.width, full.width),
    )
    shown = [town for town in region().towns if view.shows(town.x, town.y)]
    largest = sorted(shown, key=lambda town: -town.population)[:12]
    return _map(visit, "start.html", view, region_name=NAME, largest=largest)


@site.get("/towns")
def towns(visit: Visit) -> Response:
    """List all towns of the region."""
    return _map(
        visit, "towns.html", whole(), counties=[(county, _towns_of(county.name)) for county in region().counties]
    )


@site.get("/town/{name}")
def town(visit: Visit, name: str) -> Response:
    """Show a town and its places by kind."""
    row = visit.one("SELECT * FROM places WHERE kind = 'town' AND name = ?", name, what="town")
    kind = visit.text("kind", 40)
    kinds = visit.all(
        "SELECT kind, count(*) AS places FROM places WHERE town = ? AND kind NOT IN ('town', 'hill', 'lake')"
        " GROUP BY kind ORDER BY kind",
        name,
    )
    condition = "town = ? AND kind NOT IN ('town', 'hill', 'lake') AND (? = '' OR kind = ?)"
    total = visit.value(f"SELECT count(*) FROM places WHERE {condition}", name, kind, kind)
    shown = pages(total, _ON_A_PAGE, visit.number("page"))
    rows = visit.all(
        f"SELECT * FROM places WHERE {condition} ORDER BY name, id LIMIT ? OFFSET ?",
        name,
        kind,
        kind,
        shown["size"],
        shown["offset"],
    )
    facts = region().town(name)
    view = View(facts.x, facts.y, 3.1 * _reach(visit, name))
    marked = [one["id"] for one in rows] if kind else []
    return _map(visit, "town.html", view, marked, town=row, facts=facts, kinds=kinds, kind=kind, rows=rows, pages=shown)


@site.get("/place/{identity:int}")
def place_page(visit: Visit, identity: int) -> Response:
    """Show a place's details and its neighbors."""
    row = visit.one("SELECT * FROM places WHERE id = ?", identity, what="place")
    if row["kind"] == "town":
        return visit.redirect(f"/town/{row['name']}")
    visit.canonical()
    kind = visit.text("near", 40)
    near = nearby(visit.db, row, kind if kind in KINDS else "", 8)
    around_it = [one.place for one in near[:4] if one.km is not None and one.km < 2]
    view = around([(spot["x"], spot["y"]) for spot in (row, *around_it)], 1.4)
    return _map(visit, "place.html", view, [identity], row=row, near=near, kind=kind)


@site.get("/search")
def search(visit: Visit) -> Response:
    """List the matches, best first; coordinates redirect to the page of that point."""
    query = visit.text("query", 200)
    spot = coordinates(query)
    if spot is not None:
        return visit.redirect("/at?" + urlencode({"lat": spot[0], "lon": spot[1]}))
    results = find(visit.db, query)
    shown = pages(len(results.found), _ON_A_PAGE, visit.number("page"))
    rows = results.found[shown["offset"] : shown["offset"] + shown["size"]]
    points = [(one.place["x"], one.place["y"]) for one in rows]
    view = around(points) if points else whole()
    marked = [one.place["id"] for one in rows if one.place["kind"] != "town"]
    return _map(visit, "search.html", view, marked, query=query, rows=rows, pages=shown, near=results.near)


@site.get("/at")
def at(visit: Visit) -> Response:
    """Show the places closest to coordinates."""
    spot = coordinates(f"{visit.text('lat', 20)}, {visit.text('lon', 20)}")
    found = [] if spot is None else [one for one in closest(visit.db, *spot) if one.km is not None and one.km < 30]
    points = [(one.place["x"], one.place["y"]) for one in found[:4]]
    view = around(points, 1.4) if points else whole()
    marked = [found[0].place["id"]] if found else []
    return _map(visit, "at.html", view, marked, spot=spot, found=found)


@site.get("/directions")
def directions(visit: Visit) -> Response:
    """Show the route from a place to another, by way of up to three others."""
    stops = [text for number in range(1, _STOPS + 1) if (text := visit.text(f"stop{number}", 200))]
    texts = (visit.text("from", 200), *stops, visit.text("to", 200))
    mode = visit.text("mode", 10)
    mode = mode if mode in MODES else "car"
    found = [best(visit.db, text) if text else None for text in texts]
    missing = [text for text, place in zip(texts, found, strict=True) if text and place is None]
    places = [place for place in found if place is not None]
    values: dict[str, Any] = {"texts": texts, "stops": stops, "mode": mode, "modes": MODES, "missing": missing}
    if len(places) < len(texts):
        stops_given = {f"stop{number}": text for number, text in enumerate(stops, start=1)}
        visit.canonical(**{"from": texts[0], "to": texts[-1]}, **stops_given, mode=mode)
        return _map(visit, "directions.html", whole(), stages=(), **values)
    read = [place["name"] if place["kind"] == "town" else f"#{place['id']}" for place in places]
    stops_read = {f"stop{number}": place for number, place in enumerate(read[1:-1], start=1)}
    visit.canonical(**{"from": read[0], "to": read[-1]}, **stops_read, mode=mode)
    stages = [(*ends, journey(*ends, mode)) for ends in pairwise(places)]
    line = [point for first, last, way in stages for point in route_points(way.towns, (first, last))]
    marked = [place["id"] for place in places if place["kind"] != "town"]
    length, time = total([way for _, _, way in stages])
    backwards: dict[str, str | None] = {"from": texts[-1], "to": texts[0]}
    backwards |= {f"stop{number}": None for number in range(1, _STOPS + 1)}
    backwards |= {f"stop{number}": text for number, text in enumerate(reversed(stops), start=1)}
    values |= {"stages": stages, "length": length, "time": time, "reversed": backwards}
    return _map(visit, "directions.html", around(line, 1.4), marked, line, **values)


def _map(
    visit: Visit,
    template: str,
    view: View,
    marked: list[int] | None = None,
    line: list[tuple[float, float]] | None = None,
    **values: Any,
) -> Response:
    drawing = draw(visit.db, view, route=line or (), marked=(marked or [])[:_PINS])
    hidden = [layer for layer in visit.texts("hide") if layer in LAYERS or layer in ("roads", "rivers")]
    return visit.render(
        template, drawing=drawing, layers=LAYERS, hidden=hidden, moves=_moves(view), all_kinds=KINDS, **values
    )


def _moves(view: View) -> list[tuple[str, str, str]]:
    """Return the links that pan and zoom: name, symbol, URL."""
    made = (
        ("Zoom in", "+", view.moved(0, 0, 0.5)),
        ("Zoom out", "−", view.moved(0, 0, 2)),
        ("Pan west", "←", view.moved(-1, 0)),
        ("Pan east", "→", view.moved(1, 0)),
        ("Pan north", "↑", view.moved(0, 1)),
        ("Pan south", "↓", view.moved(0, -1)),
    )
    return [(name, sign, "/?" + urlencode(query)) for name, sign, query in made]


def _decimal(visit: Visit, name: str, default: float, most: float) -> float:
    try:
        value = float(visit.text(name, 20))
    except ValueError:
        return default
    return min(max(value, 0.8 if name == "width" else 0.0), most) if value == value else default


def _towns_of(county: str) -> list[Any]:
    return [town for town in region().towns if town.county == county]


def _reach(visit: Visit, name: str) -> float:
    """Return the maximum distance of the town's places from its center, km."""
    found = visit.value(
        "SELECT max(max(abs(p.x - t.x), abs(p.y - t.y))) FROM places AS p JOIN places AS t"
        " ON t.name = p.town AND t.kind = 'town' WHERE p.town = ? AND p.street != ''",
        name,
    )
    if found is None:
        raise NotFound("town")
    return max(0.5, found)
