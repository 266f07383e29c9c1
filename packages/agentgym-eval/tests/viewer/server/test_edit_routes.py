"""Tests of naming runs, moving them to the trash and restoring them, over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.storage.annotations import Annotation, add_annotation
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.run_notes import RunNotes, read_notes, write_notes
from agentgym_eval.viewer.index.trash import TRASH, trashed_runs
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from httpx import Response
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

LOCAL = "http://127.0.0.1:8000"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "runs"
    write_evaluation_run(root / "one" / "a", [episode(f"t/{n}") for n in range(3)])
    write_evaluation_run(root / "b", [episode()], done=False)
    write_episodes(root / "c.jsonl", [episode()])
    os.utime(root / "c.jsonl", (86_400, 86_400))
    index = Index(root, tmp_path / "index.sqlite")
    index.refresh()
    yield Site(index, Links())
    index.close()


def client(site: Site, host: str = "127.0.0.1", *, read_only: bool = False) -> TestClient:
    return TestClient(make_app(site, host, read_only=read_only), LOCAL)


def post(site: Site, path: str, origin: str = LOCAL, **form: str) -> Response:
    return client(site).post(path, data=form, headers={"origin": origin}, follow_redirects=False)


def trash(site: Site, *names: str) -> Response:
    """Answer the question whether to move runs to the trash."""
    body = "&".join(f"run={slug(site, name)}" for name in names)
    headers = {"origin": LOCAL, "content-type": "application/x-www-form-urlencoded"}
    return client(site).post("/trash/move", content=body, headers=headers, follow_redirects=False)


def slug(site: Site, name: str) -> str:
    return next(run.slug for run in site.index.runs if run.name == name)


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_name_and_note_are_shown_and_travel_with_the_folder(site: Site) -> None:
    root, before = site.index.root, files(site.index.root)
    response = post(site, f"/run/{slug(site, 'one/a')}/label", name=f" My  {EVIL}", note="line 1\nline 2")
    assert response.status_code == 303
    page = client(site).get(response.headers["location"]).text
    assert EVIL not in page and "line 1\nline 2" in page
    assert {name: data for name, data in files(root).items() if name in before} == before
    (root / "one" / "a").rename(root / "moved")
    site.index.refresh()
    run = site.index.run("moved")
    assert (run.title, run.note, run.label) == (f"My {EVIL}", "line 1\nline 2", f"My {EVIL}")
    assert "1 of 3 runs" in client(site).get("/?text=My+line").text
    post(site, "/run/moved/label", name="", note="")
    assert files(root) == {name.replace("one/a/", "moved/"): data for name, data in before.items()}


def test_name_of_a_single_file_is_beside_it(site: Site) -> None:
    post(site, f"/run/{slug(site, 'c.jsonl')}/label", name="sea", note="")
    site.index.refresh()
    assert site.index.run(slug(site, "c.jsonl")).label == "sea"
    assert (site.index.root / "c.jsonl.viewer.json").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": "x"}', '{"schema": "agentgym.viewer/1", "name": {"a": 1}}', "\xff"]
)
def test_damaged_labels_do_no_harm(tmp_path: Path, text: str) -> None:
    (tmp_path / "viewer.json").write_text(text, encoding="latin-1")
    assert isinstance(read_notes(tmp_path).title, str)


def test_label_that_is_too_long_is_refused(site: Site) -> None:
    assert post(site, "/run/b/label", name="x" * 201).status_code == 400
    assert not read_notes(site.index.root / "b").title


@pytest.mark.parametrize("name", ["one/a", "c.jsonl"])
def test_run_is_moved_to_the_trash_and_restored(site: Site, name: str) -> None:
    root = site.index.root
    write_notes(root / name, RunNotes("named"))
    add_annotation(root / "c.jsonl", 0, ("agentgym/Near-v0", "t/1", 0), Annotation.of(["good"], ""))
    site.index.refresh()
    before, key = files(root), slug(site, name)
    form = client(site).get(f"/run/{key}/edit").text
    assert ("3 episodes and" if name == "one/a" else "1 episode and") in form
    response = trash(site, name)
    assert (response.status_code, response.headers["location"]) == (303, "/trash")
    assert client(site).get(f"/run/{key}").status_code == 404
    site.index.refresh()
    assert name not in {run.name for run in site.index.runs}
    assert len(files(root)) == len(before) + 1
    assert not [path for path in files(root) if str(path).startswith(name.removesuffix("jsonl"))]
    (trashed,) = trashed_runs(root)
    assert (trashed.name, trashed.title) == (name, "named")
    page = client(site).get("/trash").text
    assert f"/trash/{trashed.key}/restore" in page
    assert post(site, f"/trash/{trashed.key}/restore").status_code == 303
    assert files(root) == before
    assert not (root / TRASH).exists()
    assert post(site, f"/trash/{trashed.key}/restore").status_code == 400


def test_taken_place_and_foreign_entries_are_not_restored(site: Site) -> None:
    root = site.index.root
    trash(site, "one/a")
    (trashed,) = trashed_runs(root)
    write_evaluation_run(root / "one" / "a", [episode()])
    assert "exists again" in post(site, f"/trash/{trashed.key}/restore").text
    entry = root / TRASH / trashed.key / "entry.json"
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"name": "../outside"}))
    assert post(site, f"/trash/{trashed.key}/restore").status_code == 400
    assert not (root.parent / "outside").exists()
    for key in ("..", "20260101-000000-none", "%2e%2e"):
        assert post(site, f"/trash/{key}/restore").status_code in (400, 404)
    assert len(trashed_runs(root)) == 1


def test_what_is_in_use_or_not_only_a_run_is_kept(site: Site, tmp_path: Path) -> None:
    root = site.index.root
    write_training_run(root / "one")  # a run whose folder contains another
    write_evaluation_run(tmp_path / "elsewhere", [episode()])
    (root / "linked.jsonl").symlink_to(tmp_path / "elsewhere" / "episodes.jsonl")
    write_episodes(root / "new.jsonl", [episode()])
    os.utime(root / "one" / "metrics.jsonl", (1, 1))
    (root / "one" / "summary.json").write_text("{}")
    site.index.refresh()
    for name, reason in {
        "b": "It is running",
        "one": "contains other runs (one/a)",
        "linked.jsonl": "symbolic link",
        "new.jsonl": "in the last three minutes",
    }.items():
        assert reason in client(site).get(f"/run/{slug(site, name)}/edit").text
        response = trash(site, name)
        assert (response.status_code, reason in response.text) == (400, True), name
    with FolderLock(root / "one" / "a"):
        assert "Another process is using" in trash(site, "one/a").text
    assert not (root / TRASH).exists()
    assert (root / "one" / "a" / "run.json").exists()


def test_folder_itself_is_kept(tmp_path: Path) -> None:
    write_evaluation_run(tmp_path / "run", [episode()])
    index = Index(tmp_path / "run", tmp_path / "index.sqlite")
    index.refresh()
    (run,) = index.runs
    assert post(Site(index, Links()), "/trash/move", run=run.slug).status_code == 400
    assert (tmp_path / "run" / "run.json").exists()
    index.close()


def test_other_origins_other_machines_and_read_only_viewers_change_nothing(site: Site) -> None:
    before = files(site.index.root)
    assert post(site, "/run/b/label", origin="http://evil.example", name="x").status_code == 403
    assert client(site).post("/run/b/label", data={"name": "x"}).status_code == 403
    for viewer in (client(site, "0.0.0.0"), client(site, read_only=True)):
        for path in ("/run/b/label", "/run/b/tags/add", "/tags/add", "/trash/move", "/trash/empty", "/trash/x/restore"):
            assert viewer.post(path, data={"name": "x"}, headers={"origin": LOCAL}).status_code in (404, 405)
        assert viewer.get("/run/b/edit").status_code == 404
        assert "/edit" not in viewer.get("/run/b").text
        assert "/trash" not in viewer.get("/").text
        assert "without <code>--host</code>" in viewer.get("/play").text
    assert files(site.index.root) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_to_write_is_reported(site: Site) -> None:
    root = site.index.root
    (root / "one" / "a").chmod(0o500)
    try:
        assert "can't be written" in post(site, f"/run/{slug(site, 'one/a')}/label", name="x").text
    finally:
        (root / "one" / "a").chmod(0o700)


def test_failed_move_leaves_the_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    before = files(site.index.root)
    monkeypatch.setattr(Path, "rename", refuse)
    response = trash(site, "one/a")
    assert (response.status_code, "Permission denied" in response.text) == (400, True)
    monkeypatch.undo()
    assert files(site.index.root) == before
    monkeypatch.setattr(Path, "replace", refuse)
    assert "make its folder writable" in post(site, "/run/b/label", name="x").text
