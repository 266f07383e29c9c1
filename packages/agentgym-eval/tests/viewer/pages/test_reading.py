"""Tests of parsing replies and observations for display."""

from __future__ import annotations

import pytest
from agentgym_envs import Episode, Reply, Turn, make
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_eval.viewer.pages import reading
from agentgym_eval.viewer.pages.reading import Passage
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

ENV = make("agentgym/TextCraft-v0")
WORDS = st.text(st.sampled_from("abc xyz.,"), max_size=30).map(str.strip)


def turn(text: str, action: str | None, observation: str = "") -> Turn:
    return Turn(observation, Reply(text), action, True, 0.0, "")


@given(reply_format=st.sampled_from(sorted(REPLY_FORMATS)), thought=WORDS)
@pytest.mark.parametrize("action", ["inventory", "craft 4 stick using 2 oak planks"])
def test_expert_replies_are_split_in_every_reply_format(reply_format: str, thought: str, action: str) -> None:
    wrapper = REPLY_FORMATS[reply_format](ENV)
    parts = reading.split_reply(turn(wrapper.format(action, thought), action), reply_format)
    assert parts == reading.ReplyParts(" ".join(thought.split()) if wrapper.thinks else "", action)


@pytest.mark.parametrize(
    ("reply_format", "text", "action", "thought", "rest"),
    [
        ("react", "I look.\nAction: look\nThen more.", "look", "I look.", "Then more."),
        ("react", "Thought: go on\nAction:   go on  ", "go on", "go on", ""),
        ("tags", "<think>a\nb</think>\n<search>x\ny</search>", "<search>x y</search>", "a\nb", ""),
        ("bare", "<think>hm</think>\nlook", "look", "hm", ""),
        ("function-call", 'I do.\n<tool_call>{"name": "look"}</tool_call>', "look", "I do.", ""),
        ("", "Thought: t\nAction: look", "look", "t", ""),
    ],
)
def test_replies_are_split_into_thought_action_and_rest(
    reply_format: str, text: str, action: str, thought: str, rest: str
) -> None:
    assert reading.split_reply(turn(text, action), reply_format) == reading.ReplyParts(thought, action, rest)


def test_reply_without_an_action_is_all_thought() -> None:
    assert reading.split_reply(turn(" no idea ", None), "react") == reading.ReplyParts("no idea", None)


@pytest.mark.parametrize(
    ("observation", "goal"),
    [
        ("Crafting commands:\ncraft 1 x using 1 y\n\nGoal: craft x.", "craft x."),
        ("Your goal: go to the red ball\nIn front of you", "go to the red ball"),
        ("Question: Who?", "Who?"),
        ("Tab 0\nOBJECTIVE: Find it.\nPREVIOUS ACTION: None", "Find it."),
        ("Your task is to boil water. For\nThis room", "Your task is to boil water. For"),
        ("A riddle.\nGuess", "A riddle. Guess"),
        ("x" * 400, "x" * 300 + "…"),
    ],
)
def test_goal_is_found_in_the_first_observation(observation: str, goal: str) -> None:
    episode = Episode("e", "t", "test", "c", 1, "p", 0, "", (turn("a", "a", observation),), "", "truncated", 0.0, False)
    assert reading.goal(episode) == goal


def test_changed_lines_are_marked_in_similar_observations() -> None:
    before = "The room\na door (closed)\na lamp"
    assert reading.lines("The room\na door (open)\na lamp", before) == [
        ("The room", False),
        ("a door (open)", True),
        ("a lamp", False),
    ]
    assert not any(new for _, new in reading.lines("Another\nroom\naltogether", before))
    assert not any(new for _, new in reading.lines(before, None))
    assert reading.lines("one line", "another") == [("one line", False)]


SEARCH_RESULT = (
    "<information>Doc 1(Title: La (element)) Its symbol is La.\nDoc 2(Title: Barium) No &lt;b> here."
    "\nDoc 3(Title: X) Short.</information>"
)


def test_unrelated_texts_with_blank_lines_have_no_new_lines() -> None:
    before, text = ("\n\n".join(f"{name} {i}" for i in range(1000)) for name in ("one", "two"))
    marked = reading.lines(f"{text}\n\nsame", f"{before}\n\nsame")
    assert len(marked) == 2001
    assert not any(new for _, new in marked)


def test_passages_are_parsed_from_search_results() -> None:
    assert reading.passages(SEARCH_RESULT, "p") == [
        Passage("p-1", 1, "La (element)", "Its symbol is La."),
        Passage("p-2", 2, "Barium", "No &lt;b> here."),
        Passage("p-3", 3, "X", "Short."),
    ]
    assert reading.passages("Question: Doc 1(Title: x) y", "p") == []


def test_citations_refer_to_the_latest_passage() -> None:
    older, newer = reading.passages(SEARCH_RESULT, "old"), reading.passages(SEARCH_RESULT, "new")
    pieces = reading.cited("Doc 2 and 'La (element)', not Bariums, X or Doc 22.", [*older, *newer])
    assert "".join(text for text, _ in pieces) == "Doc 2 and 'La (element)', not Bariums, X or Doc 22."
    citations = [(text, passage.anchor) for text, passage in pieces if passage]
    assert citations == [("Doc 2", "new-2"), ("La (element)", "new-1")]
    assert reading.cited("Doc 1", []) == [("Doc 1", None)]
