"""Tests of the map: its places, search, directions, layers, and unusual input."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from html import unescape
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import pytest
from agentgym_envs.worlds.webarena.sites.map.finding import best, closest, coordinates, find, nearby
from agentgym_envs.worlds.webarena.sites.map.journeys import journey, length_text, time_text, total
from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS, LAYERS
from agentgym_envs.worlds.webarena.sites.store import database
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_PAGES = ("/", "/towns", "/town/Selby", "/place/7", "/search?query=museums", "/directions", "/at?lat=52.8&lon=5.9")


@pytest.fixture
def map_site(browse: Any) -> Any:
    """A client of the map."""
    return browse("map")


@pytest.fixture(scope="module")
def places() -> Any:
    """A connection to the map's database."""
    with closing(sqlite3.connect(database("map"))) as db:
        db.row_factory = sqlite3.Row
        yield db


def test_places_are_many_and_distinguishable(places: Any) -> None:
    assert places.execute("SELECT count(*) FROM places").fetchone()[0] > 1800
    duplicates = "SELECT name, town FROM places GROUP BY name, town HAVING count(*) > 1"
    assert places.execute(duplicates).fetchall() == []
    phones = places.execute("SELECT count(phone), count(DISTINCT phone) FROM places WHERE phone != ''").fetchone()
    assert phones[0] == phones[1]
    assert {row[0] for row in places.execute("SELECT DISTINCT kind FROM places")} <= KINDS.keys()


def test_best_match_of_a_town_name_is_the_town(places: Any) -> None:
    for row in places.execute("SELECT name FROM places WHERE kind = 'town'").fetchall():
        found = best(places, row["name"])
        assert found is not None
        assert (found["kind"], found["name"]) == ("town", row["name"])


def test_kinds_near_a_place_are_sorted_by_distance(places: Any) -> None:
    results = find(places, "Museums near Selby")
    assert results.near is not None
    assert results.near["name"] == "Selby"
    assert {result.place["kind"] for result in results.found} == {"museum"}
    distances = [result.km for result in results.found]
    assert distances == sorted(distances, key=float)


def test_kinds_in_a_town_are_found_completely(places: Any) -> None:
    found = {result.place["id"] for result in find(places, "cafes in Ironbridge").found}
    rows = places.execute("SELECT id FROM places WHERE town = 'Ironbridge' AND found_by LIKE '%cafes%'")
    assert found == {row[0] for row in rows}
    assert len(found) >= 2


def test_name_and_town_identify_a_place(places: Any) -> None:
    for row in places.execute("SELECT * FROM places WHERE kind IN ('hotel', 'café', 'park') LIMIT 60").fetchall():
        found = best(places, f"{row['name']}, {row['town']}")
        assert found is not None
        assert found["id"] == row["id"]


def test_coordinates_find_the_closest_place(places: Any, map_site: Any) -> None:
    row = places.execute("SELECT * FROM places WHERE kind = 'museum' ORDER BY id LIMIT 1").fetchone()
    assert coordinates(f"{row['lat']}, {row['lon']}") == (row["lat"], row["lon"])
    assert closest(places, row["lat"], row["lon"], 1)[0].place["id"] == row["id"]
    assert row["name"] in map_site.get("/search", params={"query": f"{row['lat']}, {row['lon']}"}).text
    assert "outside this map" in map_site.get("/at?lat=1&lon=2").text


def test_nearby_excludes_the_place_itself(places: Any) -> None:
    row = places.execute("SELECT * FROM places WHERE kind = 'hotel' LIMIT 1").fetchone()
    near = nearby(places, row, "pub")
    assert len(near) == 8
    assert all(result.place["kind"] == "pub" for result in near)
    assert row["id"] not in [result.place["id"] for result in nearby(places, row)]


def test_directions_add_up_and_depend_on_the_mode(places: Any, map_site: Any) -> None:
    start, end = best(places, "Selby"), best(places, "Kestrel")
    assert start is not None
    assert end is not None
    journeys = {mode: journey(start, end, mode) for mode in ("car", "bike", "foot")}
    assert journeys["car"].seconds < journeys["bike"].seconds < journeys["foot"].seconds
    for mode, route in journeys.items():
        assert route.metres == sum(step.metres for step in route.steps)
        page = map_site.get("/directions?" + urlencode({"from": "Selby", "to": "Kestrel", "mode": mode})).text
        assert route.length in page
        assert route.time in page
        assert all(step.text in page for step in route.steps)


def test_directions_lead_through_stops(places: Any, map_site: Any) -> None:
    towns = [best(places, name) for name in ("Selby", "Ironbridge", "Kestrel")]
    length, time = total([journey(*ends, "car") for ends in pairwise(towns)])  # type: ignore[arg-type]
    fields = {"from": "Selby", "stop1": "", "stop2": "Ironbridge", "to": "Kestrel"}
    page = map_site.get("/directions?" + urlencode(fields)).text
    assert f"<strong>{length}</strong> · <strong>{time}</strong>" in page
    assert "/directions?from=Selby&amp;to=Kestrel&amp;stop1=Ironbridge&amp;mode=car" in page  # the canonical address
    assert "from=Kestrel&amp;to=Selby&amp;stop1=Ironbridge" in page  # the way back
    assert 'name="stop2"' in page
    full = fields | {"stop1": "Winterset", "stop3": "Thornbury"}
    page = map_site.get("/directions?" + urlencode(full)).text
    assert page.count("<h3>") == 4
    assert 'name="stop4"' not in page
    assert "Nothing was found for “Atlantis”" in map_site.get("/directions?from=Selby&stop1=Atlantis&to=Kestrel").text


def test_some_places_have_no_phone_number(places: Any) -> None:
    sql = "SELECT avg(phone = '') FROM places WHERE kind IN ('café', 'pub', 'bookshop')"
    assert 0.05 < places.execute(sql).fetchone()[0] < 0.25


def test_directions_report_unknown_places(map_site: Any) -> None:
    page = map_site.get("/directions?from=Selby&to=Atlantis").text
    assert "Nothing was found for “Atlantis”" in page
    same = map_site.get("/directions?from=Selby&to=Selby")
    assert same.status_code == 200


@pytest.mark.parametrize(
    ("metres", "text"), [(4, "0 m"), (654, "650 m"), (994, "990 m"), (996, "1.0 km"), (12_345, "12.3 km")]
)
def test_lengths_are_rounded_for_display(metres: float, text: str) -> None:
    assert length_text(metres) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 min"), (89, "1 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min"), (2880, "48 min")]
)
def test_durations_are_rounded_for_display(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_town_page_lists_places_by_kind_with_a_pager(places: Any, map_site: Any) -> None:
    page = map_site.get("/town/Ironbridge").text
    assert "Page 1 of" in page
    pubs = places.execute("SELECT name FROM places WHERE town = 'Ironbridge' AND kind = 'pub'").fetchall()
    shown = unescape(map_site.get("/town/Ironbridge?kind=pub").text)
    assert all(row["name"] in shown for row in pubs)
    assert f"{len(pubs)} place" in shown


def test_layers_and_map_position_work_without_javascript(map_site: Any) -> None:
    page = map_site.get("/").text
    assert 'data-layer="roads"' in page
    assert 'data-layer="roads"' not in map_site.get("/?hide=roads").text
    town = map_site.get("/town/Selby").text
    assert all(f'data-layer="{layer}"' in town for layer in LAYERS)
    assert page.count("/?x=") == 6


def test_unknown_places_return_404(map_site: Any) -> None:
    for path in ("/place/999999", "/town/Atlantis", "/nowhere", "/place/99999999999"):
        assert map_site.get(path).status_code == 404


def test_pages_load(map_site: Any) -> None:
    for path in _PAGES:
        assert map_site.get(path).status_code == 200, path


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    text=st.text(max_size=40), path=st.sampled_from(["/search", "/directions", "/at", "/", "/town/Selby", "/place/9"])
)
def test_pages_survive_unusual_input(map_site: Any, text: str, path: str) -> None:
    fields = ("query", "from", "to", "mode", "lat", "lon", "x", "y", "width", "kind", "near", "page", "hide")
    params = {field: text.encode("utf-8", "replace").decode() for field in fields}
    assert map_site.get(path, params=params).status_code < 500
