"""Files in the formats of others: what is said in them, and what is told of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode
from agentgym_eval.data.formats import read_data
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.data.pairs import make_pairs, to_trl
from agentgym_eval.util.errors import UsageError
from conversions import converted, played, written

pytestmark = pytest.mark.quick


def read(path: Path, *found: Any, score: float | None = 1.0) -> tuple[list[Episode], dict[str, int]]:
    """The episodes in these records, and what was told of them."""
    told = Counter[str]()
    episodes = list(read_data([written(path / "file", found)], score=score, told=lambda what: told.update([what])))
    return episodes, dict(told)


def said(episode: Episode) -> list[tuple[str, str, bool]]:
    return [(turn.observation, turn.reply.text, turn.loss) for turn in episode.turns]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def test_a_reply_of_weight_0_is_not_learned_from_and_reasoning_is_kept(tmp_path: Path) -> None:
    messages = [user("a"), reply("b", weight=0), user("c"), reply("d", weight=1, reasoning_content="since"), user("e")]
    (episode,), told = read(tmp_path, {"messages": messages})
    assert said(episode) == [("a", "b", False), ("c", "d", True)]
    assert [turn.reply.reasoning for turn in episode.turns] == [None, "since"]
    assert episode.final_observation == "e"
    assert told == {}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (reply("b", weight=0.5), "the `weight` of message 2 must be 0 or 1, not 0.5"),
        (reply("b", reasoning_content=["x"]), "the reasoning of message 2 is not text"),
        ({"role": "critic", "content": "b"}, "message 2 is not text with one of the roles system, developer, user"),
    ],
)
def test_what_is_of_no_protocol_is_refused_by_name(message: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path, {"messages": [user("a"), message]})


def test_developers_speak_as_the_system_and_later_words_of_it_as_the_user(tmp_path: Path) -> None:
    first = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}]
    messages = [*first, user("a"), reply("b"), {"role": "system", "content": "late"}, user("c"), reply("d")]
    (episode,), told = read(tmp_path, {"messages": messages})
    assert episode.instructions == "s\n\nd"
    assert said(episode) == [("a", "b", True), ("late\n\nc", "d", True)]
    assert sum(told.values()) == 2


def test_consecutive_messages_of_a_side_are_one_and_that_is_told(tmp_path: Path) -> None:
    (episode,), told = read(tmp_path, {"messages": [user("a"), user("b"), reply("c"), reply("d")]})
    assert said(episode) == [("a\n\nb", "c\n\nd", True)]
    assert told == {"consecutive messages of the same side are merged": 2}
    with pytest.raises(UsageError, match="messages 2 and 3 form one reply, but only one of them has the `weight` 0"):
        read(tmp_path, {"messages": [user("a"), reply("b", weight=0), reply("c")]})


def call(name: str, number: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": '{"x": 1}'}}


def answer(number: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": number, "content": text}


def test_functions_that_were_called_at_once_are_called_one_after_the_other(tmp_path: Path) -> None:
    both = reply("I think", tool_calls=[call("f", "1"), call("g", "2")])
    messages = [user("a"), both, answer("1", "of f"), answer("2", "of g"), reply("done")]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg"]
    (episode,), told = read(tmp_path, {"messages": messages, "tools": tools})
    asked = [json.loads(turn.reply.text) for turn in episode.turns[:2]]
    assert [(made.get("thought", ""), made["function_name"]) for made in asked] == [("I think", "f"), ("", "g")]
    assert [turn.observation for turn in episode.turns] == ["a", "of f", "of g"]
    assert told == {"parallel function calls are read as consecutive calls": 1}
    with pytest.raises(UsageError, match="message 2 calls functions that no tool message answers"):
        read(tmp_path, {"messages": [user("a"), both, answer("1", "of f"), user("and g?")]})


def test_sharegpt_needs_no_ids(tmp_path: Path) -> None:
    conversation = [("system", "s"), ("human", "a"), ("gpt", "b"), ("observation", "c"), ("gpt", "d")]
    record = {"id": "x", "conversations": [{"from": who, "value": text} for who, text in conversation]}
    (episode, again), _ = read(tmp_path, record, record)
    assert (episode.instructions, said(episode)) == ("s", [("a", "b", True), ("c", "d", True)])
    assert [one.task_id for one in (episode, again)] == ["file/1", "file/2"]
    with pytest.raises(UsageError, match="the `from` of message 1 is none of system, human"):
        read(tmp_path, {"conversations": [{"from": "bing", "value": "hi"}]})


def test_of_prompts_and_completions_the_completions_are_learned(tmp_path: Path) -> None:
    shots = [user("a"), reply("b"), user("c")]
    found, _ = read(tmp_path, {"prompt": "a", "completion": "b"}, {"prompt": shots, "completion": [reply("d")]})
    assert [said(episode) for episode in found] == [[("a", "b", True)], [("a", "b", False), ("c", "d", True)]]


def test_rollouts_of_verifiers_bring_their_reward(tmp_path: Path) -> None:
    rollout = {"prompt": [user("a")], "completion": [reply("b"), user("c"), reply("d")], "reward": 0.25, "task": "t"}
    (episode,), told = read(tmp_path, rollout, score=None)
    assert (episode.score, episode.success, told) == (0.25, False, {})
    with pytest.raises(UsageError, match="it has no score"):
        read(tmp_path, rollout | {"reward": -1.5}, score=None)
    (episode,), told = read(tmp_path, rollout | {"reward": -1.5}, score=0.5)
    assert episode.score == 0.5
    assert told == {"a reward outside of 0 to 1 is not used as a score": 1}


def test_alpaca_asks_with_instruction_and_input(tmp_path: Path) -> None:
    with_input = {"instruction": "Translate.", "input": "chat", "output": "cat"}
    found, _ = read(tmp_path, with_input, {"instruction": "Say hi.", "input": "", "output": "hi", "system": "s"})
    assert [said(episode) for episode in found] == [[("Translate.\n\nchat", "cat", True)], [("Say hi.", "hi", True)]]
    assert found[1].instructions == "s"


def test_preferences_are_two_episodes_of_which_the_rest_is_learned(tmp_path: Path) -> None:
    begun = [user("a"), reply("b"), user("c")]
    whole = {"chosen": [*begun, reply("d")], "rejected": [*begun, reply("x")]}
    found, _ = read(tmp_path, whole, {"prompt": "p", "chosen": "y", "rejected": "n"}, score=None)
    assert [(one.score, said(one)) for one in found] == [
        (1.0, [("a", "b", False), ("c", "d", True)]),
        (0.0, [("a", "b", False), ("c", "x", True)]),
        (1.0, [("p", "y", True)]),
        (0.0, [("p", "n", True)]),
    ]


def test_pairs_that_we_wrote_are_read_back(tmp_path: Path) -> None:
    good = played("react", 4)
    other = replace(good.turns[1], reply=replace(good.turns[1].reply, text="Thought: no\nAction: wait"))
    bad = replace(good, turns=(good.turns[0], other), score=0.25, success=False)
    pairs = [to_trl(pair) for pair in make_pairs([good, bad], Pairing())]
    assert pairs
    back, _ = read(tmp_path, *pairs, score=None)
    assert [(one.env, one.task_id, one.agent, one.score) for one in back] == [
        (one.env, one.task_id, one.agent, one.score) for one in (good, bad)
    ]
    assert [to_trl(pair) for pair in make_pairs(back, Pairing())] == pairs


def test_the_command_says_how_often_it_changed_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"messages": [user("a"), user("b"), reply("c")]}
    path = written(tmp_path / "in.jsonl", [record] * 3)
    assert len(converted("episodes", tmp_path / "out.jsonl", path, "--score", "1")) == 3
    assert "Changed: consecutive messages of the same side are merged (3 times)" in capsys.readouterr().err
