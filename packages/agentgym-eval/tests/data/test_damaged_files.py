"""Tests that damaged and mixed files lose nothing silently and show no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_eval.cli.convert import convert
from agentgym_eval.data.formats import read_data, records
from agentgym_eval.util.errors import UsageError
from conversions import convert_records, play_episode, write_records

pytestmark = pytest.mark.quick


def test_values_of_the_wrong_type_are_reported_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (good,) = records([play_episode("react")], "episodes")
    for changes, sentence in (({"score": "high"}, "`score` in Episode is a number or null, not 'high'"), ({}, "")):
        path = tmp_path / "ours.jsonl"
        path.write_text(f"{json.dumps(good)}\n{json.dumps(good | changes)}\n", encoding="utf-8")
        for to in ("episodes", "trl", "pairs"):
            code = convert([str(path), "--to", to, "--out", str(tmp_path / f"{to}.{bool(changes)}")])
            err = capsys.readouterr().err
            assert (code, f"{path}, line 2: {sentence}" in err) == (
                (2, True) if changes else (int(to == "pairs"), False)
            )


def test_folders_with_json_and_json_lines_are_read_completely(tmp_path: Path) -> None:
    first, second = play_episode("react", 1), play_episode("react", 2)
    (tmp_path / "a.json").write_text(json.dumps(list(records([first, first], "trl"))))
    write_records(tmp_path / "b.jsonl", records([second], "trl"))
    (tmp_path / "card.json").write_text('{\n"schema": "agentgym.card/1"}')
    assert list(read_data([tmp_path])) == [first, first, second]
    (tmp_path / "c.json").write_text('{"text": "hello"')
    with pytest.raises(UsageError, match=r"c\.json is neither a JSON array nor JSON lines"):
        list(read_data([tmp_path]))


def test_incomplete_last_line_is_skipped_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = play_episode("react").to_json()
    path = tmp_path / "ours.jsonl"
    path.write_text(f"{line}\n{line[:99]}", encoding="utf-8")
    assert len(convert_records("trl", tmp_path / "trl.jsonl", path)) == 1
    out, err = capsys.readouterr()
    assert f"Left out: {path}, line 2: half a line" in err
    assert "holds 1 records; 1 left out" in out


@pytest.mark.parametrize("left", [0, 99])
def test_runs_that_were_killed_in_their_first_episode_dont_hide_the_others(
    left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = play_episode("react").to_json()
    played, begun = (tmp_path / "runs" / name / "episodes.jsonl" for name in ("a", "b"))
    for file, content in ((played, f"{line}\n"), (begun, line[:left])):
        file.parent.mkdir(parents=True)
        file.write_text(content, encoding="utf-8")
    assert len(convert_records("trl", tmp_path / "trl.jsonl", tmp_path / "runs")) == 1
    assert (f"Left out: {begun}, line 1: half a line" in capsys.readouterr().err) == (left > 0)


def test_text_parts_and_lone_surrogates_are_read(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Go "}, {"type": "text", "text": "\ud800on."}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    path = tmp_path / "parts.jsonl"
    path.write_text(json.dumps({"messages": messages, "tools": '[{"name": "\\ud800"}]'}) + "\n")
    (line,) = convert_records("episodes", tmp_path / "out.jsonl", path, "--score", "1")
    turn = line["turns"][0]
    assert (turn["observation"], turn["reply"]["text"], line["tools"]) == ("Go ?on.", "Go ?on.", [{"name": "?"}])


def test_too_deeply_nested_record_is_a_one_sentence_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function = f'{{"name": "act", "arguments": {{"far": {"[" * 900}{"]" * 900}}}}}'
    calls = f'{{"role": "assistant", "content": "", "tool_calls": [{{"function": {function}}}]}}'
    line = f'{{"messages": [{{"role": "user", "content": "Go."}}, {calls}], "tools": [{function}]}}\n'
    path = tmp_path / "deep.jsonl"
    path.write_text(line)
    assert convert([str(path), "--score", "1", "--to", "trl", "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "convert: A record in these files is nested too deeply" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
