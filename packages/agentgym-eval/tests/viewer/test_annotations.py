"""Tests of annotating episodes in the viewer: saving, filtering, downloading, and who may."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path

import pytest
from agentgym_eval.storage.annotations import Annotation, add_annotation, annotations_file, read_annotations
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.export import export
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run

BASE = "http://127.0.0.1:8000"
HERE = {"origin": BASE}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    write_evaluation_run(tmp_path / "runs/eval", [episode(f"t/{n}", 0, n % 2 == 0) for n in range(5)])
    write_episodes(tmp_path / "runs/single.jsonl", [episode("s/0"), episode("s/1")])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture
def client(index: Index) -> TestClient:
    return TestClient(make_app(Site(index, Links())), BASE, follow_redirects=False)


def annotate(client: TestClient, path: str, labels: list[str], new: str = "", note: str = "", status: int = 303) -> str:
    response = client.post(f"/annotate/{path}", data={"label": labels, "new": new, "note": note}, headers=HERE)
    assert response.status_code == status, response.text
    return response.headers.get("location", response.text)


def tasks(index: Index, **filters: str) -> list[str]:
    return [row.task for row in index.list(Filters(sort="task", **filters)).rows]  # type: ignore[arg-type]


def test_annotation_is_saved_next_to_the_episodes_and_shown(client: TestClient, index: Index) -> None:
    note = f"line one\n{EVIL}</textarea>\n\nline four"
    place = annotate(client, "eval/episodes/1?success=no", [], "good, needs review,, good", note)
    assert place == "/episode/eval/episodes/1?success=no#annotation"
    ((key, saved),) = read_annotations(index.root / "eval/episodes.jsonl").values()
    assert (key, saved.labels, saved.note) == (("agentgym/Near-v0", "t/1", 0), ("good", "needs review"), note)
    page = client.get(place).text
    assert escape(note) in page and EVIL not in page
    assert '<input type="checkbox" name="label" value="good" checked>' in page
    assert '<input type="checkbox" name="label" value="good">' in client.get("/episode/eval/episodes/2").text
    assert "needs review" in client.get("/episodes").text
    assert annotate(client, "single.jsonl/single/1", ["good"], note="") == "/episode/single.jsonl/single/1#annotation"
    assert sorted(path.name for path in index.root.glob("*.annotations.jsonl")) == ["single.annotations.jsonl"]
    index.refresh()
    assert {run.slug for run in index.runs} == {"eval", "single.jsonl"}


def test_annotations_are_filters_and_found_by_the_search(client: TestClient, index: Index) -> None:
    annotate(client, "eval/episodes/1", [], "good", "Xylophone solo")
    annotate(client, "eval/episodes/3", [], "", "only a note")
    annotate(client, "single.jsonl/single/0", ["good"])
    assert tasks(index, label="good") == ["s/0", "t/1"]
    assert tasks(index, label="good", run="eval") == ["t/1"]
    assert tasks(index, label="*") == ["s/0", "t/1", "t/3"]
    assert tasks(index, label="!*") == ["s/1", "t/0", "t/2", "t/4"]
    assert tasks(index, text="xylo") == ["t/1"]
    assert tasks(index, text="north", label="good") == ["s/0", "t/1"]
    assert (index.labels(), index.labels("eval")) == ({"good": 2}, {"good": 1})
    annotate(client, "eval/episodes/1", [], "", "")
    assert tasks(index, label="good") == ["s/0"]
    assert tasks(index, text="xylo") == []
    assert "not among the 1" in client.get("/episode/eval/episodes/1?label=good").text


def test_annotations_of_other_viewers_and_of_a_copy_are_read(index: Index) -> None:
    path = index.root / "eval/episodes.jsonl"
    add_annotation(path, 2, ("agentgym/Near-v0", "t/2", 0), Annotation.of(["theirs"], ""))
    index.refresh()
    assert tasks(index, label="theirs") == ["t/2"]
    index.refresh()
    write_episodes(path, [episode(f"other/{n}") for n in range(5)])  # the file was replaced: other tasks
    index.refresh()
    assert tasks(index, label="theirs") == []
    annotations_file(path).unlink()
    index.refresh()
    assert not index.annotated


def test_ten_thousand_labels_are_offered_as_the_most_frequent(client: TestClient, index: Index) -> None:
    path = index.root / "many.jsonl"
    write_episodes(path, [episode(f"t/{n}") for n in range(500)])
    lines = [
        {"schema": "agentgym.annotation/1", "episode": n, "env": "agentgym/Near-v0", "task_id": f"t/{n}", "sample": 0,
         "labels": ["frequent", *(f"label {n} {at}" for at in range(20))], "note": "", "written": ""}
        for n in range(500)
    ]  # fmt: skip
    annotations_file(path).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    index.refresh()
    assert len(index.labels()) == 100
    assert next(iter(index.labels().items())) == ("frequent", 500)
    assert tasks(index, label="label 77 3") == ["t/77"]
    assert client.get("/episode/eval/episodes/0").text.count('type="checkbox"') == 20
    assert "selected>label 77 3<" in client.get("/episodes?label=label+77+3").text


def test_downloads_hold_the_annotations_of_the_list(client: TestClient) -> None:
    annotate(client, "eval/episodes/1", [], "b, a", 'line\n"two", three')
    annotate(client, "single.jsonl/single/0", ["a"])
    lines = [json.loads(line) for line in client.get("/annotations.jsonl?run=eval").text.splitlines()]
    assert [(each["run"], each["task_id"], each["success"], each["labels"], each["note"]) for each in lines] == [
        ("eval", "t/1", False, ["a", "b"], 'line\n"two", three')
    ]
    response = client.get("/annotations.csv?label=a&sort=task")
    assert response.headers["content-disposition"] == 'attachment; filename="annotations.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    assert [(row["task_id"], row["labels"], row["note"]) for row in rows] == [
        ("s/0", "a", ""),
        ("t/1", "a, b", 'line\n"two", three'),
    ]
    assert "annotations.csv?label=a" in client.get("/episodes?label=a").text


def test_text_like_a_formula_is_no_formula_in_csv(client: TestClient) -> None:
    annotate(client, "eval/episodes/1", ["a"], "", "- a list")
    (row,) = csv.DictReader(io.StringIO(client.get("/annotations.csv").text, newline=""))
    assert (row["labels"], row["note"], row["score"]) == ("a", "'- a list", "0.0")


def test_foreign_pages_other_machines_and_read_only_viewers_can_t_annotate(index: Index) -> None:
    form = {"note": "mine"}
    for host, origin, read_only in (
        ("127.0.0.1", "http://evil.example", False),
        ("0.0.0.0", BASE, False),
        ("127.0.0.1", BASE, True),
    ):
        client = TestClient(make_app(Site(index, Links()), host, read_only=read_only), BASE)
        assert client.post("/annotate/eval/episodes/1", data=form, headers={"origin": origin}).status_code == 403
    assert not annotations_file(index.root / "eval/episodes.jsonl").exists()
    add_annotation(index.root / "eval/episodes.jsonl", 1, ("agentgym/Near-v0", "t/1", 0), Annotation.of(["seen"], ""))
    index.refresh()
    page = TestClient(make_app(Site(index, Links()), "0.0.0.0"), BASE).get("/episode/eval/episodes/1").text
    assert "seen" in page and "/annotate/" not in page


def test_what_can_t_be_saved_is_a_one_sentence_error(
    client: TestClient, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no episode 99" in annotate(client, "eval/episodes/99", ["good"], status=404)
    assert "begins with a letter" in annotate(client, "eval/episodes/1", ["*"], status=400)
    assert "longer than" in annotate(client, "eval/episodes/1", [], note="x" * 200_001, status=400)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("agentgym_eval.viewer.index.index.add_annotation", refuse)
        assert "make their folder writable" in annotate(client, "eval/episodes/1", ["good"], status=400)
    (index.root / "single.jsonl").unlink()  # not noticed by the index yet
    assert "was deleted" in annotate(client, "single.jsonl/single/0", ["good"], status=404)
    assert not (index.root / "single.annotations.jsonl").exists()


def test_export_shows_annotations_without_a_form(client: TestClient, index: Index, tmp_path: Path) -> None:
    annotate(client, "eval/episodes/1", [], "good", "a note")
    export(index, tmp_path / "pages", 100)
    page = (tmp_path / "pages/episode/eval/episodes/1.html").read_text()
    assert "a note" in page and "<textarea" not in page
    assert json.loads((tmp_path / "pages/annotations.jsonl").read_text())["labels"] == ["good"]
    listed = (tmp_path / "pages/episodes.html").read_text()
    assert 'href="annotations.csv"' in listed
    assert '"label": ["*", "good"]' in unescape(listed)
