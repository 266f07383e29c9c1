"""Tests that damaged data of runs is counted and reported and hides nothing else."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.storage.annotations import Annotation
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index import discovery
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Address, Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.index.trash import move_to_trash
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server import app
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.export import export
from starlette.testclient import TestClient
from viewer_runs import episode, write_episodes, write_evaluation_run, write_training_run


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    yield index
    index.close()


def tasks(index: Index) -> list[str]:
    return [row.task for row in index.list(Filters(sort="task")).rows]


def line_with(field: str, value: object) -> str:
    """Return the line of an episode in which one field, such as `turns.0.reward`, has another value."""
    record = json.loads(episode("t/odd").to_json())
    *parents, last = field.split(".")
    inner = record
    for name in parents:
        inner = inner[int(name) if name.isdigit() else name]
    inner[last] = value
    return json.dumps(record)


INVALID_FIELDS = [
    *(("score", value) for value in ("x", True, float("nan"), float("inf"), 10**400)),
    *(("success", value) for value in ("<script>", 1, 0.5)),
    *(("env", value) for value in (5, None, ["w"])),
    *(("sample", value) for value in ("0", 0.5, True, 10**30)),
    *(("stop", value) for value in ("tired", None, [])),
    ("task_id", 7),
    ("difficulty", "hard"),
    ("policy", None),
    ("split", 3),
    ("seconds", {"world": "long"}),
    ("turns", {}),
    ("turns.0.reward", "much"),
    ("turns.0.valid", "yes"),
    ("turns.0.kind", "dance"),
    ("turns.0.action", 3),
    ("turns.0.observation", None),
    ("turns.0.reply.text", 3),
    ("turns.0.reply.sample", {"ids": []}),
    ("unknown", 1),
    ("schema", "agentgym.episode/99"),
]


@pytest.mark.parametrize(
    ("field", "value"), INVALID_FIELDS, ids=[f"{field}={str(value)[:20]}" for field, value in INVALID_FIELDS]
)
def test_line_with_a_field_of_the_wrong_type_is_damaged(index: Index, field: str, value: object) -> None:
    path = write_evaluation_run(index.root / "eval", [episode("t/0")]) / "episodes.jsonl"
    with path.open("a") as file:
        file.write(f"{line_with(field, value)}\n{episode('t/1').to_json()}\n")
    index.refresh()
    assert tasks(index) == ["t/0", "t/1"]
    assert index.run_metrics()["eval"].damaged == 1


def test_episodes_of_the_first_schema_are_read(index: Index) -> None:
    record = json.loads(episode("t/0").to_json()) | {"schema": "agentgym.episode/1"}
    del record["agent"], record["tools"]
    for turn in record["turns"]:
        del turn["kind"], turn["trial"], turn["loss"]
    (index.root / "old.jsonl").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    index.refresh()
    assert tasks(index) == ["t/0"]
    assert index.episode(Address("old.jsonl", "old", 0)).acts == 2


def test_file_without_valid_lines_counts_as_damaged(index: Index) -> None:
    folder = write_evaluation_run(index.root / "eval", [])
    (folder / "episodes.jsonl").write_bytes(b"\x00\xff garbage\n" * 3)
    (write_training_run(index.root / "rl") / "evaluations" / "step-000004-sampled.jsonl").write_bytes(b"garbage\n")
    index.refresh()
    metrics = index.run_metrics()
    assert (metrics["eval"].episodes, metrics["eval"].damaged, metrics["eval"].success) == (0, 3, None)
    assert metrics["rl"].damaged == 1
    assert metrics["rl"].source.startswith("evaluations-step-000000-sampled")


def test_pages_and_exports_report_damage_and_show_the_rest(index: Index, tmp_path: Path) -> None:
    for name in ("wrong", "half"):
        path = write_evaluation_run(index.root / name, [episode("t/0")]) / "episodes.jsonl"
        with path.open("a") as file:
            file.write(f"{line_with('score', 'x')}\n{line_with('turns.0.reward', 'x')}\n")
    (index.root / "half" / "run.json").write_text('{"schema": "agentgym.run/1", "sett')
    (write_evaluation_run(index.root / "garbage", []) / "episodes.jsonl").write_bytes(b"\xff\n")
    index.refresh()
    damaged_slug = next(run.slug for run in index.runs if run.kind == "episodes")
    client = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000")
    for path, texts in (
        ("/", ["2 damaged", "1 damaged", "partly unreadable"]),
        ("/episodes", ["2 episodes"]),
        ("/run/wrong", ["2 lines of its files are damaged"]),
        ("/run/garbage", ["1 line of its files is damaged"]),
        (f"/run/{damaged_slug}", ["run.json can&#39;t be read"]),
        ("/compare?a=wrong&b=garbage", ["No task has results in both runs"]),
    ):
        response = client.get(path)
        assert response.status_code == 200, path
        assert [text for text in texts if text not in response.text] == [], path
    assert export(index, tmp_path / "out", 10) > 10
    assert "2 lines of its files are damaged" in (tmp_path / "out" / "run" / "wrong.html").read_text()


def test_pages_of_runs_with_odd_numbers_are_shown(index: Index) -> None:
    """Of an interpreter's, a database's or a calendar's range."""
    training, evaluation = write_training_run(index.root / "rl"), write_evaluation_run(index.root / "ev", [episode()])
    write_evaluation_run(
        index.root / "ev2",
        [episode()],
        started="0001-01-01T00:00:00+23:00",
        settings={"env": 3, "extra_worlds": 5, "options": 5},
    )
    huge, deep = "1" * 400, "[" * 100_000 + "]" * 100_000
    with (training / "metrics.jsonl").open("w") as file:
        file.write(f'{{"step": 1, "success": {huge}, "horizon": {huge}, "stage": {{}}, "loss": 5e-324, "lr": 9e299}}\n')
        file.write(f'{{"step": 2, "success": 0.5, "loss": 1e-320, "lr": 9e299}}\n{{"step": 3, "deep": {deep}}}\n')
    (evaluation / "usage.json").write_text(f'{{"requests": 1, "cost": {huge}, "price": [{huge}, 1]}}')
    index.refresh()
    client = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000")
    for path in (
        *("/", "/runs.csv", "/run/rl", "/curves?run=rl&log=1", "/run/ev", "/compare?a=ev&b=ev2"),
        *("/compare?run=ev&run=ev2&run=rl", "/episode/ev/episodes/0", "/episode/ev2/episodes/0"),
    ):
        assert client.get(path).status_code == 200, path
    digits = "9" * 5000
    for path, status in (
        (f"/compare?a=ev&b=ev2&page={digits}", 400),
        (f"/side-by-side?a=ev/episodes/-{digits[:20]}&b=ev/episodes/0", 404),
        (f"/side-by-side?a=ev/episodes/{digits}&b=ev/episodes/0", 400),
        (f"/episode/ev/episodes/{digits[:30]}", 404),
    ):
        assert client.get(path).status_code == status, path[:50]


def test_names_that_are_not_utf8_are_shown_with_their_bytes(index: Index, tmp_path: Path) -> None:
    names = [os.fsdecode(b"caf\xe9.jsonl"), os.fsdecode(b"caf\xe8")]
    write_episodes(index.root / names[0], [episode("t/0")])
    write_evaluation_run(index.root / names[1], [episode("t/1")])
    write_evaluation_run(index.root / "good", [episode("t/2")])
    index.refresh()
    index.refresh()
    assert [run.name for run in index.runs] == ["caf\\xe8", "caf\\xe9.jsonl", "good"]
    assert tasks(index) == ["t/0", "t/1", "t/2"]
    assert len({run.slug for run in index.runs}) == 3
    address = next(row.address for row in index.list(Filters()).rows if row.task == "t/1")
    index.annotate(address, Annotation.of(["odd"], ""))
    index.refresh()
    assert [row.task for row in index.list(Filters(label="odd")).rows] == ["t/1"]
    client = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000")
    for path in ("/", "/episodes", "/runs.csv", *(f"/run/{run.slug}" for run in index.runs), Links().episode(address)):
        assert client.get(path).status_code == 200, path
    assert export(index, tmp_path / "out", 10) > 10
    run = index.run(address.run)
    with pytest.raises(UsageError, match="isn't UTF-8"):
        move_to_trash(index.root, run, index.runs, 1)
    (index.root / names[0]).unlink()
    index.refresh()
    assert tasks(index) == ["t/1", "t/2"]


def test_record_that_is_nested_too_deep_counts_as_damaged(index: Index) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    folder = write_evaluation_run(index.root / "deep", [episode("t/0", 0, False)])
    (folder / "run.json").write_text(f'{{"schema": "agentgym.run/1", "settings": {deep}}}')
    (folder / "viewer.json").write_text(deep)
    (folder / "episodes.distances.jsonl").write_text(f"{deep}\n")
    write_evaluation_run(index.root / "good", [episode("t/1")])
    index.refresh()
    assert tasks(index) == ["t/0", "t/1"]
    assert [run.read_error != "" for run in index.runs] == [True, False]


def test_run_that_vanishes_during_the_scan_is_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "good"):
        write_evaluation_run(index.root / name, [episode()])
    write_evaluation_run(index.root / "empty", [])
    write_episodes(index.root / "single.jsonl", [episode()])
    files = [index.root / name for name in ("gone/run.json", "gone/episodes.jsonl", "empty/run.json", "single.jsonl")]
    (index.root / "empty/episodes.jsonl").unlink()
    make_run, make_single = discovery._run, discovery._single_file

    def delete() -> None:
        for file in files:
            file.unlink(missing_ok=True)

    monkeypatch.setattr(discovery, "_run", lambda *found: (delete(), make_run(*found))[1])
    monkeypatch.setattr(discovery, "_single_file", lambda *found: (delete(), make_single(*found))[1])
    index.refresh()
    assert [run.name for run in index.runs] == ["good"]


def test_refreshing_goes_on_after_any_error(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [IndexError("the first"), RecursionError()]
    stop, pages = threading.Event(), list[str]()
    client = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000")
    versions = {index.version}

    def refresh(_: threading.Event) -> float:
        pages.append(client.get("/").text)
        versions.add(index.version)
        if errors:
            raise errors.pop(0)
        stop.set()
        return 0.0

    monkeypatch.setattr(app, "_REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(index, "refresh", refresh)
    app._refresh_loop(index, stop)
    shown = [page.partition("The folder can't be refreshed: ")[2].partition("<")[0] for page in pages]
    assert shown == ["", "the first", "RecursionError()"]
    assert len(versions) == 2
    assert index.refresh_error == ""
