"""Tests of the display names of runs on all pages: instead of the path, which stays visible or is the tooltip."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.index.run_notes import RunNotes, write_notes
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.export import export
from starlette.testclient import TestClient
from viewer_runs import EVIL, episode, write_evaluation_run, write_training_run

_NAMES = {"a": "First try", "b": "Larger <model>", "rl": f"PPO {EVIL}"}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    root = tmp_path / "runs"
    for name in ("a", "b"):
        write_evaluation_run(root / name, [episode("t/1"), episode("t/1", 1)])
    write_training_run(root / "rl")
    for name, title in _NAMES.items():
        write_notes(root / name, RunNotes(title))
    index = Index(root, tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", ["First try</a>", "Larger <model></a>"]),
        ("/episodes", ['title="a">First try</a>', ">Larger <model> (b)"]),
        ("/episodes?run=a", ['of <a href="/run/a" title="a">First try</a>']),
        ("/episode/a/episodes/0", ['<a href="/run/a" title="a">First try</a> ·']),
        ("/messages/a/episodes/0/1", ['<a href="/run/a" title="a">First try</a> ·']),
        ("/siblings/a/episodes/0", ['<a href="/run/a" title="a">First try</a> ·']),
        ("/side-by-side?a=a/episodes/0&b=b/episodes/0", ["First try (a), attempt 0", "Larger <model> (b), attempt 0"]),
        ("/compare", ['<option value="b">Larger <model> (b)</option>']),
        ("/compare?a=a&b=b", ['A is <a href="/run/a" title="a">First try</a>', 'title="b">Larger <model></a>']),
        ("/run/a", ["First try <small>a</small>", ">Larger <model> (b)</option>"]),
        ("/run/b/edit", ["Larger <model> <small>b</small>"]),
        ("/curves?run=rl", [f'title="rl">PPO {EVIL}</a>']),
        ("/curves?run=a", ['<a href="/run/a" title="a">First try</a>']),
        ("/runs.csv", ["a,First try,", "b,Larger <model>,"]),
    ],
)
def test_pages_show_display_names(index: Index, path: str, shown: list[str]) -> None:
    response = TestClient(make_app(Site(index, Links(), editable=True)), "http://127.0.0.1:8000").get(path)
    assert response.status_code == 200
    assert path.startswith("/runs.csv") or EVIL not in response.text
    text = unescape(response.text)
    assert [each for each in shown if each not in text] == []


def test_exported_pages_show_display_names(index: Index, tmp_path: Path) -> None:
    export(index, tmp_path / "out", 100)
    for page, shown in {
        "compare.html": "First try (a)",
        "episode/a/episodes/0.html": 'title="a">First try</a>',
        "messages/a/episodes/0.html": 'title="a">First try</a>',
        "curves.html": f"PPO {EVIL}",
    }.items():
        assert shown in unescape((tmp_path / "out" / page).read_text(encoding="utf-8")), page


def test_deleted_run_is_named_by_its_slug(index: Index) -> None:
    index.forget("a")
    assert (index.find("a").label, index.find("b").label) == ("a", "Larger <model>")
