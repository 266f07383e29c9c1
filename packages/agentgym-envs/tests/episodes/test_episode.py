"""Tests of episodes on disk: they round-trip, and damaged lines are skipped or reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, Reply, Sample, TokenUsage, Turn, read_episodes
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 2**17), max_size=4).map(tuple)
SAMPLES = IDS.flatmap(
    lambda ids: st.builds(
        Sample,
        prompt=IDS,
        ids=st.just(ids),
        logprobs=st.lists(NUMBER, max_size=4).map(tuple),
        version=st.integers(0),
        fresh=st.booleans(),
        versions=st.just(()) | st.tuples(*[st.integers(0)] * len(ids)),
    )
)
USAGES = st.builds(TokenUsage, st.integers(0), st.integers(0), st.none() | st.integers(0))
REPLIES = st.builds(
    Reply,
    TEXT,
    st.sampled_from(["stop", "length"]),
    st.none() | SAMPLES,
    st.none() | USAGES,
    st.none() | NUMBER,
    st.none() | TEXT,
    st.none() | TEXT,
    st.booleans(),
)
TURNS = st.builds(Turn, TEXT, REPLIES, st.none() | TEXT, st.booleans(), NUMBER, TEXT)
EPISODES = st.builds(
    lambda outcome, **fields: Episode(**outcome, **fields),
    st.fixed_dictionaries(
        {
            "stop": st.sampled_from(["terminated", "truncated", "length"]),
            "score": st.floats(0, 1),
            "success": st.booleans(),
        }
    )
    | st.just({"stop": "failed", "score": None, "success": None}),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    difficulty=st.integers(),
    sample=st.integers(0),
    error=st.none() | TEXT,
    seconds=st.dictionaries(TEXT, NUMBER, max_size=2),
    **dict.fromkeys(["env", "task_id", "split", "category", "policy", "instructions", "final_observation"], TEXT),
)
EPISODE = Episode(
    env="door/Door-v0",
    task_id="door/train/1",
    split="train",
    category="knocks-1",
    difficulty=1,
    policy="scripted",
    sample=0,
    instructions="Knock.",
    turns=(Turn("Knock 1 times.", Reply("knock", sample=Sample((1, 2), (3,), (-0.5,))), "knock", True, 0.5, "a"),),
    final_observation="You knocked 1 times.",
    stop="truncated",
    score=0.5,
    success=False,
)


@given(EPISODES)
def test_json_round_trip(episode: Episode) -> None:
    line = episode.to_json()
    assert "\n" not in line
    assert Episode.from_json(line) == episode


def test_optional_reply_fields_are_written_if_known() -> None:
    plain = Reply("knock")
    assert plain.to_dict() == {"text": "knock", "finish": "stop", "sample": None}  # the format of older files
    assert Reply.from_dict(plain.to_dict()) == plain
    full = Reply("knock", usage=TokenUsage(10, 3), seconds=1.5, finish_reason="tool_calls", reasoning="It is a door.")
    assert Reply("knock", noise=True).to_dict() == plain.to_dict() | {"noise": True}
    assert Reply("knock", expert=True).to_dict() == plain.to_dict() | {"expert": True}
    assert Reply.from_dict(Reply("knock", expert=True).to_dict()) == Reply("knock", expert=True)
    labeled = Reply("knock", label="enter", label_error="")
    assert labeled.to_dict() == plain.to_dict() | {"label": "enter", "label_error": ""}
    assert Reply.from_dict(labeled.to_dict()) == labeled
    turn = replace(EPISODE.turns[0], reply=full)
    record = json.loads(replace(EPISODE, turns=(turn,)).to_json())["turns"][0]["reply"]
    assert record["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": None}
    assert (record["seconds"], record["finish_reason"], record["reasoning"]) == (1.5, "tool_calls", "It is a door.")


def test_token_versions_are_written_if_they_differ() -> None:
    same, mixed = Sample((1,), (2, 3), (-0.5, -0.5), 4), Sample((1,), (2, 3), (-0.5, -0.5), 4, versions=(4, 5))
    assert "versions" not in same.to_dict()
    assert mixed.to_dict()["versions"] == (4, 5)
    assert (same.token_versions, mixed.token_versions) == ((4, 4), (4, 5))


def changed(path: list[Any], value: Any) -> str:
    """Return the line of `EPISODE` with the value at `path` replaced, or removed if it is None."""
    record = inner = json.loads(EPISODE.to_json())
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (changed(["schema"], "agentgym.episode/99"), "agentgym.episode/2, but of 'agentgym.episode/99'"),
        (changed(["schema"], None), "but of None"),
        ("[1, 2]", "but of None"),
        (changed(["stop"], "bored"), "'bored' is not a stop reason; there are terminated, truncated, length, failed"),
        (changed(["score"], None), r"Episode of .* lacks \['score'\]"),
        (changed(["mood"], "good"), r"unknown \['mood'\]"),
        (changed(["turns", 0, "action"], None), r"Turn of .* lacks \['action'\]"),
        (changed(["turns", 0, "reply", "finish"], None), r"Reply of .* lacks \['finish'\]"),
        (changed(["turns", 0, "reply", "sample", "ids"], None), r"Sample of .* lacks \['ids'\]"),
        ("{", "Expecting"),
        (changed(["score"], "high"), "`score` in Episode is a number or null, not 'high'"),
        (changed(["score"], True), "`score` in Episode is a number or null, not True"),
        (changed(["score"], float("nan")), "`score` in Episode is a number or null, not nan"),
        (EPISODE.to_json().replace('"score":0.5', '"score":null'), "`score` and `success` can be null only"),
        (EPISODE.to_json().replace('"score":0.5', '"score":-1'), r"`score` is -1, and not in \[0, 1\]"),
        (changed(["success"], 1), "`success` in Episode is true, false or null, not 1"),
        (changed(["task_id"], 7), "`task_id` in Episode is text, not 7"),
        (changed(["stop"], []), r"`stop` in Episode is text, not \[\]"),
        (changed(["seconds"], {"world": "long"}), "Each of `seconds` is a number"),
        (changed(["tools"], ["act"]), "Each of `tools` is a JSON object"),
        (changed(["turns"], {}), "`turns` in Episode is a list"),
        (changed(["turns", 0], "knock"), "A Turn is a JSON object, not 'knock'"),
        (changed(["turns", 0, "kind"], "dance"), "'dance' is not a kind of turn; there are act, plan"),
        (changed(["turns", 0, "reward"], float("inf")), "`reward` in Turn is a number, not inf"),
        (changed(["turns", 0, "reward"], 10**400), "`reward` in Turn is a number, not 1000"),
        (changed(["seconds"], {"world": 10**400}), "Each of `seconds` is a number"),
        (changed(["turns", 0, "action"], 5), "`action` in Turn is text or null, not 5"),
        (changed(["turns", 0, "reply"], "knock"), "`reply` in Turn is a JSON object"),
        (changed(["turns", 0, "reply", "text"], 5), "`text` in Reply is text, not 5"),
        (changed(["turns", 0, "reply", "finish"], "later"), "`finish` in Reply must be stop or length, not 'later'"),
        (changed(["turns", 0, "reply", "sample"], 3), "`sample` in Reply is a JSON object or null, not 3"),
        (changed(["turns", 0, "reply", "usage"], 3), "`usage` in Reply is a JSON object or null, not 3"),
        (
            changed(["turns", 0, "reply", "usage"], {"prompt_tokens": 1}),
            r"lacks \['cached_tokens', 'completion_tokens'\]",
        ),
        (changed(["turns", 0, "reply", "seconds"], "1"), "`seconds` in Reply is a number or null, not '1'"),
        (changed(["turns", 0, "reply", "reasoning"], 1), "`reasoning` in Reply is text or null, not 1"),
        (changed(["turns", 0, "reply", "mood"], "good"), r"Reply of .* unknown \['mood'\]"),
        (changed(["turns", 0, "reply", "sample", "ids"], ["a"]), "Each of `ids` is a whole number"),
        (changed(["turns", 0, "reply", "sample", "logprobs"], [None]), "Each of `logprobs` is a number"),
        (changed(["turns", 0, "reply", "sample", "versions"], ["a"]), "Each of `versions` is a whole number"),
        (
            changed(["turns", 0, "reply", "sample", "versions"], [1, 2]),
            "`versions` in Sample has 2 numbers for 1 `ids`",
        ),
        ('{"schema": "agentgym.episode/1", "turns": ["knock"]}', "Each of `turns` is a JSON object"),
        ('{"schema": "agentgym.episode/1"}', "lacks .*'turns'"),
        ('{"schema": "agentgym.episode/1", "turns": 3}', "lacks"),
        pytest.param("[" * 100_000, "nested too deep", id="deep"),
        pytest.param(f'{{"score": {"9" * 5_000}}}', "a number of too many digits", id="long"),
    ],
)
def test_invalid_lines_are_rejected(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Episode.from_json(line)


def test_file_round_trip(tmp_path: Path) -> None:
    episodes = [replace(EPISODE, sample=i, final_observation="a\nb\u2028c\rd") for i in range(3)]
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(episode.to_json() + "\n" for episode in episodes), encoding="utf-8", newline="\n")
    assert list(read_episodes(path)) == episodes


@pytest.mark.parametrize("end", [1, 100, -2, -1])
def test_truncated_last_line_is_skipped(tmp_path: Path, end: int) -> None:
    line = EPISODE.to_json()
    path = tmp_path / "episodes.jsonl"
    path.write_text(f"{line}\n{line[:end]}", encoding="utf-8")
    assert list(read_episodes(str(path))) == [EPISODE]


def test_truncated_last_line_is_reported_to_the_callback(tmp_path: Path) -> None:
    path, messages = tmp_path / "episodes.jsonl", list[str]()
    path.write_text(f"{EPISODE.to_json()}\n{EPISODE.to_json()[:50]}", encoding="utf-8")
    assert list(read_episodes(path, half=messages.append)) == [EPISODE]
    assert messages == [f"{path}, line 2: half a line"]


def test_lone_surrogates_in_json_are_replaced() -> None:
    record = json.loads(EPISODE.to_json()) | {"error": "half \ud800 of one", "tools": [{"\udc00": ["\U0001f511"]}]}
    episode = Episode.from_json(json.dumps(record))
    assert (episode.error, episode.tools) == ("half ? of one", ({"?": ["\U0001f511"]},))
    assert Episode.from_json(episode.to_json().encode().decode()) == episode


def test_lone_surrogates_of_a_policy_are_written_as_question_marks(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    turn = Turn("o", Reply("half \ud83e"), "half \ud83e", True, 0.0, "s")
    path.write_text(replace(EPISODE, turns=(turn,)).to_json(), encoding="utf-8")
    (read,) = read_episodes(path)
    assert (read.turns[0].reply.text, read.turns[0].action) == ("half ?", "half ?")


def test_last_line_truncated_within_a_character_is_skipped(tmp_path: Path) -> None:
    line = replace(EPISODE, error="é").to_json().encode()
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(line + b"\n" + line[: line.index("é".encode()) + 1])
    assert len(list(read_episodes(path))) == 1


def test_bom_crlf_and_missing_final_newline_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(f"\ufeff{EPISODE.to_json()}\r\n{EPISODE.to_json()}", encoding="utf-8", newline="")
    assert list(read_episodes(path)) == [EPISODE, EPISODE]


def test_complete_last_line_of_another_schema_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(f'{EPISODE.to_json()}\n{{"schema": "diary"}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line 2: "):
        list(read_episodes(path))


def test_damaged_line_in_the_middle_is_reported(tmp_path: Path) -> None:
    line = EPISODE.to_json() + "\n"
    path = tmp_path / "episodes.jsonl"
    path.write_text(line + line[:100] + "\n" + line, encoding="utf-8")
    episodes = read_episodes(path)
    assert next(episodes) == EPISODE
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line 2: "):
        next(episodes)


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_episodes(tmp_path / "none.jsonl"))
