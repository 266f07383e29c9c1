"""Tests of converting episodes to other formats and back, TRL's in particular."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, Reply, Sample, Turn, read_episodes
from agentgym_envs.core.action_schema import ACT
from agentgym_eval.cli.convert import convert
from agentgym_eval.data import formats
from agentgym_eval.data.formats import read_data, records
from agentgym_eval.metrics.failure_causes import episode_key
from agentgym_eval.storage.annotations import Annotation, add_annotation
from agentgym_eval.storage.distances import write_distances
from agentgym_eval.util.errors import UsageError
from conversions import TEXT, convert_records, play_episode, write_and_read, write_records
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_runs import write_training_run

AGENTS = ("react", "bare+plan:2", "tags+window:4+plan", "react+reflect:2+retry:1", "function-call+window:2")


@pytest.mark.parametrize("agent", AGENTS)
def test_episodes_of_every_agent_round_trip_through_trl(agent: str, tmp_path: Path) -> None:
    episodes = [play_episode(agent, goal) for goal in (0, 6)]
    episodes_file = write_records(tmp_path / "ours.jsonl", records(episodes, "episodes"), "episodes")
    assert list(read_data([episodes_file])) == episodes
    lines = convert_records("trl", tmp_path / "trl.jsonl", episodes_file)
    assert len(lines) > 2 if "window" in agent or "retry" in agent else len(lines) == 2
    for line in lines:
        roles = [message["role"] for message in line["messages"]]
        assert (roles[0], roles[-1]) == ("system", "assistant")
        assert {"user", "tool"}.isdisjoint(roles[2::2])
    back = tmp_path / "back.jsonl"
    convert_records("episodes", back, tmp_path / "trl.jsonl")
    assert list(read_episodes(back)) == episodes
    assert back.read_bytes() == episodes_file.read_bytes()


def test_function_calls_follow_the_chat_template_schema() -> None:
    (line,) = records([play_episode("function-call", 1)], "trl")
    assert json.loads(line["tools"]) == [ACT.schema]
    assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    (call,) = line["messages"][2]["tool_calls"]
    assert call["function"] == {"name": "act", "arguments": {"action": "add"}}
    assert line["messages"][3]["tool_call_id"] == call["id"]


SAMPLES = st.none() | st.builds(
    Sample,
    prompt=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ids=st.just((1, 2)),
    logprobs=st.just((-0.5, -1.25)),
    version=st.integers(0, 3),
    fresh=st.booleans(),
)
TURNS = st.builds(
    Turn,
    observation=TEXT,
    reply=st.builds(Reply, text=TEXT, finish=st.just("stop"), sample=SAMPLES),
    action=st.none() | TEXT,
    valid=st.booleans(),
    reward=st.floats(-1, 1),
    state_key=TEXT,
    loss=st.booleans(),
)
EPISODES = st.builds(
    Episode,
    env=TEXT,
    task_id=TEXT,
    split=st.sampled_from(["train", "dev", "test"]),
    category=TEXT,
    difficulty=st.integers(0, 9),
    policy=TEXT,
    sample=st.integers(0, 9),
    instructions=TEXT,
    turns=st.lists(TURNS, min_size=1, max_size=4).map(tuple),
    final_observation=TEXT,
    stop=st.sampled_from(["terminated", "truncated", "length"]),
    score=st.floats(0, 1),
    success=st.booleans(),
    seconds=st.dictionaries(st.sampled_from(["world", "policy"]), st.floats(0, 9)),
    agent=st.sampled_from(["", "react", "bare"]),
)


@settings(max_examples=20)
@given(st.lists(EPISODES, min_size=1, max_size=3))
def test_arbitrary_episodes_round_trip_through_trl(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    lines = list(records(episodes, "trl"))
    for line, episode in zip(lines, episodes, strict=True):
        replies = [message["content"] for message in line["messages"] if message["role"] == "assistant"]
        assert replies == [turn.reply.text for turn in episode.turns]
        observations = [message["content"] for message in line["messages"] if message["role"] == "user"]
        assert observations == [turn.observation for turn in episode.turns]
    assert write_and_read(lines, "trl", folder) == episodes


@pytest.mark.long
def test_datasets_loads_and_writes_trl_records_without_loss(tmp_path: Path) -> None:
    import datasets

    episodes = [play_episode("function-call", 1), play_episode("react", 2)]
    other_call = replace(episodes[0].turns[0], reply=Reply('{"function_name": "other", "arguments": {"far": [1]}}'))
    episodes.append(replace(episodes[0], turns=(other_call, *episodes[0].turns[1:])))
    path = write_records(tmp_path / "trl.jsonl", records(episodes, "trl"))
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    loaded.to_json(tmp_path / "again.jsonl")
    assert list(read_data([tmp_path / "again.jsonl"])) == episodes


def test_edited_messages_are_rejected_unless_our_column_is_removed(tmp_path: Path) -> None:
    (line,) = records([play_episode("react", 1)], "trl")
    line["messages"][2]["content"] = "Thought: another one\nAction: add"
    changed = write_records(tmp_path / "changed.jsonl", [line])
    with pytest.raises(UsageError, match=r"changed\.jsonl, conversation 1 .*its messages don't match"):
        list(read_data([changed]))
    del line["agentgym"]
    with pytest.raises(UsageError, match=r"no score\. .*--score 1"):
        list(read_data([write_records(changed, [line])]))
    (episode,) = read_data([write_records(changed, [line])], score=0.5)
    assert (episode.env, episode.task_id, episode.score, episode.success) == ("", "changed.jsonl/1", 0.5, False)
    assert episode.turns[0].reply.text == "Thought: another one\nAction: add"
    assert [turn.reward for turn in episode.turns] == [0.0, 0.5]


def test_foreign_function_calls_are_read(tmp_path: Path) -> None:
    (line,) = records([play_episode("function-call", 1)], "trl")
    del line["agentgym"]
    (episode,) = read_data([write_records(tmp_path / "calls.jsonl", [line])], score=1)
    assert (episode.agent, episode.tools) == ("function-call", (ACT.schema,))
    assert [turn.reply for turn in episode.turns] == [turn.reply for turn in play_episode("function-call", 1).turns]
    (again,) = records([episode], "trl")
    assert again["messages"] == line["messages"]


def test_failed_episodes_are_not_exported_to_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = play_episode("react")
    failed = replace(good, stop="failed", score=None, success=None, error="EnvFault: jammed")
    episodes_file = write_records(tmp_path / "ours.jsonl", records([good, failed], "episodes"), "episodes")
    assert len(convert_records("episodes", tmp_path / "again.jsonl", episodes_file)) == 2
    assert len(convert_records("trl", tmp_path / "trl.jsonl", episodes_file)) == 1
    assert "holds 1 records; 1 left out" in capsys.readouterr().out


def test_files_and_folders_of_all_formats_are_read_in_order(tmp_path: Path) -> None:
    first, second = play_episode("react", 1), play_episode("react", 2)
    (tmp_path / "count").mkdir()
    write_records(tmp_path / "count/train.jsonl", records([first], "episodes"), "episodes")
    write_distances(tmp_path / "count/train.jsonl", {(first.env, first.task_id, 0): (1, 2)})
    write_records(tmp_path / "trl.jsonl", records([second], "trl"))
    assert list(read_data([tmp_path])) == [first, second]
    (tmp_path / "run").mkdir()
    write_records(tmp_path / "run/episodes.jsonl", records([second], "episodes"), "episodes")
    (tmp_path / "run/metrics.jsonl").write_text("{}\n")
    assert list(read_data(str(tmp_path / "run"))) == [second]
    array = tmp_path / "array.json"
    array.write_text("\ufeff  " + json.dumps(list(records([first, second], "trl"))), encoding="utf-8")
    assert list(read_data([tmp_path / "run", str(array)])) == [second, first, second]


def test_rollouts_of_training_runs_are_read_and_no_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_training_run(tmp_path / "runs/mine", 2, with_test=True)
    (run / "model").mkdir()
    (run / "model/config.json").write_text('{"messages": []}')  # looks like a record
    assert {episode.task_id for episode in read_data(run)} == {"t/9"}
    assert len(list(read_data(run))) == len(list(read_data(run / "rollouts"))) == 8
    other = tmp_path / "runs/other.jsonl"
    write_records(other, records([play_episode("react")], "episodes"), "episodes")
    lines = convert_records("episodes", tmp_path / "all.jsonl", tmp_path / "runs")
    assert [line["task_id"] for line in lines] == ["t/9"] * 8 + ["count/test/4"]
    assert f"only the rollouts were read, not the evaluations: {run}\n" in capsys.readouterr().err
    assert {episode.task_id for episode in read_data(run / "evaluations")} > {"t/0", "test/0"}
    with pytest.raises(UsageError, match=r"1\.tokens\.jsonl holds no episodes: its schema is agentgym\.tokens/2"):
        list(read_data(run / "rollouts/step-000001.tokens.jsonl"))
    shutil.rmtree(run / "rollouts")
    with pytest.raises(UsageError, match=r"run \S+mine has no rollouts, .* of their files: \S+step-000000-sampled"):
        list(read_data(run))


@pytest.mark.parametrize("to", ["episodes", "trl"])
def test_folder_of_json_arrays_is_read_in_order(to: str, tmp_path: Path) -> None:
    first, second = play_episode("react", 1), play_episode("react", 2)
    for name, episode in (("b.json", second), ("a.json", first)):
        (tmp_path / name).write_text(json.dumps(list(records([episode, episode], to))))
    assert list(read_data([tmp_path])) == [first, first, second, second]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no records"),
        (
            '[{"item_id": "babyai_1"}]',
            r"has task ids, but no conversations. To play the tasks, run: uv run collect --items \S+file",
        ),
        ('[{"item_id": "babyai_1", "conversations": []}]', "has task ids, but no conversations"),
        ('{"text": "hello"}\n', r"no known format: .*`schema` \(episodes\), `messages` \(trl\), `conversations`"),
        ('{"messages": [', "neither a JSON array nor JSON lines: line 1"),
        ("[3]", "record 1 is not a JSON object"),
        ('{"messages": []}\n', "conversation 1 .*it has no reply"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', "it has no reply"),
        (
            '{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "a"}]}\n',
            "message 1 has the role",
        ),
        ('{"messages": [{"role": "user", "content": [1]}]}\n', "message 1 is not text"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "critic", "content": "a"}]}\n',
            "message 2 is no",
        ),
        ('{"messages": 3}\n', "conversation 1 is not a valid trl record: `messages` is not a list"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]}\n{"text": "x"}\n',
            "conversation 2 is not a valid trl record: it has no 'messages'",
        ),
        ('{"messages": ["x"]}\n', "message 1 of `messages` is not a JSON object"),
        ('{"messages": [{"role": [], "content": "a"}]}\n', "message 1 is not text"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}\n', "message 1 is not text"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{}]}]}\n', "`tool_calls` of message 1 don't follow the"),
        ('{"messages": [], "tools": [3]}\n', "`tools` is not a list of JSON objects"),
        pytest.param("[" * 100_000, "nested too deep", id="deep array"),
        pytest.param('{"messages": ' + "[" * 100_000 + "\n", "nested too deep", id="deep line"),
        (
            '{"item_id": "babyai_1", "conversations": [{"from": "system", "value": "a"}]}\n',
            "its `from` is neither human nor",
        ),
        ('{"schema": "agentgym.episode/9"}\n', "not a line of schema"),
        (
            '{"messages": [], "agentgym": "{}"}\n',
            "`agentgym` is damaged: it lacks episode, part, sha256",
        ),
        ('{"messages": [], "agentgym": 3}\n', "`agentgym` is damaged"),
        ('{"messages": [], "agentgym": "{"}\n', "conversation 1 is not a valid trl"),
    ],
)
def test_invalid_files_are_rejected_with_path_and_reason(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=sentence) as error:
        list(read_data([path], score=1))
    assert str(path) in str(error.value)


def test_missing_files_are_a_one_sentence_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file or folder .*nowhere"):
        list(read_data([tmp_path / "nowhere"]))
    with pytest.raises(UsageError, match=r"no \.jsonl or \.json file of episodes in the folder"):
        list(read_data([tmp_path]))
    with pytest.raises(UsageError, match="between 0 and 1, not 2"):
        list(read_data([], score=2))


def test_turns_inconsistent_with_the_agent_are_a_one_sentence_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inconsistent = replace(play_episode("react+plan"), agent="react")
    episodes_file = write_records(tmp_path / "ours.jsonl", records([inconsistent], "episodes"), "episodes")
    assert convert([str(episodes_file), "--to", "trl", "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "Turn 0 of count/test/4" in capsys.readouterr().err


def test_ctrl_c_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(formats, "records", interrupt)
    assert convert([str(tmp_path), "--to", "trl", "--out", str(tmp_path / "out.jsonl")]) == 130
    assert "Nothing was written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_files_are_not_overwritten_and_invalid_flags_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes_file = write_records(tmp_path / "ours.jsonl", records([play_episode("react")], "episodes"), "episodes")
    precious = tmp_path / "precious.jsonl"
    precious.write_text("precious\n")
    flags = [str(episodes_file), "--to", "trl", "--out", str(precious)]
    assert convert(flags) == 2
    assert "exists already" in capsys.readouterr().err
    assert precious.read_text() == "precious\n"
    assert convert([*flags, "--overwrite"]) == 0
    assert convert([*flags[:-1], str(episodes_file / "below" / "file")]) == 2
    assert "can't be written" in capsys.readouterr().err
    for invalid_flags, sentence in (
        (["--score", "3"], "--score must be between 0 and 1, not 3"),
        (["--skip", "--keep"], "--skip and --keep exclude each other"),
    ):
        with pytest.raises(SystemExit) as end:
            convert([*flags, *invalid_flags])
        assert end.value.code == 2
        assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_only_episodes_with_a_label_are_converted(tmp_path: Path) -> None:
    episodes = [play_episode("react", goal) for goal in range(3)]
    (tmp_path / "in").mkdir()
    file = write_records(tmp_path / "in/ours.jsonl", records(episodes, "episodes"), "episodes")
    write_records(tmp_path / "in/unlabelled.jsonl", records(episodes, "episodes"), "episodes")
    good = Annotation.of(["good"], "")
    add_annotation(file, 1, episode_key(episodes[1]), good)
    add_annotation(file, 2, (episodes[2].env, "another/task", 0), good)  # of the file's earlier content
    arguments = [str(tmp_path / "in"), "--to", "episodes", "--out", str(tmp_path / "out.jsonl")]
    assert convert([*arguments, "--label", "good"]) == 0
    assert list(read_episodes(tmp_path / "out.jsonl")) == [episodes[1]]
    assert convert([*arguments, "--overwrite", "--label", "unknown"]) == 1
    assert convert([*arguments, "--overwrite"]) == 0  # the file of annotations isn't read as episodes
    assert len(list(read_episodes(tmp_path / "out.jsonl"))) == 6
