"""Files that are damaged, mixed or odd: nothing of them is lost without a word, and no traceback is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_eval.cli.convert import convert
from agentgym_eval.data.formats import read_data, records
from agentgym_eval.util.errors import UsageError
from conversions import converted, played, written

pytestmark = pytest.mark.quick


def test_a_value_of_the_wrong_type_is_named_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (good,) = records([played("react")], "episodes")
    for wrong, sentence in (({"score": "high"}, "`score` in Episode is a number or null, not 'high'"), ({}, "")):
        path = tmp_path / "ours.jsonl"
        path.write_text(f"{json.dumps(good)}\n{json.dumps(good | wrong)}\n", encoding="utf-8")
        for to in ("episodes", "trl", "pairs"):
            code = convert([str(path), "--to", to, "--out", str(tmp_path / f"{to}.{bool(wrong)}")])
            err = capsys.readouterr().err
            assert (code, f"{path}, line 2: {sentence}" in err) == ((2, True) if wrong else (int(to == "pairs"), False))


def test_folders_of_both_kinds_of_files_lose_neither(tmp_path: Path) -> None:
    one, two = played("react", 1), played("react", 2)
    (tmp_path / "a.json").write_text(json.dumps(list(records([one, one], "trl"))))
    written(tmp_path / "b.jsonl", records([two], "trl"))
    (tmp_path / "card.json").write_text('{\n"schema": "agentgym.card/1"}')
    assert list(read_data([tmp_path])) == [one, one, two]
    (tmp_path / "c.json").write_text('{"text": "hello"')
    with pytest.raises(UsageError, match=r"c\.json is neither a JSON array nor JSON lines"):
        list(read_data([tmp_path]))


def test_half_a_last_line_is_passed_over_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = played("react").to_json()
    path = tmp_path / "ours.jsonl"
    path.write_text(f"{line}\n{line[:99]}", encoding="utf-8")
    assert len(converted("trl", tmp_path / "trl.jsonl", path)) == 1
    out, err = capsys.readouterr()
    assert f"Left out: {path}, line 2: half a line" in err
    assert "holds 1 records; 1 left out" in out


def test_text_in_parts_and_half_characters_are_read(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Go "}, {"type": "text", "text": "\ud800on."}]
    said = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    path = tmp_path / "parts.jsonl"
    path.write_text(json.dumps({"messages": said, "tools": '[{"name": "\\ud800"}]'}) + "\n")
    (line,) = converted("episodes", tmp_path / "out.jsonl", path, "--score", "1")
    turn = line["turns"][0]
    assert (turn["observation"], turn["reply"]["text"], line["tools"]) == ("Go ?on.", "Go ?on.", [{"name": "?"}])


def test_what_can_be_read_and_is_too_deep_to_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function = f'{{"name": "act", "arguments": {{"far": {"[" * 900}{"]" * 900}}}}}'
    calls = f'{{"role": "assistant", "content": "", "tool_calls": [{{"function": {function}}}]}}'
    line = f'{{"messages": [{{"role": "user", "content": "Go."}}, {calls}], "tools": [{function}]}}\n'
    path = tmp_path / "deep.jsonl"
    path.write_text(line)
    assert convert([str(path), "--score", "1", "--to", "trl", "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "convert: A record in these files is nested too deeply" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
