"""Tests of reading files in the formats of other libraries."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode
from agentgym_eval.data.formats import read_data, records
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.data.pairs import make_pairs, to_trl
from agentgym_eval.util.errors import UsageError
from conversions import convert_records, play_episode, write_records

pytestmark = pytest.mark.quick


def read(path: Path, *records: Any, score: float | None = 1.0) -> tuple[list[Episode], dict[str, int]]:
    """Return the episodes in these records, and the counts of the reported conversions."""
    conversions = Counter[str]()
    episodes = list(
        read_data(
            [write_records(path / "file", records)],
            score=score,
            on_change=lambda message: conversions.update([message]),
        )
    )
    return episodes, dict(conversions)


def turns_of(episode: Episode) -> list[tuple[str, str, bool]]:
    return [(turn.observation, turn.reply.text, turn.loss) for turn in episode.turns]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def test_weight_0_disables_the_loss_and_reasoning_is_kept(tmp_path: Path) -> None:
    messages = [user("a"), reply("b", weight=0), user("c"), reply("d", weight=1, reasoning_content="since"), user("e")]
    (episode,), conversions = read(tmp_path, {"messages": messages})
    assert turns_of(episode) == [("a", "b", False), ("c", "d", True)]
    assert [turn.reply.reasoning for turn in episode.turns] == [None, "since"]
    assert episode.final_observation == "e"
    assert conversions == {}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (reply("b", weight=0.5), "the `weight` of message 2 must be 0 or 1, not 0.5"),
        (reply("b", reasoning_content=["x"]), "the reasoning of message 2 is not text"),
        ({"role": "critic", "content": "b"}, "message 2 is not text with one of the roles system, developer, user"),
    ],
)
def test_invalid_messages_are_rejected_by_name(message: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path, {"messages": [user("a"), message]})


def test_developer_messages_are_system_and_later_system_are_user(tmp_path: Path) -> None:
    first = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}]
    messages = [*first, user("a"), reply("b"), {"role": "system", "content": "late"}, user("c"), reply("d")]
    (episode,), conversions = read(tmp_path, {"messages": messages})
    assert episode.instructions == "s\n\nd"
    assert turns_of(episode) == [("a", "b", True), ("late\n\nc", "d", True)]
    assert sum(conversions.values()) == 2


def test_consecutive_messages_of_one_role_are_merged_and_reported(tmp_path: Path) -> None:
    (episode,), conversions = read(tmp_path, {"messages": [user("a"), user("b"), reply("c"), reply("d")]})
    assert turns_of(episode) == [("a\n\nb", "c\n\nd", True)]
    assert conversions == {"consecutive messages of the same side are merged": 2}
    with pytest.raises(UsageError, match="messages 2 and 3 form one reply, but only one of them has the `weight` 0"):
        read(tmp_path, {"messages": [user("a"), reply("b", weight=0), reply("c")]})


def call(name: str, number: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": '{"x": 1}'}}


def tool_result(number: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": number, "content": text}


def test_parallel_function_calls_become_sequential(tmp_path: Path) -> None:
    parallel_calls = reply("I think", tool_calls=[call("f", "1"), call("g", "2")])
    messages = [user("a"), parallel_calls, tool_result("1", "of f"), tool_result("2", "of g"), reply("done")]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg"]
    (episode,), conversions = read(tmp_path, {"messages": messages, "tools": tools})
    calls = [json.loads(turn.reply.text) for turn in episode.turns[:2]]
    assert [(function.get("thought", ""), function["function_name"]) for function in calls] == [
        ("I think", "f"),
        ("", "g"),
    ]
    assert [turn.observation for turn in episode.turns] == ["a", "of f", "of g"]
    assert conversions == {"parallel function calls are read as consecutive calls": 1}
    with pytest.raises(UsageError, match="message 2 calls functions that no tool message answers"):
        read(tmp_path, {"messages": [user("a"), parallel_calls, tool_result("1", "of f"), user("and g?")]})


def test_sharegpt_records_need_no_ids(tmp_path: Path) -> None:
    conversation = [("system", "s"), ("human", "a"), ("gpt", "b"), ("observation", "c"), ("gpt", "d")]
    record = {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in conversation]}
    (episode, again), _ = read(tmp_path, record, record)
    assert (episode.instructions, turns_of(episode)) == ("s", [("a", "b", True), ("c", "d", True)])
    assert [e.task_id for e in (episode, again)] == ["file/1", "file/2"]
    with pytest.raises(UsageError, match="the `from` of message 1 is none of system, human"):
        read(tmp_path, {"conversations": [{"from": "bing", "value": "hi"}]})


def test_prompt_completion_records_have_loss_on_completions(tmp_path: Path) -> None:
    shots = [user("a"), reply("b"), user("c")]
    episodes, _ = read(tmp_path, {"prompt": "a", "completion": "b"}, {"prompt": shots, "completion": [reply("d")]})
    assert [turns_of(episode) for episode in episodes] == [[("a", "b", True)], [("a", "b", False), ("c", "d", True)]]


def test_verifiers_rollouts_use_their_reward_as_score(tmp_path: Path) -> None:
    rollout = {"prompt": [user("a")], "completion": [reply("b"), user("c"), reply("d")], "reward": 0.25, "task": "t"}
    (episode,), conversions = read(tmp_path, rollout, score=None)
    assert (episode.score, episode.success, conversions) == (0.25, False, {})
    with pytest.raises(UsageError, match="it has no score"):
        read(tmp_path, rollout | {"reward": -1.5}, score=None)
    (episode,), conversions = read(tmp_path, rollout | {"reward": -1.5}, score=0.5)
    assert episode.score == 0.5
    assert conversions == {"a reward outside of 0 to 1 is not used as a score": 1}


def test_alpaca_records_combine_instruction_and_input(tmp_path: Path) -> None:
    with_input = {"instruction": "Translate.", "input": "chat", "output": "cat"}
    episodes, _ = read(tmp_path, with_input, {"instruction": "Say hi.", "input": "", "output": "hi", "system": "s"})
    assert [turns_of(episode) for episode in episodes] == [
        [("Translate.\n\nchat", "cat", True)],
        [("Say hi.", "hi", True)],
    ]
    assert episodes[1].instructions == "s"


def test_preference_records_are_two_episodes_with_loss_at_the_end(tmp_path: Path) -> None:
    history = [user("a"), reply("b"), user("c")]
    conversation = {"chosen": [*history, reply("d")], "rejected": [*history, reply("x")]}
    episodes, _ = read(tmp_path, conversation, {"prompt": "p", "chosen": "y", "rejected": "n"}, score=None)
    assert [(e.score, turns_of(e)) for e in episodes] == [
        (1.0, [("a", "b", False), ("c", "d", True)]),
        (0.0, [("a", "b", False), ("c", "x", True)]),
        (1.0, [("p", "y", True)]),
        (0.0, [("p", "n", True)]),
    ]


def test_our_preference_pairs_round_trip(tmp_path: Path) -> None:
    good = play_episode("react", 4)
    other = replace(good.turns[1], reply=replace(good.turns[1].reply, text="Thought: no\nAction: wait"))
    bad = replace(good, turns=(good.turns[0], other), score=0.25, success=False)
    pairs = [to_trl(pair) for pair in make_pairs([good, bad], Pairing())]
    assert pairs
    back, _ = read(tmp_path, *pairs, score=None)
    assert [(e.env, e.task_id, e.agent, e.score) for e in back] == [
        (e.env, e.task_id, e.agent, e.score) for e in (good, bad)
    ]
    assert [to_trl(pair) for pair in make_pairs(back, Pairing())] == pairs


@pytest.mark.parametrize("agent", ["tags+window:2+plan", "react+plan:2", "bare+window:1", "function-call+plan"])
def test_pairs_of_agents_with_habits_are_read_as_the_conversations_that_they_are(agent: str, tmp_path: Path) -> None:
    good = play_episode(agent, 4)
    *before, last = good.turns
    bad = replace(good, turns=(*before, replace(last, reply=replace(last.reply, text="no"))), score=0.25, success=False)
    (pair,) = (to_trl(pair) for pair in make_pairs([good, bad], Pairing()))
    back, _ = read(tmp_path, pair, score=None)
    assert {e.agent for e in back} == {agent.partition("+")[0]}
    for episode, side in zip(back, ("chosen", "rejected"), strict=True):
        (record,) = records([episode], "trl")
        assert contents(record["messages"]) == contents([*pair["prompt"], *pair[side]])


def contents(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_convert_prints_the_number_of_conversions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"messages": [user("a"), user("b"), reply("c")]}
    path = write_records(tmp_path / "in.jsonl", [record] * 3)
    assert len(convert_records("episodes", tmp_path / "out.jsonl", path, "--score", "1")) == 3
    assert "Changed: consecutive messages of the same side are merged (3 times)" in capsys.readouterr().err
