"""AgentGym's conversations and ids, there and back."""

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
from conversions import TEXT, converted, played, reread, written
from hypothesis import given, settings
from hypothesis import strategies as st

SAID = {"from": "gpt", "loss": True, "value": "Thought: on\nAction: go"}
SHOWN = {"from": "human", "loss": None, "value": "Go."}
ITEMS = ("babyai_123", "sciworld_4135", "webarena_24", "searchqa_3610")


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    said = [
        {"from": speaker, "loss": None if speaker == "human" else draw(st.booleans()), "value": draw(TEXT)}
        for _ in range(draw(st.integers(1, 4)))
        for speaker in ("human", "gpt")
    ]
    return {"item_id": draw(st.sampled_from(ITEMS)), "conversations": said}


@settings(max_examples=20)
@given(st.lists(conversations(), min_size=1, max_size=3))
def test_conversations_come_back_as_they_were_by_way_of_our_episodes_and_trl(
    tmp_path_factory: pytest.TempPathFactory, file: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    episodes = reread(file, "agentgym", folder, score=1)
    assert list(records(episodes, "agentgym")) == file
    assert reread(records(episodes, "trl"), "trl", folder) == episodes
    for episode, record in zip(episodes, file, strict=True):
        assert [turn.loss for turn in episode.turns] == [said["loss"] for said in record["conversations"][1::2]]
        assert sum(turn.reward for turn in episode.turns) == episode.score == 1
    assert len({(episode.task_id, episode.sample) for episode in episodes}) == len(episodes)


def test_a_conversation_becomes_an_episode_of_our_task(tmp_path: Path) -> None:
    agreed = {"from": "gpt", "loss": False, "value": "OK. I'll follow your instructions."}
    told = {"from": "human", "loss": None, "value": "You are in a house."}
    said = [told, agreed, SHOWN, SAID, SHOWN, SAID | {"loss": False}, SHOWN]
    path = written(tmp_path / "babyai_train.json", [{"item_id": "babyai_123", "conversations": said}] * 2, "agentgym")
    first, second = read_data([path], score=1)
    assert (first.env, first.task_id) == ("agentgym/BabyAI-v0", "babyai/train/GoToObjS4/3")
    assert (first.split, first.category, first.difficulty) == ("train", "GoTo", 3)
    assert [(turn.kind, turn.loss) for turn in first.turns] == [("talk", False), ("act", True), ("act", False)]
    assert (first.acts, first.final_observation, first.instructions) == (2, "Go.", "")
    assert (first.sample, second.sample) == (0, 1)


def test_tasks_that_a_world_does_not_know_by_itself_have_the_split_of_their_id(tmp_path: Path) -> None:
    items = ("webarena_24", "searchqa_51713")
    file = [{"item_id": item, "conversations": [SHOWN, SAID]} for item in items]
    web, search = read_data([written(tmp_path / "file.json", file, "agentgym")], score=1)
    assert (web.env, web.task_id, web.split) == ("agentgym/WebArena-v0", "webarena/webarena/24", "test")
    assert (search.task_id, search.split, search.category) == ("searchqa/train/nq/0", "train", "")


def test_what_was_said_in_an_earlier_context_is_not_learned_twice() -> None:
    episode = replace(played("react+window:2", 6), env="", task_id="mine_1")
    found = list(records([episode], "agentgym"))
    assert len(found) > 1
    said = [message for record in found for message in record["conversations"] if message["from"] == "gpt"]
    assert sum(message["loss"] for message in said) == len(episode.turns) < len(said)
    cut = replace(episode.turns[0], reply=Reply("Thought: I", "length"))
    (record,) = records([replace(episode, turns=(cut,), stop="length")], "agentgym")
    assert [message["loss"] for message in record["conversations"]] == [None, False, None, False]


def test_functions_are_described_to_the_agentgym_in_words() -> None:
    episode = replace(played("function-call", 1), env="", task_id="mine_1")
    (record,) = records([episode], "agentgym")
    first, agreed, *rest = record["conversations"]
    assert first["value"] == f"{episode.instructions}\n\n{described([ACT.schema])}"
    assert agreed == {"from": "gpt", "loss": False, "value": "OK."}
    assert json.loads(rest[1]["value"])["function_name"] == "act"
    (bare,) = records([replace(episode, instructions="")], "agentgym")
    assert [said["loss"] for said in bare["conversations"]] == [said["loss"] for said in record["conversations"]]


def test_ids_are_those_of_the_tasks_each_once(tmp_path: Path) -> None:
    file = [{"item_id": item, "conversations": [SHOWN, SAID]} for item in (*ITEMS, "babyai_123")]
    path = written(tmp_path / "file.json", file, "agentgym")
    found = converted("items", tmp_path / "ids.json", path, "--score", "1")
    assert found == [{"item_id": item} for item in ITEMS]


def test_tasks_without_a_counterpart_are_refused_left_out_or_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ("textcraft_3", "alfworld_7", "babyai_123", "babyai_15")
    file = [{"item_id": item, "conversations": [SHOWN, SAID]} for item in ids]
    path = written(tmp_path / "file.json", file, "agentgym")
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
    assert converted("agentgym", tmp_path / "back.json", tmp_path / "out.jsonl") == file


def test_a_conversation_about_no_task_gets_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "go"}]
    path = written(tmp_path / "ok.jsonl", [{"messages": said}])
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
        ({"item_id": "babyai_123", "conversations": [SHOWN | {"from": []}]}, "message 1 has no text as `value`"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--skip",)])
def test_a_damaged_record_is_refused_even_where_others_are_left_out(
    record: dict[str, Any], sentence: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "file.json", [{"conversations": [SHOWN, SAID]} | record], "agentgym")
    out = tmp_path / "out.jsonl"
    assert convert([str(path), "--score", "1", "--to", "episodes", "--out", str(out), *more]) == 2
    assert f"file.json, conversation 1 is not a valid agentgym record: {sentence}" in capsys.readouterr().err


def test_half_a_character_becomes_one_that_can_be_written(tmp_path: Path) -> None:
    file = [{"item_id": "alfworld_7", "conversations": [SHOWN | {"value": "half \ud800"}, SAID]}]
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file))
    (back,) = converted("agentgym", tmp_path / "out.json", path, "--score", "1", "--keep")
    assert back["conversations"][0]["value"] == "half ?"


def test_attempts_at_one_task_are_one_reason_to_leave_them_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = [replace(played("react"), env="agentgym/BabyAI-v0", task_id="babyai/train/Other/0")] * 4
    attempts.append(replace(attempts[0], task_id="babyai/test/GoToRedBall/600"))
    ours = written(tmp_path / "ours.jsonl", records(attempts, "episodes"), "episodes")
    assert convert([str(ours), "--to", "items", "--skip", "--out", str(tmp_path / "out.json")]) == 1
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.endswith("no task babyai/train/Other/0: Other is not one of its 40 levels. (4 times)")
    assert second.endswith("babyai/test/GoToRedBall/600: all of its tasks are in our training split.")


def test_our_tasks_that_the_agentgym_lacks_are_refused_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = written(
        tmp_path / "ours.jsonl", records([played("react", goal) for goal in range(8)], "episodes"), "episodes"
    )
    for to in ("agentgym", "items"):
        flags = [str(ours), "--to", to, "--out", str(tmp_path / "out.json")]
        assert convert(flags) == 2
        assert "count/test/0" in capsys.readouterr().err
        assert convert([*flags, "--skip"]) == 1
        err = capsys.readouterr().err
        assert err.count("Left out: 'count/test/") == 5
        assert "Left out: 3 more" in err and "Nothing was left to write" in err
    assert [path.name for path in tmp_path.iterdir()] == ["ours.jsonl"]
