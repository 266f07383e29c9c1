"""Tests of the tags of runs: where they come from, how they are changed, and where they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import FileLinks, Links
from agentgym_eval.viewer.index.run_list import RunFilters, filter_rows, run_facets, run_rows
from agentgym_eval.viewer.index.run_notes import RunNotes, read_notes, write_notes
from agentgym_eval.viewer.pages.lists import runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from httpx import Response
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run

LOCAL = "http://127.0.0.1:8000"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "runs"
    for name in ("a", "b"):
        write_evaluation_run(root / name, [episode()])
    write_evaluation_run(root / "tagged", [episode()], tags=["from the command", "second"])
    write_episodes(root / "c.jsonl", [episode()])
    index = Index(root, tmp_path / "index.sqlite")
    index.refresh()
    yield Site(index, Links(), editable=True)
    index.close()


def post(site: Site, path: str, *fields: tuple[str, str]) -> Response:
    headers = {"origin": LOCAL, "content-type": "application/x-www-form-urlencoded"}
    return TestClient(make_app(site), LOCAL).post(
        path, content=urlencode(fields), headers=headers, follow_redirects=False
    )


def tags(site: Site) -> dict[str, tuple[str, ...]]:
    """Return the tags of the runs after a refresh, by name."""
    shown = {run.name: run.tags for run in site.index.runs}
    site.index.refresh()
    assert {run.name: run.tags for run in site.index.runs} == shown
    return shown


def test_tag_is_added_to_and_removed_from_all_selected_runs(site: Site) -> None:
    root = site.index.root
    single = next(run.slug for run in site.index.runs if run.name == "c.jsonl")
    selected = [("run", "a"), ("run", "tagged"), ("run", single)]
    response = post(site, "/tags/add?kind=evaluate&page=2", *selected, ("tag", " base  line, x "))
    assert (response.status_code, response.headers["location"]) == (303, "/?page=2&kind=evaluate")
    assert tags(site) == {
        "a": ("base line", "x"),
        "b": (),
        "c.jsonl": ("base line", "x"),
        "tagged": ("base line", "from the command", "second", "x"),
    }
    post(site, "/tags/remove", *selected, ("tag", "x"), ("tag", "base line"))
    assert tags(site) == {"a": (), "b": (), "c.jsonl": (), "tagged": ("from the command", "second")}
    assert not [*root.glob("*viewer.json"), *root.glob("*/viewer.json")]  # as the command line left them


def test_tags_of_the_viewer_replace_those_of_the_command_line(site: Site) -> None:
    assert post(site, "/run/tagged/tags/remove", ("tag", "second")).headers["location"] == "/run/tagged"
    assert tags(site)["tagged"] == ("from the command",)
    post(site, "/run/tagged/tags/remove", ("tag", "from the command"))
    assert tags(site)["tagged"] == ()
    run = json.loads((site.index.root / "tagged" / "run.json").read_text())
    assert run["tags"] == ["from the command", "second"]
    post(site, "/run/tagged/label", ("name", "T"), ("note", ""))
    assert tags(site)["tagged"] == ()
    post(site, "/run/tagged/label", ("name", "T"), ("note", ""), ("tags", "second, from the command"))
    assert read_notes(site.index.root / "tagged") == RunNotes("T")


def test_tags_are_shown_filtered_and_searched(site: Site) -> None:
    for name, given in (("a", ("seeds", f"x{EVIL}")), ("b", ("seeds",))):
        write_notes(site.index.root / name, RunNotes(tags=given))
    site.index.refresh()
    rows = run_rows(site.index.runs, site.index.run_metrics())
    assert run_facets(rows)["tag"] == [("from the command", 1), ("second", 1), ("seeds", 2), (f"x{EVIL}", 1)]
    found = {
        query: {row.run.name for row in filter_rows(rows, RunFilters(**{name: query}))}
        for name, query in (("tag", "seeds"), ("tag", "!seeds"), ("text", "from COMMAND"[:8]))
    }
    assert found == {"seeds": {"a", "b"}, "!seeds": {"c.jsonl", "tagged"}, "from COM": {"tagged"}}
    text = runs_page(site)
    assert '<a class="tag label" href="/?tag=seeds">seeds</a>' in text
    assert '<option value="seeds">seeds (2)</option>' in text
    assert EVIL not in text
    assert 'href="/?tag=seeds"' in run_page(site, "b") and "Remove the tag seeds" in run_page(site, "b")
    exported = Site(site.index, FileLinks())
    assert '<span class="tag label">seeds</span>' in runs_page(exported)
    assert '<span class="tag label">seeds</span>' in run_page(exported, "b")
    assert "\r\nb,,seeds," in TestClient(make_app(site), LOCAL).get("/runs.csv").text


def test_single_tag_can_be_filtered_by(site: Site) -> None:
    write_notes(site.index.root / "tagged", RunNotes(tags=("only",)))
    site.index.refresh()
    assert '<option value="only">only (1)</option>' in runs_page(site)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([("run", "a"), ("tag", "!x")], "A tag begins with a letter or digit"),
        ([("run", "a"), ("tag", "x" * 61)], "A tag has at most 60 characters"),
        ([("run", "a"), ("run", "b"), ("tag", ",".join(map(str, range(20))))], "A run has at most 20 tags, not 21"),
        ([("run", "a"), ("tag", " ")], "Type the tag to add"),
        ([("tag", "x")], "No run is selected"),
    ],
)
def test_wrong_tags_change_nothing(site: Site, fields: list[tuple[str, str]], sentence: str) -> None:
    write_notes(site.index.root / "b", RunNotes(tags=("before",)))
    site.index.refresh()
    response = post(site, "/tags/add", *fields)
    assert (response.status_code, sentence in response.text) == (400, True)
    assert tags(site) == {"a": (), "b": ("before",), "c.jsonl": (), "tagged": ("from the command", "second")}
    assert post(site, "/tags/add", ("run", "none"), ("tag", "x")).status_code == 404


@pytest.mark.parametrize("damaged", ["x", 3, ["!"], [["x" * 100]], {"a": 1}])
def test_damaged_tags_are_left_out(site: Site, damaged: object) -> None:
    write_evaluation_run(site.index.root / "tagged", [episode()], tags=damaged)
    (site.index.root / "a" / "viewer.json").write_text(json.dumps({"schema": "agentgym.viewer/1", "tags": damaged}))
    site.index.refresh()
    assert set(tags(site).values()) == {()}


def test_longest_page_of_runs_can_be_tagged(site: Site) -> None:
    assert post(site, "/tags/add", *[("run", "a")] * 1_000, ("tag", "x")).status_code == 303
