"""Tests of moving several runs to the trash, and of emptying it, over HTTP."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.run_notes import RunNotes, write_notes
from agentgym_eval.viewer.index.trash import TRASH, trashed_runs
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from httpx import Response
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

LOCAL = "http://127.0.0.1:8000"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with finished runs, of which one is in the folder of another, and one in progress."""
    root = tmp_path / "runs"
    write_training_run(root / "outer")
    (root / "outer" / "summary.json").write_text("{}")
    for name in ("outer/inner", "a", "b"):
        write_evaluation_run(root / name, [episode(f"t/{n}") for n in range(3)])
    write_evaluation_run(root / "going", [episode()], done=False)
    index = Index(root, tmp_path / "index.sqlite")
    index.refresh()
    yield Site(index, Links())
    index.close()


def browser(site: Site) -> TestClient:
    return TestClient(make_app(site), LOCAL)


def post(site: Site, path: str, *fields: tuple[str, str]) -> Response:
    headers = {"origin": LOCAL, "content-type": "application/x-www-form-urlencoded"}
    return browser(site).post(path, content=urlencode(fields), headers=headers, follow_redirects=False)


def selected(site: Site, *names: str) -> list[tuple[str, str]]:
    slugs = {run.name: run.slug for run in site.index.runs}
    return [("run", slugs[name]) for name in names]


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def trash_them(site: Site, *names: str) -> None:
    assert post(site, "/trash/move", *selected(site, *names)).status_code == 303


def confirmed(site: Site) -> tuple[str, str]:
    """Return the value of the form that confirms emptying the trash."""
    found = re.search(r'name="(until)" value="([^"]+)"', browser(site).get("/trash/empty").text)
    assert found
    return found[1], found[2]


def test_question_names_the_runs_and_moves_nothing(site: Site) -> None:
    write_notes(site.index.root / "b", RunNotes(f"Best {EVIL}"))
    site.index.refresh()
    names = ("a", "b", "going", "outer", "outer/inner")
    text = browser(site).get("/trash/move", params=selected(site, *names)).text
    assert EVIL not in text
    assert re.search(r"These runs stay:.*>going</a>: It is running; stop it first", text, re.DOTALL)
    assert "Move 4 runs to the trash</button>" in text
    hidden = re.findall(r'type="hidden" name="run" value="([^"]+)"', text)
    assert sorted(hidden) == sorted(slug for _, slug in selected(site, "a", "b", "outer", "outer/inner"))
    assert not (site.index.root / TRASH).exists()
    alone = browser(site).get("/trash/move", params=selected(site, "outer")).text
    assert "None of these runs can be moved" in alone and "contains other runs (outer/inner)" in alone
    assert browser(site).get("/trash/move").status_code == 400


def test_several_runs_are_moved_and_restored_one_by_one(site: Site) -> None:
    root = site.index.root
    before = {path.relative_to(root) for path in root.rglob("*")}
    trash_them(site, "outer", "a", "outer/inner")
    assert [run.name for run in site.index.runs] == ["b", "going"]
    site.index.refresh()
    assert [run.name for run in site.index.runs] == ["b", "going"]
    keys = {run.name: run.key for run in trashed_runs(root)}
    assert set(keys) == {"outer", "a", "outer/inner"}
    assert "3 runs, " in browser(site).get("/trash").text
    for name in ("outer", "outer/inner", "a"):
        assert post(site, f"/trash/{keys[name]}/restore").status_code == 303
    assert {path.relative_to(root) for path in root.rglob("*")} == before


def test_run_that_went_on_since_the_question_stays_and_is_named(site: Site) -> None:
    response = post(site, "/trash/move", *selected(site, "a", "going"))
    assert response.status_code == 400
    assert "1 run was moved here" in response.text
    assert "going can&#39;t be moved to the trash. It is running; stop it first." in response.text
    assert [run.name for run in trashed_runs(site.index.root)] == ["a"]
    assert (site.index.root / "going" / "run.json").exists()


def test_emptying_asks_with_the_number_of_runs_and_bytes(site: Site) -> None:
    root = site.index.root
    trash_them(site, "a", "b")
    (root / TRASH / "by-hand").mkdir()
    page = browser(site).get("/trash/empty").text
    (size,) = re.findall(r"\(([\d\u202f]+) bytes\)", page)
    assert "Delete 2 runs for good?" in page
    assert int(size.replace("\u202f", "")) == bytes_in(root / TRASH)
    assert len(trashed_runs(root)) == 2
    answer = confirmed(site)
    trash_them(site, "outer/inner")  # after the question
    assert post(site, "/trash/empty", answer).headers["location"] == "/trash"
    assert [run.name for run in trashed_runs(root)] == ["outer/inner"]
    assert post(site, "/trash/empty", confirmed(site)).status_code == 303
    assert [path.name for path in (root / TRASH).iterdir()] == ["by-hand"]  # not a run that the viewer put there
    assert "The trash is empty" in browser(site).get("/trash/empty").text
    shutil.rmtree(root / TRASH / "by-hand")
    trash_them(site, "outer")
    post(site, "/trash/empty", confirmed(site))
    assert not (root / TRASH).exists()


@pytest.mark.parametrize("until", ["", "nan", "inf", "x"])
def test_unconfirmed_emptying_deletes_nothing(site: Site, until: str) -> None:
    trash_them(site, "a")
    assert post(site, "/trash/empty", ("until", until)).status_code == 400
    assert browser(site).post("/trash/empty", data={"until": "9e9"}).status_code == 403
    assert len(trashed_runs(site.index.root)) == 1


def test_emptying_follows_no_links(site: Site, tmp_path: Path) -> None:
    outside = write_episodes(tmp_path / "outside" / "episodes.jsonl", [episode()])
    (site.index.root / "a" / "model").symlink_to(outside.parent)
    site.index.refresh()
    trash_them(site, "a")
    post(site, "/trash/empty", confirmed(site))
    assert outside.exists() and not (site.index.root / TRASH).exists()
    (site.index.root / TRASH).symlink_to(outside.parent)
    assert post(site, "/trash/empty", ("until", "9e9")).status_code == 303
    assert outside.exists()


def test_run_that_is_deleted_in_part_is_not_offered_and_deleted_next_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    root = site.index.root
    trash_them(site, "a", "b")
    answer = confirmed(site)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        response = post(site, "/trash/empty", answer)
    assert (response.status_code, "can&#39;t be emptied completely" in response.text) == (400, True)
    assert not trashed_runs(root)
    page = browser(site).get("/trash/empty").text
    assert "Delete the rest of runs" in page and "the rest of runs" in browser(site).get("/trash").text
    assert f"({bytes_in(root / TRASH):,} bytes)".replace(",", "\u202f") in page
    post(site, "/trash/empty", confirmed(site))
    assert not (root / TRASH).exists()


def test_list_of_runs_offers_the_actions_only_if_it_is_editable(site: Site) -> None:
    assert 'formaction="/trash/move"' in browser(site).get("/").text
    shown = TestClient(make_app(site, read_only=True), LOCAL).get("/").text
    assert "trash" not in shown and "/tags/" not in shown and "Compare" in shown


def test_file_in_use_is_kept(site: Site) -> None:
    path = write_episodes(site.index.root / "c.jsonl", [episode()])
    site.index.refresh()
    assert "in the last three minutes" in browser(site).get("/trash/move", params=selected(site, "c.jsonl")).text
    os.utime(path, (86_400, 86_400))
    site.index.refresh()
    trash_them(site, "c.jsonl")
