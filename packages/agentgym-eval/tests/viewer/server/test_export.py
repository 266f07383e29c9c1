"""Tests of exporting the viewer's pages as static files."""

from __future__ import annotations

import json
import re
import signal
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from agentgym_eval.cli.view import view
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run


class References(HTMLParser):
    """The links of a page, and its inline scripts and styles."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self.inline += [name for name, _ in attrs if name.startswith(("on", "hx-")) or name == "style"]
        if tag == "script" and not any(name == "src" for name, _ in attrs):
            self.inline.append(tag)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed") / "runs"
    write_evaluation_run(folder / "poor", [episode(f"t/{n}", s, s < n, turns=3) for n in range(3) for s in range(3)])
    write_evaluation_run(folder / "good", [episode(f"t/{n}", 0, True, turns=1) for n in range(3)])
    write_training_run(folder / "rl", 2, first_stage=1)
    write_episodes(
        folder / "evil & co.jsonl", [episode(EVIL, reply=f"</script>{EVIL}\u2028", category=EVIL, policy=EVIL)]
    )
    return folder


@pytest.fixture(scope="module")
def pages(runs: Path) -> Path:
    return export_runs(runs, runs.parent / "out")


def export_runs(runs: Path, out: Path, most: int = 1000) -> Path:
    index = Index(runs, out.parent / "index.sqlite")
    try:
        export(index, out, most)
    finally:
        index.close()
    return out


def check_links(pages: Path) -> None:
    """Check that all links lead to files and parts of pages that exist, and that nothing is inline."""
    for page in pages.rglob("*.html"):
        references = References(page)
        assert not references.inline, page
        for link in references.links:
            file, _, fragment = link.partition("#")
            file, _, query = file.partition("?")
            assert not re.match(r"/|\w+:", link), (page, link)
            assert not file or (page.parent / unquote(file)).is_file(), (page, link)
            for name, target in re.findall(r"([ab])=([^&#]+)", query) if "side-by-side.html" in file else []:
                assert (pages / unquote(target)).is_file(), (page, name, target)
            assert not fragment or not file or f'id="{fragment}"' in (page.parent / unquote(file)).read_text(), (
                page,
                link,
            )


def test_exported_links_resolve_and_nothing_is_inline(pages: Path) -> None:
    assert len(list(pages.rglob("*.html"))) > 40
    check_links(pages)


def table_of(page: Path) -> dict[str, str]:
    """Return the rows of the first table of a page, without markup, by the first word."""
    body = re.findall("<tbody>(.*?)</tbody>", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    texts = [" ".join(unescape(re.sub("<[^>]+>", " ", row)).split()) for row in body.split("<tr>")[1:]]
    return {text.split()[0]: text for text in texts}


def test_runs_with_common_tasks_are_compared_in_a_table_with_each_as_the_baseline(pages: Path) -> None:
    assert sorted(page.stem for page in (pages / "compare-runs").iterdir()) == ["good", "poor", "rl"]
    start = (pages / "compare.html").read_text(encoding="utf-8")
    assert '<a href="compare-runs/good.html">3 runs in one table</a>' in start
    rows = table_of(pages / "compare-runs" / "poor.html")
    assert list(rows) == ["good", "poor", "rl"]
    assert rows["poor"].startswith("poor baseline episodes 33.3%") and rows["good"].startswith("good episodes 100.0%")
    assert "+66.7" in rows["good"] and "Make baseline" in rows["good"]
    assert "evaluations/step-000002-sampled" in rows["rl"]
    page = (pages / "compare-runs" / "poor.html").read_text(encoding="utf-8")
    assert '<a href="rl.html">Make baseline</a>' in page and '<a href="../compare/poor--good.html">' in page
    assert "<form" not in page
    pair = (pages / "compare" / "good--poor.html").read_text(encoding="utf-8")
    assert '<a href="../compare-runs/good.html">By category' in pair


def test_larger_tables_have_only_the_first_run_as_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for env, names in (("Near", "abc"), ("Far", "de")):
        for level, name in enumerate(names):
            episodes = [episode(f"t/{n}", 0, n < level, env=f"agentgym/{env}-v0") for n in range(4)]
            write_evaluation_run(tmp_path / "runs" / name, episodes)
    monkeypatch.setattr("agentgym_eval.viewer.server.export._MOST_BASELINES", 2)
    out = export_runs(tmp_path / "runs", tmp_path / "out")
    check_links(out)
    assert sorted(page.stem for page in (out / "compare-runs").iterdir()) == ["a", "d", "e"]
    assert list(table_of(out / "compare-runs" / "a.html")) == ["a", "b", "c"]
    assert list(table_of(out / "compare-runs" / "e.html")) == ["d", "e"]
    assert "Make baseline" not in (out / "compare-runs" / "a.html").read_text(encoding="utf-8")
    assert "../compare-runs/a.html" in (out / "compare" / "b--c.html").read_text(encoding="utf-8")


def test_comparisons_of_runs_with_long_paths_are_exported(tmp_path: Path) -> None:
    for seed in range(2):
        write_training_run(tmp_path / "runs" / "studies of the length bias" / f"{'x' * 80}-{seed}", with_test=True)
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    export(index, tmp_path / "out", 100)
    index.close()
    names = [path.name for path in (tmp_path / "out" / "compare").iterdir()]
    assert len(names) > 4
    assert max(map(len, names)) < 230
    page = next((tmp_path / "out" / "run").iterdir())
    links = [link for link in References(page).links if link.startswith("../compare/")]
    assert links
    assert all((page.parent / unquote(link)).exists() for link in links)


def test_export_of_one_run_has_no_table(runs: Path, tmp_path: Path) -> None:
    out = export_runs(runs / "good", tmp_path / "out")
    check_links(out)
    assert not (out / "compare-runs").exists()
    assert "No two runs have a task in common" in (out / "compare.html").read_text(encoding="utf-8")


def test_exported_rows_contain_the_data_for_filters(pages: Path) -> None:
    attributes = re.findall('data-row="([^"]+)"', (pages / "index.html").read_text(encoding="utf-8"))
    rows_data = [json.loads(unescape(row)) for row in attributes]
    assert {row["name"]: (row["kind"], row["env"]) for row in rows_data} == {
        "poor": ("evaluate", ["agentgym/Near-v0"]),
        "good": ("evaluate", ["agentgym/Near-v0"]),
        "rl": ("train", ["agentgym/Near-v0"]),
        "evil & co.jsonl": ("episodes", ["agentgym/Near-v0"]),
    }
    page = (pages / "episodes.html").read_text(encoding="utf-8")
    assert page.count("data-row=") == 29
    assert EVIL not in page
    script = (pages / "static" / "words.js").read_text(encoding="utf-8")
    texts = json.loads(script.removeprefix("window.agentgymWords = ").rstrip(";\n"))
    assert len(texts) == 29
    assert sum(EVIL in text for text in texts) == 1


def test_exported_times_stay_true(pages: Path) -> None:
    assert not [page for page in pages.rglob("*.html") if re.search(r"\bago\b|just now", page.read_text("utf-8"))]
    assert f'<td class="when">{time.strftime("%Y-%m-%d ")}' in (pages / "index.html").read_text(encoding="utf-8")


def test_attempts_of_a_group_share_one_sibling_page(pages: Path) -> None:
    assert [page.name for page in sorted((pages / "siblings" / "poor" / "episodes").iterdir())] == [
        "0.html",
        "3.html",
        "6.html",
    ]


def test_export_refuses_a_non_empty_folder(runs: Path, tmp_path: Path) -> None:
    user_file = tmp_path / "out" / "thesis.txt"
    user_file.parent.mkdir()
    user_file.write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        export_runs(runs, tmp_path / "out")
    assert [path.name for path in user_file.parent.iterdir()] == ["thesis.txt"]


def test_export_of_too_many_episodes_is_rejected_with_their_number(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"29 episodes .* --most 29"):
        export_runs(runs, tmp_path / "out", most=28)
    assert not (tmp_path / "out").exists()


def test_failed_export_leaves_no_files(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentgym_eval.viewer.server.export.run_page", disk_full)
    with pytest.raises(UsageError, match="No space left"):
        export_runs(runs, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("index")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_export_leaves_no_files(
    number: signal.Signals,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("agentgym_eval.viewer.server.export.run_page", lambda *_: signal.raise_signal(number))
    assert view([str(runs), "--export", str(tmp_path / "out")]) == 128 + number
    word = "Interrupted" if number == signal.SIGINT else "Terminated"
    assert f"{word}. Nothing was written to {tmp_path / 'out'}." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_view_export_prints_the_path_of_the_start_page(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    assert view([str(runs / "good"), "--export", str(tmp_path / "out")]) == 0
    err = capsys.readouterr().err
    assert "Exporting: 3 episodes\n" in err and str(tmp_path / "out" / "index.html") in err
    assert view([str(runs / "good"), "--export", str(tmp_path / "out")]) == 2
    assert "not an empty folder" in capsys.readouterr().err
