"""Tests of the fictional region: complete, consistent, and connected by roads."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from agentgym_envs.worlds.webarena.sites.names import BRANDS, TOWNS
from agentgym_envs.worlds.webarena.sites.region import MODES, Region, Road, region, shortest
from agentgym_envs.worlds.webarena.sites.region.land import shore
from hypothesis import given
from hypothesis import strategies as st

_TOWNS = st.sampled_from(sorted(TOWNS))


@pytest.fixture(scope="module")
def land() -> Region:
    return region()


def test_region_has_every_town_and_brand_once(land: Region) -> None:
    assert [town.name for town in land.towns] == sorted(TOWNS)
    assert [firm.brand for firm in land.firms] == list(BRANDS)
    assert len({town.population for town in land.towns}) == len({town.postcode for town in land.towns}) == len(TOWNS)
    assert len({person.name for person in land.people}) == len(land.people)


def test_towns_are_on_land_apart_and_in_a_county(land: Region) -> None:
    counties = {county.name: county.seat for county in land.counties}
    assert all(land.town(seat).county == name for name, seat in counties.items())
    for town in land.towns:
        assert 0 < town.x < shore(town.y), town
        assert town.county in counties
        distances = [math.dist((town.x, town.y), (other.x, other.y)) for other in land.towns if other.name != town.name]
        assert min(distances) > 6


def test_rivers_flow_through_their_towns_to_the_sea(land: Region) -> None:
    for river in land.rivers:
        xs = [land.town(name).x for name in river.towns]
        assert xs == sorted(xs)
        assert river.towns[-1] == river.mouth
        assert land.town(river.mouth).coastal
        assert all(land.town(name).river == river.name for name in river.towns)


def test_people_live_at_the_time_of_their_works(land: Region) -> None:
    people = {person.name: person for person in land.people}
    for firm in land.firms:
        founder = people[firm.founder]
        assert founder.calling == "founder"
        assert founder.born + 20 < firm.founded <= (founder.died or 2025)
    for building in land.buildings:
        if building.architect:
            architect = people[building.architect]
            assert architect.calling == "architect"
            assert architect.born < building.built <= (architect.died or 2025)
    assert all(person.died is None or person.died > person.born + 30 for person in land.people)


@given(start=_TOWNS, end=_TOWNS, mode=st.sampled_from(sorted(MODES)))
def test_route_is_a_symmetric_chain_of_roads(start: str, end: str, mode: str) -> None:
    outward, back = region().route(start, end, mode), region().route(end, start, mode)
    assert outward.seconds == pytest.approx(back.seconds)
    assert outward.metres == sum(leg.road.metres for leg in outward.legs)
    if start == end:
        assert outward.towns == ()
        return
    assert (outward.towns[0], outward.towns[-1]) == (start, end)
    for leg, (town, next_town) in zip(outward.legs, pairwise(outward.towns), strict=True):
        assert {leg.road.start, leg.road.end} == {town, next_town}
        assert mode == "car" or leg.road.kind != "motorway"


@given(start=_TOWNS, end=_TOWNS, via=_TOWNS, mode=st.sampled_from(sorted(MODES)))
def test_no_detour_is_quicker_than_the_route(start: str, end: str, via: str, mode: str) -> None:
    land = region()
    detour = land.route(start, via, mode).seconds + land.route(via, end, mode).seconds
    assert land.route(start, end, mode).seconds <= detour + 1e-6


def test_roads_are_not_shorter_than_the_straight_line(land: Region) -> None:
    for road in land.roads:
        a, b = land.town(road.start), land.town(road.end)
        assert road.metres >= 1000 * math.dist((a.x, a.y), (b.x, b.y))
    keys = [(road.number, road.start, road.end) for road in land.roads]
    assert len(set(keys)) == len(keys)


def test_unknown_town_is_named_in_the_error() -> None:
    road = Road("A1", "main road", "Here", "There", 1000, 80)
    with pytest.raises(ValueError, match="'Nowhere'"):
        shortest([road], "Here", "Nowhere", "car")
