"""Where in an episode the words of a search are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import Reply, Turn
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Address, Links
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.lists import episodes_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.snippets import Snippet, snippets
from viewer_runs import EVIL, episode, evaluate, write

AT = Address("eval", "episodes", 0)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    yield index
    index.close()


def played(index: Index, *replies: str, end: str = "The end.") -> Index:
    turns = tuple(Turn("A room.", Reply(said), said, valid=True, reward=0.0, state_key="s") for said in replies)
    evaluate(index.root / "eval", [replace(episode(), turns=turns, final_observation=end)])
    index.refresh()
    return index


@pytest.mark.parametrize(
    ("text", "turn", "parts"),
    [
        ("door", 1, ("open the red ", "door", "")),
        ("door open", 1, ("", "open", " the red ", "door", "")),
        ("ROO", 0, ("A ", "room", ".\nlook")),
        ("door blue", 2, ("open the ", "blue", " ", "door", "")),
        ('"red door"', 1, ("open the ", "red door", "")),
        ("look blue", 0, ("A room.\n", "look", "")),
        ("curtain", 3, ("The ", "curtain", ".")),
    ],
)
def test_a_snippet_is_of_the_first_turn_with_all_words_or_with_one(
    index: Index, text: str, turn: int, parts: tuple[str, ...]
) -> None:
    played(index, "look", "open the red door", "open the blue door", end="The curtain.")
    (found,) = index.list(Filters(text=text)).rows
    assert snippets(index, [found.address], text) == {AT: Snippet(turn, parts)}


def test_a_search_for_nothing_has_no_snippets(index: Index) -> None:
    played(index, "look")
    assert snippets(index, [AT], "?!") == snippets(index, [AT], "") == snippets(index, [AT], "absent") == {}


def test_long_texts_are_cut_around_the_words(index: Index) -> None:
    played(index, f"{'before ' * 500} here {'after ' * 500} {'x' * 10_000}")
    assert len("".join(snippets(index, [AT], "here")[AT].parts)) < 200
    assert len("".join(snippets(index, [AT], "xxx")[AT].parts)) < 500


def test_the_list_marks_what_was_found_and_leads_to_its_turn(index: Index) -> None:
    played(index, "look", f"say \x02 \x03 {EVIL}<b onclick=x> & north")
    text = episodes_page(Site(index, Links()), Filters(text="alert north"))
    (snippet,) = re.findall(r'<small class="snippet">(.*)</small>', text)
    assert snippet == (
        "turn 1: say     &lt;script&gt;<mark>alert</mark>(1)&lt;/script&gt;&lt;b onclick=x&gt; &amp; <mark>north</mark>"
    )
    assert f'<a href="{Links().episode(AT, 1)}">t/<wbr>1</a>' in text
    assert "snippet" not in episodes_page(Site(index, Links()), Filters(success="yes"))


def test_a_file_that_is_just_written_anew_leaves_its_snippet_out(index: Index) -> None:
    played(index, "look north")
    write(index.root / "other.jsonl", [episode(said="north")])
    index.refresh()
    other = Address("other.jsonl", "other", 0)
    path = index.root / "eval" / "episodes.jsonl"
    for content in ("[]", "{}", '{"turns": [], "final_observation": 1}', "\u00ff" * 9, ""):
        path.write_text(content, encoding="latin-1")
        assert list(snippets(index, [AT, other], "north")) == [other]
    path.unlink()
    assert list(snippets(index, [AT, other], "north")) == [other]
    assert list(snippets(index, [AT, Address("eval", "episodes", 7), Address("gone", "x", 0)], "north")) == []
