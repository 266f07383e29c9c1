"""Tests of converting AgentGym's conversations and item ids to episodes and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Reply, read_episodes
from agentgym_envs.core.action_schema import ACT, described
from agentgym_eval.cli.convert import convert
from agentgym_eval.data.formats import read_data, records
from conversions import TEXT, convert_records, play_episode, write_and_read, write_records
from hypothesis import given, settings
from hypothesis import strategies as st

REPLY = {"from": "gpt", "loss": True, "value": "Thought: on\nAction: go"}
OBSERVATION = {"from": "human", "loss": None, "value": "Go."}
ITEMS = ("babyai_123", "sciworld_4135", "webarena_24", "searchqa_3610")


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    messages = [
        {"from": speaker, "loss": None if speaker == "human" else draw(st.booleans()), "value": draw(TEXT)}
        for _ in range(draw(st.integers(1, 4)))
        for speaker in ("human", "gpt")
    ]
    return {"item_id": draw(st.sampled_from(ITEMS)), "conversations": messages}


@settings(max_examples=20)
@given(st.lists(conversations(), min_size=1, max_size=3))
def test_conversations_round_trip_through_episodes_and_trl(
    tmp_path_factory: pytest.TempPathFactory, file: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    episodes = write_and_read(file, "agentgym", folder, score=1)
    assert list(records(episodes, "agentgym")) == file
    assert write_and_read(records(episodes, "trl"), "trl", folder) == episodes
    for episode, record in zip(episodes, file, strict=True):
        assert [turn.loss for turn in episode.turns] == [message["loss"] for message in record["conversations"][1::2]]
        assert sum(turn.reward for turn in episode.turns) == episode.score == 1
    assert len({(episode.task_id, episode.sample) for episode in episodes}) == len(episodes)


def test_conversation_becomes_an_episode_of_the_corresponding_task(tmp_path: Path) -> None:
    acknowledgement = {"from": "gpt", "loss": False, "value": "OK. I'll follow your instructions."}
    instructions = {"from": "human", "loss": None, "value": "You are in a house."}
    messages = [instructions, acknowledgement, OBSERVATION, REPLY, OBSERVATION, REPLY | {"loss": False}, OBSERVATION]
    path = write_records(
        tmp_path / "babyai_train.json", [{"item_id": "babyai_123", "conversations": messages}] * 2, "agentgym"
    )
    first, second = read_data([path], score=1)
    assert (first.env, first.task_id) == ("agentgym/BabyAI-v0", "babyai/train/GoToObjS4/3")
    assert (first.split, first.category, first.difficulty) == ("train", "GoTo", 3)
    assert [(turn.kind, turn.loss) for turn in first.turns] == [("talk", False), ("act", True), ("act", False)]
    assert (first.acts, first.final_observation, first.instructions) == (2, "Go.", "")
    assert (first.sample, second.sample) == (0, 1)


def test_split_is_derived_from_the_task_id_if_necessary(tmp_path: Path) -> None:
    items = ("webarena_24", "searchqa_51713")
    file = [{"item_id": item, "conversations": [OBSERVATION, REPLY]} for item in items]
    web, search = read_data([write_records(tmp_path / "file.json", file, "agentgym")], score=1)
    assert (web.env, web.task_id, web.split) == ("agentgym/WebArena-v0", "webarena/webarena/24", "test")
    assert (search.task_id, search.split, search.category) == ("searchqa/train/nq/0", "train", "")


def test_replies_repeated_across_contexts_have_loss_only_once() -> None:
    episode = replace(play_episode("react+window:2", 6), env="", task_id="mine_1")
    conversations = list(records([episode], "agentgym"))
    assert len(conversations) > 1
    replies = [message for record in conversations for message in record["conversations"] if message["from"] == "gpt"]
    assert sum(message["loss"] for message in replies) == len(episode.turns) < len(replies)
    cut = replace(episode.turns[0], reply=Reply("Thought: I", "length"))
    (record,) = records([replace(episode, turns=(cut,), stop="length")], "agentgym")
    assert [message["loss"] for message in record["conversations"]] == [None, False, None, False]


def test_functions_are_described_as_text() -> None:
    episode = replace(play_episode("function-call", 1), env="", task_id="mine_1")
    (record,) = records([episode], "agentgym")
    first, acknowledgement, *rest = record["conversations"]
    assert first["value"] == f"{episode.instructions}\n\n{described([ACT.schema])}"
    assert acknowledgement == {"from": "gpt", "loss": False, "value": "OK."}
    assert json.loads(rest[1]["value"])["function_name"] == "act"
    (without_instructions,) = records([replace(episode, instructions="")], "agentgym")
    assert [message["loss"] for message in without_instructions["conversations"]] == [
        message["loss"] for message in record["conversations"]
    ]


def test_item_ids_of_tasks_are_unique(tmp_path: Path) -> None:
    file = [{"item_id": item, "conversations": [OBSERVATION, REPLY]} for item in (*ITEMS, "babyai_123")]
    path = write_records(tmp_path / "file.json", file, "agentgym")
    ids = convert_records("items", tmp_path / "ids.json", path, "--score", "1")
    assert ids == [{"item_id": item} for item in ITEMS]


def test_tasks_without_counterpart_are_rejected_skipped_or_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ("textcraft_3", "alfworld_7", "babyai_123", "babyai_15")
    file = [{"item_id": item, "conversations": [OBSERVATION, REPLY]} for item in ids]
    path = write_records(tmp_path / "file.json", file, "agentgym")
    flags = [str(path), "--score", "1", "--to", "episodes", "--out", str(tmp_path / "out.jsonl")]
    assert convert(flags) == 2
    err = capsys.readouterr().err
    assert "file.json, conversation 1: The goal of AgentGym's task 'textcraft_3' depends on" in err
    assert "--skip" in err and "--keep" in err
    assert not (tmp_path / "out.jsonl").exists()
    assert convert([*flags, "--skip"]) == 0
    out, err = capsys.readouterr()
    assert "holds 1 records; 3 left out" in out
    assert "'alfworld_7' does not belong to an environment" in err and "OpenDoorsOrderN4Debug" in err
    assert [episode.task_id for episode in read_episodes(tmp_path / "out.jsonl")] == ["babyai/train/GoToObjS4/3"]
    assert convert([*flags, "--keep", "--overwrite"]) == 0
    kept = list(read_episodes(tmp_path / "out.jsonl"))
    assert [(episode.env, episode.task_id) for episode in kept] == [
        ("", "textcraft_3"), ("", "alfworld_7"), ("agentgym/BabyAI-v0", "babyai/train/GoToObjS4/3"), ("", "babyai_15"),
    ]  # fmt: skip
    assert convert_records("agentgym", tmp_path / "back.json", tmp_path / "out.jsonl") == file


def test_conversation_without_a_task_has_no_item_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "go"}]
    path = write_records(tmp_path / "ok.jsonl", [{"messages": messages}])
    for to in ("items", "agentgym"):
        flags = [str(path), "--score", "1", "--to", to, "--out", str(tmp_path / "out.json")]
        assert convert(flags) == 2
        assert "'ok.jsonl/1' has no task id of AgentGym, such as babyai_123" in capsys.readouterr().err
        assert convert([*flags, "--skip"]) == 1
        assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"item_id": 7}, "its `item_id` is not a string, but 7"),
        ({"item_id": "babyai_123", "conversations": "x"}, "`conversations` is not a list of messages"),
        ({"item_id": "babyai_123", "conversations": ["x"]}, "message 1 of `conversations` is not a JSON object"),
        ({"item_id": "babyai_123", "conversations": [OBSERVATION | {"from": []}]}, "message 1 has no text as `value`"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--skip",)])
def test_damaged_record_is_rejected_even_with_skip(
    record: dict[str, Any], sentence: str, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_records(tmp_path / "file.json", [{"conversations": [OBSERVATION, REPLY]} | record], "agentgym")
    out = tmp_path / "out.jsonl"
    assert convert([str(path), "--score", "1", "--to", "episodes", "--out", str(out), *flags]) == 2
    assert f"file.json, conversation 1 is not a valid agentgym record: {sentence}" in capsys.readouterr().err


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    file = [{"item_id": "alfworld_7", "conversations": [OBSERVATION | {"value": "half \ud800"}, REPLY]}]
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file))
    (record,) = convert_records("agentgym", tmp_path / "out.json", path, "--score", "1", "--keep")
    assert record["conversations"][0]["value"] == "half ?"


def test_skipped_attempts_at_one_task_are_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempts = [replace(play_episode("react"), env="agentgym/BabyAI-v0", task_id="babyai/train/Other/0")] * 4
    attempts.append(replace(attempts[0], task_id="babyai/test/GoToRedBall/600"))
    episodes_file = write_records(tmp_path / "ours.jsonl", records(attempts, "episodes"), "episodes")
    assert convert([str(episodes_file), "--to", "items", "--skip", "--out", str(tmp_path / "out.json")]) == 1
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.endswith("no task babyai/train/Other/0: Other is not one of its 40 levels. (4 times)")
    assert second.endswith("babyai/test/GoToRedBall/600: all of its tasks are in our training split.")


def test_tasks_without_item_ids_are_rejected_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes_file = write_records(
        tmp_path / "ours.jsonl", records([play_episode("react", goal) for goal in range(8)], "episodes"), "episodes"
    )
    for to in ("agentgym", "items"):
        flags = [str(episodes_file), "--to", to, "--out", str(tmp_path / "out.json")]
        assert convert(flags) == 2
        assert "count/test/0" in capsys.readouterr().err
        assert convert([*flags, "--skip"]) == 1
        err = capsys.readouterr().err
        assert err.count("Left out: 'count/test/") == 5
        assert "Left out: 3 more" in err and "Nothing was left to write" in err
    assert [path.name for path in tmp_path.iterdir()] == ["ours.jsonl"]
