from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from agentgym_eval.cli.view import view
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from viewer_runs import EVIL, episode, evaluate, train, write  # the file beside this one


class References(HTMLParser):
    """What a page leads to, loads, or would run."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self.inline += [name for name, _ in attrs if name.startswith(("on", "hx-")) or name == "style"]
        if tag == "script" and not any(name == "src" for name, _ in attrs):
            self.inline.append(tag)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed") / "runs"
    evaluate(folder / "poor", [episode(f"t/{n}", s, s < n, turns=3) for n in range(3) for s in range(3)])
    evaluate(folder / "good", [episode(f"t/{n}", 0, True, turns=1) for n in range(3)])
    train(folder / "rl", 2, first_stage=1)
    write(folder / "evil & co.jsonl", [episode(EVIL, said=f"</script>{EVIL}\u2028", category=EVIL, policy=EVIL)])
    return folder


@pytest.fixture(scope="module")
def pages(runs: Path) -> Path:
    return exported(runs, runs.parent / "out")


def exported(runs: Path, out: Path, most: int = 1000) -> Path:
    index = Index(runs, out.parent / "index.sqlite")
    try:
        export(index, out, most)
    finally:
        index.close()
    return out


def test_every_link_of_an_export_leads_to_a_file_of_it_and_nothing_is_inline(pages: Path) -> None:
    assert len(list(pages.rglob("*.html"))) > 40
    for page in pages.rglob("*.html"):
        references = References(page)
        assert not references.inline, page
        for link in references.found:
            file, _, rest = link.partition("#")
            file, _, query = file.partition("?")
            assert not re.match(r"/|\w+:", link), (page, link)
            assert not file or (page.parent / unquote(file)).is_file(), (page, link)
            for name, other in re.findall(r"([ab])=([^&#]+)", query) if "beside.html" in file else []:
                assert (pages / unquote(other)).is_file(), (page, name, other)
            assert not rest or not file or f'id="{rest}"' in (page.parent / unquote(file)).read_text(), (page, link)


def test_what_the_lists_filter_by_stands_on_their_rows(pages: Path) -> None:
    rows = re.findall('data-row="([^"]+)"', (pages / "index.html").read_text(encoding="utf-8"))
    facts = [json.loads(unescape(row)) for row in rows]
    assert {each["name"]: (each["kind"], each["env"]) for each in facts} == {
        "poor": ("evaluate", ["agentgym/Near-v0"]),
        "good": ("evaluate", ["agentgym/Near-v0"]),
        "rl": ("train", ["agentgym/Near-v0"]),
        "evil & co.jsonl": ("episodes", ["agentgym/Near-v0"]),
    }
    page = (pages / "episodes.html").read_text(encoding="utf-8")
    assert page.count("data-row=") == 29
    assert EVIL not in page
    words = (pages / "static" / "words.js").read_text(encoding="utf-8")
    said = json.loads(words.removeprefix("window.agentgymWords = ").rstrip(";\n"))
    assert len(said) == 29
    assert sum(EVIL in text for text in said) == 1


def test_attempts_of_a_group_share_the_page_that_shows_them_side_by_side(pages: Path) -> None:
    assert [page.name for page in sorted((pages / "siblings" / "poor" / "episodes").iterdir())] == [
        "0.html",
        "3.html",
        "6.html",
    ]


def test_a_folder_that_holds_something_is_left_alone(runs: Path, tmp_path: Path) -> None:
    kept = tmp_path / "out" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        exported(runs, tmp_path / "out")
    assert [path.name for path in kept.parent.iterdir()] == ["thesis.txt"]


def test_more_episodes_than_asked_for_are_refused_with_their_number(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"29 episodes .* --most 29"):
        exported(runs, tmp_path / "out", most=28)
    assert not (tmp_path / "out").exists()


def test_an_export_that_breaks_leaves_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentgym_eval.viewer.server.export.run_page", full)
    with pytest.raises(UsageError, match="No space left"):
        exported(runs, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("index")] == []


def test_the_command_says_where_to_begin(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    assert view([str(runs / "good"), "--export", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out" / "index.html") in capsys.readouterr().err
    assert view([str(runs / "good"), "--export", str(tmp_path / "out")]) == 2
    assert "not an empty folder" in capsys.readouterr().err
