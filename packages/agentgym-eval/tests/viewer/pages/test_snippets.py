"""Tests of the snippets of episodes that match a search."""

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
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run

ADDRESS = Address("eval", "episodes", 0)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    yield index
    index.close()


def write_episode(index: Index, *replies: str, end: str = "The end.") -> Index:
    turns = tuple(Turn("A room.", Reply(reply), reply, valid=True, reward=0.0, state_key="s") for reply in replies)
    write_evaluation_run(index.root / "eval", [replace(episode(), turns=turns, final_observation=end)])
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
def test_snippet_is_of_the_first_turn_with_most_search_words(
    index: Index, text: str, turn: int, parts: tuple[str, ...]
) -> None:
    write_episode(index, "look", "open the red door", "open the blue door", end="The curtain.")
    (found,) = index.list(Filters(text=text)).rows
    assert snippets(index, [found.address], text) == {ADDRESS: Snippet(turn, parts)}


def test_search_without_matches_has_no_snippets(index: Index) -> None:
    write_episode(index, "look")
    assert (
        snippets(index, [ADDRESS], "?!") == snippets(index, [ADDRESS], "") == snippets(index, [ADDRESS], "absent") == {}
    )


def test_long_texts_are_shortened_around_the_match(index: Index) -> None:
    write_episode(index, f"{'before ' * 500} here {'after ' * 500} {'x' * 10_000}")
    assert len("".join(snippets(index, [ADDRESS], "here")[ADDRESS].parts)) < 200
    assert len("".join(snippets(index, [ADDRESS], "xxx")[ADDRESS].parts)) < 500


def test_list_highlights_matches_and_links_to_their_turn(index: Index) -> None:
    write_episode(index, "look", f"say \x02 \x03 {EVIL}<b onclick=x> & north")
    text = episodes_page(Site(index, Links()), Filters(text="alert north"))
    (snippet,) = re.findall(r'<small class="snippet">(.*)</small>', text)
    assert snippet == (
        "turn 1: say     &lt;script&gt;<mark>alert</mark>(1)&lt;/script&gt;&lt;b onclick=x&gt; &amp; <mark>north</mark>"
    )
    assert f'<a href="{Links().episode(ADDRESS, 1, {"text": "alert north"})}">t/<wbr>1</a>' in text
    assert "snippet" not in episodes_page(Site(index, Links()), Filters(success="yes"))


def test_snippet_is_omitted_while_its_file_is_rewritten(index: Index) -> None:
    write_episode(index, "look north")
    write_episodes(index.root / "other.jsonl", [episode(reply="north")])
    index.refresh()
    other = Address("other.jsonl", "other", 0)
    path = index.root / "eval" / "episodes.jsonl"
    for content in ("[]", "{}", '{"turns": [], "final_observation": 1}', "\u00ff" * 9, ""):
        path.write_text(content, encoding="latin-1")
        assert list(snippets(index, [ADDRESS, other], "north")) == [other]
    path.unlink()
    assert list(snippets(index, [ADDRESS, other], "north")) == [other]
    assert list(snippets(index, [ADDRESS, Address("eval", "episodes", 7), Address("gone", "x", 0)], "north")) == []
