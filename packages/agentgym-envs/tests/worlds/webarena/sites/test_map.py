"""The map: its places, what a search finds, directions, the drawing, and pages under odd input."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from agentgym_envs.worlds.webarena.sites.map.finding import best, closest, coordinates, find, nearby
from agentgym_envs.worlds.webarena.sites.map.journeys import journey, length_text, time_text
from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS, LAYERS
from agentgym_envs.worlds.webarena.sites.store import database
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_PAGES = ("/", "/towns", "/town/Selby", "/place/7", "/search?query=museums", "/directions", "/at?lat=52.8&lon=5.9")


@pytest.fixture
def map_site(browse: Any) -> Any:
    """A visit to the map."""
    return browse("map")


@pytest.fixture(scope="module")
def places() -> Any:
    """The map's database, for reading."""
    with closing(sqlite3.connect(database("map"))) as db:
        db.row_factory = sqlite3.Row
        yield db


def test_there_are_many_places_and_each_can_be_told_apart(places: Any) -> None:
    assert places.execute("SELECT count(*) FROM places").fetchone()[0] > 1800
    twice = "SELECT name, town FROM places GROUP BY name, town HAVING count(*) > 1"
    assert places.execute(twice).fetchall() == []
    phones = places.execute("SELECT count(phone), count(DISTINCT phone) FROM places WHERE phone != ''").fetchone()
    assert phones[0] == phones[1]
    assert {row[0] for row in places.execute("SELECT DISTINCT kind FROM places")} <= KINDS.keys()


def test_a_town_is_found_by_its_name_first(places: Any) -> None:
    for row in places.execute("SELECT name FROM places WHERE kind = 'town'").fetchall():
        found = best(places, row["name"])
        assert found is not None
        assert (found["kind"], found["name"]) == ("town", row["name"])


def test_kinds_near_a_place_come_in_the_order_of_their_distance(places: Any) -> None:
    results = find(places, "Museums near Selby")
    assert results.near is not None
    assert results.near["name"] == "Selby"
    assert {one.place["kind"] for one in results.found} == {"museum"}
    away = [one.km for one in results.found]
    assert away == sorted(away, key=float)


def test_kinds_in_a_town_are_all_of_them_and_only_there(places: Any) -> None:
    found = {one.place["id"] for one in find(places, "cafes in Ironbridge").found}
    rows = places.execute("SELECT id FROM places WHERE town = 'Ironbridge' AND found_by LIKE '%cafes%'")
    assert found == {row[0] for row in rows}
    assert len(found) >= 2


def test_a_place_and_its_town_name_the_place(places: Any) -> None:
    for row in places.execute("SELECT * FROM places WHERE kind IN ('hotel', 'café', 'park') LIMIT 60").fetchall():
        found = best(places, f"{row['name']}, {row['town']}")
        assert found is not None
        assert found["id"] == row["id"]


def test_coordinates_lead_to_what_is_there(places: Any, map_site: Any) -> None:
    row = places.execute("SELECT * FROM places WHERE kind = 'museum' ORDER BY id LIMIT 1").fetchone()
    assert coordinates(f"{row['lat']}, {row['lon']}") == (row["lat"], row["lon"])
    assert closest(places, row["lat"], row["lon"], 1)[0].place["id"] == row["id"]
    assert row["name"] in map_site.get("/search", params={"query": f"{row['lat']}, {row['lon']}"}).text
    assert "outside this map" in map_site.get("/at?lat=1&lon=2").text


def test_nearby_leaves_the_place_itself_out(places: Any) -> None:
    row = places.execute("SELECT * FROM places WHERE kind = 'hotel' LIMIT 1").fetchone()
    near = nearby(places, row, "pub")
    assert len(near) == 8
    assert all(one.place["kind"] == "pub" for one in near)
    assert row["id"] not in [one.place["id"] for one in nearby(places, row)]


def test_directions_add_up_and_differ_by_mode(places: Any, map_site: Any) -> None:
    start, end = best(places, "Selby"), best(places, "Kestrel")
    assert start is not None
    assert end is not None
    ways = {mode: journey(start, end, mode) for mode in ("car", "bike", "foot")}
    assert ways["car"].seconds < ways["bike"].seconds < ways["foot"].seconds
    for mode, way in ways.items():
        assert way.metres == sum(step.metres for step in way.steps)
        page = map_site.get("/directions?" + urlencode({"from": "Selby", "to": "Kestrel", "mode": mode})).text
        assert way.length in page
        assert way.time in page
        assert all(step.text in page for step in way.steps)


def test_directions_say_what_was_not_found(map_site: Any) -> None:
    page = map_site.get("/directions?from=Selby&to=Atlantis").text
    assert "Nothing was found for “Atlantis”" in page
    same = map_site.get("/directions?from=Selby&to=Selby")
    assert same.status_code == 200


@pytest.mark.parametrize(
    ("metres", "text"), [(4, "0 m"), (654, "650 m"), (994, "990 m"), (996, "1.0 km"), (12_345, "12.3 km")]
)
def test_lengths_as_shown(metres: float, text: str) -> None:
    assert length_text(metres) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 min"), (89, "1 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min"), (2880, "48 min")]
)
def test_times_as_shown(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_a_town_shows_its_places_by_kind_with_a_pager(places: Any, map_site: Any) -> None:
    page = map_site.get("/town/Ironbridge").text
    assert "Page 1 of" in page
    pubs = places.execute("SELECT name FROM places WHERE town = 'Ironbridge' AND kind = 'pub'").fetchall()
    shown = unescape(map_site.get("/town/Ironbridge?kind=pub").text)
    assert all(row["name"] in shown for row in pubs)
    assert f"{len(pubs)} place" in shown


def test_layers_can_be_hidden_and_the_map_moved_without_javascript(map_site: Any) -> None:
    page = map_site.get("/").text
    assert 'data-layer="roads"' in page
    assert 'data-layer="roads"' not in map_site.get("/?hide=roads").text
    town = map_site.get("/town/Selby").text
    assert all(f'data-layer="{layer}"' in town for layer in LAYERS)
    assert page.count("/?x=") == 6


def test_unknown_places_are_not_found(map_site: Any) -> None:
    for path in ("/place/999999", "/town/Atlantis", "/nowhere", "/place/99999999999"):
        assert map_site.get(path).status_code == 404


def test_every_page_answers(map_site: Any) -> None:
    for path in _PAGES:
        assert map_site.get(path).status_code == 200, path


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    text=st.text(max_size=40), path=st.sampled_from(["/search", "/directions", "/at", "/", "/town/Selby", "/place/9"])
)
def test_no_page_fails_on_odd_input(map_site: Any, text: str, path: str) -> None:
    fields = ("query", "from", "to", "mode", "lat", "lon", "x", "y", "width", "kind", "near", "page", "hide")
    params = {field: text.encode("utf-8", "replace").decode() for field in fields}
    assert map_site.get(path, params=params).status_code < 500
