"""Tests of AgentGym's item-id files as lists of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.runs.item_ids import read_items, task_ids
from agentgym_eval.util.errors import UsageError

pytestmark = pytest.mark.quick


def write_items(folder: Path, *ids: str, name: str = "items.json") -> Path:
    path = folder / name
    path.write_text(json.dumps([{"item_id": item} for item in ids]))
    return path


def test_corresponding_tasks_are_played_in_file_order(tmp_path: Path) -> None:
    file = write_items(tmp_path, "babyai_2", "babyai_41", "babyai_0", "babyai_2")
    out = tmp_path / "babyai.jsonl"
    assert collect(["--env", "babyai", "--policy", "oracle", "--items", str(file), "--out", str(out)]) == 0
    ids = ["babyai/train/GoToRedBallNoDists/0", "babyai/train/GoToRedBall/1", "babyai/train/GoToRedBallGrey/0"]
    assert [e.task_id for e in read_episodes(out)] == ids
    folder = tmp_path / "run"
    arguments = ["--env", "babyai", "--policy", "oracle", "--items", str(file), "--out", str(folder)]
    assert evaluate(arguments) == 0
    assert evaluate(arguments) == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["overall"]["success"]["mean"] == 1.0
    assert report["settings"]["items"] == [str(file)]


def test_item_ids_of_several_environments_are_read(tmp_path: Path) -> None:
    files = [
        write_items(tmp_path, "babyai_2", name="a.json"),
        write_items(tmp_path, "sciworld_0", "webarena_24", name="b.json"),
    ]
    assert read_items(files).tasks == {
        "babyai_2": "babyai/train/GoToRedBallNoDists/0",
        "sciworld_0": "sciworld/train/boil/0",
        "webarena_24": "webarena/webarena/24",
    }


def test_items_without_a_task_are_rejected_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_items(tmp_path, "babyai_2", "babyai_15", "babyai_55")
    arguments = ["--env", "babyai", "--policy", "oracle", "--items", str(file), "--out", str(tmp_path / "run")]
    assert evaluate(arguments) == 2
    message = "2 of 3 items correspond to no task: babyai_15, babyai_55. AgentGym's task 'babyai_15' is seed 0 of"
    err = capsys.readouterr().err
    assert message in err
    assert "Leave them out with --skip." in err
    assert not (tmp_path / "run").exists()
    assert evaluate([*arguments, "--skip"]) == 0
    assert f"Left out: {message}" in capsys.readouterr().err
    assert len(list(read_episodes(tmp_path / "run/episodes.jsonl"))) == 1


def test_long_lists_of_items_are_shortened_in_errors(tmp_path: Path) -> None:
    file = write_items(tmp_path, "babyai_2", *(f"alfworld_{i}" for i in range(9)))
    with pytest.raises(
        UsageError, match=r"9 of 10 .*: alfworld_0, .*, alfworld_4 and 4 more\. .*does not belong to an environment"
    ):
        task_ids([file], skip=False)
    assert task_ids([file], skip=True) == ("babyai/train/GoToRedBallNoDists/0",)


def test_item_ids_of_unsupported_environments_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_items(tmp_path, "textcraft_0", "textcraft_1")
    for flags in ([], ["--skip"]):
        command = [
            "--env",
            "textcraft",
            "--policy",
            "oracle",
            "--out",
            str(tmp_path / "x"),
            "--items",
            str(file),
            *flags,
        ]
        assert collect(command) == 2
        err = capsys.readouterr().err
        assert "2 of 2 items correspond to no task: textcraft_0, textcraft_1." in err
        assert "its server's file system" in err
        assert "Choose tasks with --split" in err


def test_items_of_other_environments_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_items(tmp_path, "webarena_24", "webarena_25")
    assert (
        collect(["--env", "textcraft", "--policy", "oracle", "--items", str(file), "--out", str(tmp_path / "x")]) == 2
    )
    err = capsys.readouterr().err
    assert "There is no task 'webarena/webarena/24' among the 551 of this environment" in err
    assert "named tasks don't exist with these --env and --options: webarena/webarena/24, webarena/webarena/25." in err


DEEPLY_NESTED = pytest.param("[" * 100_000, id="deep")


@pytest.mark.parametrize(
    "content", ["", "{", "3", '["babyai_1"]', '[{"id": 3}]', '[{"item_id": 3}]', "\xff", DEEPLY_NESTED]
)
def test_files_that_are_not_item_id_files_are_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=r"items\.json is not an item-id file .*such as \[\{\"item_id\""):
        read_items([path])
    with pytest.raises(UsageError, match="is not an item-id file"):
        read_items([tmp_path / "none.json"])


def test_item_ids_with_invalid_numbers_are_rejected(tmp_path: Path) -> None:
    items = read_items([write_items(tmp_path, "babyai_٣", f"babyai_{'9' * 5_000}", "babyai_3")])
    assert list(items.tasks) == ["babyai_3"]
    assert all("its numbers have at most 9 digits from 0 to 9" in reason for reason in items.refused.values())
    assert len(items.without_tasks) < 400


def test_empty_item_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="They have no items"):
        task_ids([write_items(tmp_path)], skip=True)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text('\ufeff[{"item_id": "babyai_123"}]', encoding="utf-8")
    assert task_ids([path], skip=False) == ("babyai/train/GoToObjS4/3",)
