"""Tests of the list of runs: filters, order, facets and the page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import FileLinks, Links
from agentgym_eval.viewer.index.run_list import RunFilters, filter_rows, run_facets, run_rows
from agentgym_eval.viewer.pages.lists import runs_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

DAY = 86_400


def set_age(path: Path, days: int) -> None:
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(file, (days * DAY, days * DAY))


@pytest.fixture
def varied(site: Site) -> Site:
    """Four runs, started in this order: eval/one, b-train, three.jsonl, empty."""
    root = site.index.root
    set_age(write_evaluation_run(root / "eval" / "one", [episode(f"t/{n}", 0, n < 1) for n in range(3)]), 1)
    set_age(write_training_run(root / "b-train", 2), 2)
    set_age(write_episodes(root / "three.jsonl", [episode(env="agentgym/Far-v0", policy="openai:Big")]), 3)
    set_age(write_evaluation_run(root / "empty", [], done=False), 4)
    site.index.refresh()
    return site


def names(site: Site, **query: str) -> list[str]:
    rows = run_rows(site.index.runs, site.index.run_metrics())
    return [row.run.name for row in filter_rows(rows, RunFilters.parse(query))]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["empty", "three.jsonl", "b-train", "eval/one"]),
        ({"sort": "began"}, ["eval/one", "b-train", "three.jsonl", "empty"]),
        ({"sort": "name"}, ["b-train", "empty", "eval/one", "three.jsonl"]),
        ({"sort": "-name"}, ["three.jsonl", "eval/one", "empty", "b-train"]),
        ({"sort": "-success"}, ["three.jsonl", "b-train", "eval/one", "empty"]),
        ({"sort": "success"}, ["eval/one", "b-train", "three.jsonl", "empty"]),
        ({"sort": "-episodes"}, ["b-train", "eval/one", "three.jsonl", "empty"]),
        ({"sort": "env"}, ["three.jsonl", "empty", "b-train", "eval/one"]),
        ({"sort": "policy"}, ["three.jsonl", "empty", "eval/one", "b-train"]),
        ({"sort": "-kind"}, ["b-train", "empty", "eval/one", "three.jsonl"]),
        ({"sort": "state"}, ["three.jsonl", "eval/one", "empty", "b-train"]),
        ({"kind": "evaluate"}, ["empty", "eval/one"]),
        ({"kind": "evaluate", "state": "done"}, ["eval/one"]),
        ({"recipe": "quickstart"}, ["b-train"]),
        ({"env": "agentgym/Near-v0"}, ["empty", "b-train", "eval/one"]),
        ({"env": "agentgym/Nowhere-v0"}, []),
        ({"policy": "oracle"}, ["empty", "eval/one"]),
        ({"policy": "openai:Big"}, ["three.jsonl"]),
        ({"state": "stopped"}, ["empty", "b-train"]),
        ({"state": "!stopped"}, ["three.jsonl", "eval/one"]),
        ({"success_from": "75"}, ["three.jsonl", "b-train"]),
        ({"success_to": "33"}, []),
        ({"success_to": "34"}, ["eval/one"]),
        ({"success_from": "0"}, ["three.jsonl", "b-train", "eval/one"]),
        ({"success_from": "50", "success_to": "80"}, ["b-train"]),
        ({"text": "RAIN"}, ["b-train"]),
        ({"text": "quick scratch"}, ["b-train"]),
        ({"text": "quick oracle"}, []),
        ({"text": "big"}, ["three.jsonl"]),
        ({"text": "far"}, ["three.jsonl"]),
        ({"text": '"eval/o" cle'}, ["eval/one"]),
        ({"text": "("}, []),
    ],
)
def test_runs_are_filtered_and_sorted(varied: Site, query: dict[str, str], expected: list[str]) -> None:
    assert names(varied, **query) == expected
    filters = RunFilters.parse(query)
    assert RunFilters.parse({name: str(value) for name, value in filters.query().items()}) == filters


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"knid": "train"}, "no filter knid; .*Did you mean kind"),
        ({"kind": "trian"}, "kind must be one of evaluate, train, collect, episodes, not trian"),
        ({"state": "dead"}, "state must be one of done, running, waiting, stopped, !stopped, not dead"),
        ({"sort": "colour"}, "no sort column colour; choose from name, kind"),
        ({"success_from": "0.5"}, r"success_from must be a whole number, not 0\.5"),
        ({"page": "0"}, "page must be at least 1"),
    ],
)
def test_invalid_filters_are_one_sentence_errors(site: Site, query: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        RunFilters.parse(query)
    response = TestClient(make_app(site), "http://127.0.0.1:8000").get("/", params=query)
    assert response.status_code == 400
    assert re.search(sentence, response.text)


def test_facets_count_runs(varied: Site) -> None:
    assert run_facets(run_rows(varied.index.runs, varied.index.run_metrics())) == {
        "tag": [],
        "kind": [("episodes", 1), ("evaluate", 2), ("train", 1)],
        "recipe": [("quickstart", 1)],
        "env": [("agentgym/Far-v0", 1), ("agentgym/Near-v0", 3)],
        "policy": [("openai:Big", 1), ("oracle", 2), ("scratch", 1)],
        "state": [("!stopped", 2), ("done", 2), ("stopped", 2)],
    }


def test_page_shows_the_number_of_matches_and_keeps_the_filters(varied: Site) -> None:
    text = runs_page(varied, RunFilters(kind="evaluate", text="one", success_to=50))
    assert ">1 of 4 runs<" in text
    assert re.findall(r'<tr id="run-([^"]+)', text) == [varied.index.runs[2].slug]
    assert '<option value="evaluate" selected>evaluate (2)</option>' in text
    assert 'name="text" value="one"' in text
    assert 'name="success_to" min="0" value="50"' in text
    assert 'hx-get="/?text=one&amp;kind=evaluate&amp;success_to=50"' in text
    assert 'href="/?sort=name&amp;text=one&amp;kind=evaluate&amp;success_to=50"' in text
    assert ">0 of 4 runs<" in runs_page(varied, RunFilters(text="nothing like it"))


def test_selected_runs_are_compared(varied: Site) -> None:
    browser = TestClient(make_app(varied), "http://127.0.0.1:8000")
    first, second, third = (re.findall(r'name="run" value="([^"]+)"', browser.get("/").text))[-3:]
    page = browser.get("/compare", params={"run": [first, second]}).text
    assert {first, second} < set(re.findall(r'<option value="([^"]+)" selected>', page))
    assert f'<option value="{first}" selected>' in browser.get("/compare", params={"run": first}).text
    several = browser.get("/compare", params={"run": [first, second, third]}).text
    assert set(re.findall(r'value="([^"]+)" checked', several)) == {first, second, third}
    assert "checkbox" not in runs_page(Site(varied.index, FileLinks()))


def test_unfinished_runs_show_their_number_of_episodes(site: Site) -> None:
    settings = {"samples": 2, "tasks": 3}
    write_evaluation_run(site.index.root / "a", [episode()], done=False, settings=settings)
    write_evaluation_run(site.index.root / "b", [], done=False, settings=settings)
    write_evaluation_run(site.index.root / "c", [episode(f"t/{n}") for n in range(6)], settings=settings)
    site.index.refresh()
    cells = re.findall(r'<td class="n">((?:<a href="/episodes[^>]*>)?\d.*)', runs_page(site, RunFilters(sort="name")))
    assert [re.sub("<[^>]+>", "", cell) for cell in cells if "%" not in cell] == ["1 of 6", "0 of 6", "6"]


def test_column_headers_toggle_the_order(varied: Site) -> None:
    def began_header(sort: str) -> tuple[str, str]:
        match = re.search(
            r'<th(?: aria-sort="(\w+)")?><a href="([^"]+)">Began', runs_page(varied, RunFilters(sort=sort))
        )
        assert match
        return match[1], match[2]

    assert began_header("-began") == ("descending", "/?sort=began")
    assert began_header("began") == ("ascending", "/")
    assert began_header("name") == (None, "/")


def test_list_is_paginated_only_by_the_server(site: Site) -> None:
    for number in range(60):
        write_episodes(site.index.root / f"{number:02d}.jsonl", [episode()])
    site.index.refresh()
    page_1, page_2 = (re.findall(r'<tr id="run-([^"]+)', runs_page(site, RunFilters(page=page))) for page in (1, 2))
    assert (len(page_1), len({*page_1, *page_2})) == (50, 60)
    assert "Page 2 of 2" in runs_page(site, RunFilters(page=2))
    assert ">60 of 60 runs<" in runs_page(site)
    exported = runs_page(Site(site.index, FileLinks()))
    assert exported.count("data-row=") == 60
    assert "Page 1" not in exported


def test_empty_list_explains_how_to_create_runs(site: Site) -> None:
    site.index.refresh()
    assert "No runs found yet" in runs_page(site)


def test_names_of_runs_are_escaped(site: Site) -> None:
    folder = write_evaluation_run(site.index.root / EVIL.replace("/", "_"), [episode(policy=EVIL, env=f"{EVIL}-v0")])
    write_evaluation_run(site.index.root / "plain", [episode()])
    record = {"schema": "agentgym.run/1", "recipe": EVIL, "settings": {"policy": EVIL}}
    (folder / "run.json").write_text(json.dumps(record))
    site.index.refresh()
    for links in (Links(), FileLinks()):
        text = runs_page(Site(site.index, links), RunFilters(text=EVIL, policy=EVIL))
        assert "<script>" not in text
        assert text.count("&lt;script&gt;") > 5


@pytest.mark.parametrize(
    ("config", "env"),
    [({"env": "agentgym/Far-v0"}, "far"), ({"world": {"env": "a/B-v0"}}, "b"), ({"env": 3}, "–"), ({}, "–")],
)
def test_run_without_episodes_shows_the_environment_of_its_settings(site: Site, config: object, env: str) -> None:
    (site.index.root / "rl").mkdir()
    record = {"schema": "agentgym.train/2", "config": config}
    (site.index.root / "rl" / "run.json").write_text(json.dumps(record))
    site.index.refresh()
    assert f'<td class="more">{env}\n' in runs_page(site)


def test_page_shows_the_name_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my runs").mkdir()
    monkeypatch.chdir(tmp_path / "my runs")
    for path, label in ((Path(), "my runs"), (Path(".."), tmp_path.name), (Path("../my runs"), "../my runs")):
        index = Index(path, tmp_path / "index.sqlite")
        assert f"<small>in {label}</small>" in runs_page(Site(index, Links()))
        index.close()
