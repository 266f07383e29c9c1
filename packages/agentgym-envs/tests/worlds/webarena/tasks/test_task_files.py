"""Tests of reading task files: formats, defaults, and messages about invalid tasks."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.tasks.task_files import ENV_ID, read_tasks, start_urls, task_of

pytestmark = pytest.mark.quick

TASK: dict[str, Any] = {
    "sites": ["shopping"],
    "task_id": 7,
    "require_login": True,
    "storage_state": "./.auth/shopping_state.json",
    "start_url": "__SHOPPING__",
    "geolocation": None,
    "intent_template": "Buy {{x}}",
    "instantiation_dict": {"x": "tea"},
    "intent": "Buy tea",
    "require_reset": False,
    "eval": {
        "eval_types": ["program_html"],
        "reference_answers": None,
        "reference_url": None,
        "program_html": [
            {
                "url": "func:shopping_get_latest_order_url()",
                "locator": "document.querySelector('.items').outerText",
                "required_contents": {"must_include": ["tea", "1 |OR| one"]},
            }
        ],
    },
}


def task(**changes: Any) -> dict[str, Any]:
    """Return the task above with changed fields. `eval__x` is a field of `eval`; None removes a field."""
    changed = copy.deepcopy(TASK)
    for name, value in changes.items():
        owner = changed["eval"] if name.startswith("eval__") else changed
        key = name.removeprefix("eval__")
        if value is None:
            del owner[key]
        else:
            owner[key] = value
    return changed


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_file_with_a_list_of_tasks(tmp_path: Path) -> None:
    first, second = read_tasks(write_json(tmp_path / "test.raw.json", [task(), task(task_id="7b")]), "mine")
    assert (first.id, first.env, first.split, first.category) == ("webarena/mine/7", ENV_ID, "test", "shopping")
    assert second.id == "webarena/mine/7b"
    assert first.difficulty == 2
    assert {key: first.payload[key] for key in TASK if key != "eval"} == {k: v for k, v in TASK.items() if k != "eval"}
    assert first.payload["eval"]["program_html"][0] == {**TASK["eval"]["program_html"][0], "prep_actions": []}


def test_folder_of_task_files_is_read_in_numeric_order(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write_json(tmp_path / f"{number}.json", task(task_id=number))
    write_json(tmp_path / "test.raw.json", [task(task_id=0)])  # WebArena's folder has all tasks in this file, too
    assert [found.payload["task_id"] for found in read_tasks(tmp_path, "lite")] == [0, 2, 10]


def test_single_task_gets_its_id_from_the_file_name(tmp_path: Path) -> None:
    (only,) = read_tasks(write_json(tmp_path / "12.json", task(task_id=None)), "set", split="train")
    assert (only.id, only.split) == ("webarena/set/12", "train")


def test_json_lines_file_has_a_task_per_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(task(task_id=i)) for i in range(3)) + "\n\n")
    assert [found.id for found in read_tasks(path, "set")] == [f"webarena/set/{i}" for i in range(3)]
    path.write_text(json.dumps(task()) + "\n{")
    with pytest.raises(ValueError, match=r"tasks\.jsonl, line 2 is not valid JSON"):
        read_tasks(path, "set")


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(task(intent="one\u2028two\x85three"), ensure_ascii=False) + "\n", encoding="utf-8")
    (only,) = read_tasks(path, "set")
    assert only.payload["intent"] == "one\u2028two\x85three"


def test_missing_fields_are_completed() -> None:
    minimal = {
        "task_id": "a",
        "intent": "x",
        "start_url": "__GITLAB__/y |AND| __REDDIT__",
        "string_note": "because",
        "eval": {"eval_types": "string_match", "reference_answers": {"must_include": "5", "fuzzy_match": "N/A"}},
    }
    completed = task_of(minimal, "set")
    assert completed.payload["sites"] == ["gitlab", "reddit"]
    assert completed.category == "cross-site"
    assert completed.difficulty == 2
    assert completed.payload["require_login"] is completed.payload["require_reset"] is False
    assert completed.payload["eval"]["eval_types"] == ["string_match"]
    assert completed.payload["eval"]["reference_answers"] == {"must_include": ["5"], "fuzzy_match": "N/A"}
    assert completed.payload["eval"]["string_note"] == "because"
    assert start_urls(completed.payload) == ("__GITLAB__/y", "__REDDIT__")


def test_difficulty_is_the_length_of_the_plan() -> None:
    assert task_of(task(plan=[{"do": "stop"}] * 5), "set").difficulty == 5


def test_reading_does_not_modify_its_input() -> None:
    record = task()
    task_of(record, "set")
    assert record == TASK


HTML_TARGET = TASK["eval"]["program_html"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": ""}, "`task_id` is ''"),
        ({"task_id": True}, "`task_id` is True"),
        ({"intent": None}, "`intent` is None; it must be a non-empty string"),
        ({"start_url": ["a"]}, "`start_url`"),
        ({"sites": ["classifieds"]}, "`sites` has the unknown site 'classifieds'"),
        ({"sites": []}, r"`sites` is \[\]"),
        ({"eval": None}, "`eval` is missing"),
        ({"eval__eval_types": ["string-match"]}, "Did you mean 'string_match'"),
        ({"eval__eval_types": []}, "`eval.eval_types` is"),
        ({"eval__eval_types": ["string_match"]}, "`eval.reference_answers` is None"),
        ({"eval__eval_types": ["string_match"], "eval__reference_answers": {}}, "reference_answers` is empty"),
        (
            {"eval__eval_types": ["string_match"], "eval__reference_answers": {"exact_mach": "x"}},
            "Did you mean 'exact_match'",
        ),
        (
            {"eval__eval_types": ["string_match"], "eval__reference_answers": {"must_include": [None]}},
            "`eval.reference_answers.must_include` is",
        ),
        (
            {"eval__eval_types": ["string_match"], "eval__reference_answers": {"exact_match": ["a", "b"]}},
            "it must be one string",
        ),
        ({"eval__eval_types": ["url_match"]}, "`eval.reference_url` is ''"),
        (
            {"eval__eval_types": ["url_match"], "eval__reference_url": "http://x", "eval__url_note": "GOLD"},
            "`eval.url_note` has the unknown name 'GOLD'",
        ),
        ({"eval__program_html": []}, r"`eval.program_html` is \[\]"),
        (
            {"eval__program_html": [HTML_TARGET, {**HTML_TARGET, "locator": "import os"}]},
            r"`eval.program_html\[1\].locator` is 'import",
        ),
        (
            {"eval__program_html": [{**HTML_TARGET, "url": "func:exit()"}]},
            r"`eval.program_html\[0\].url`: .* unknown function",
        ),
        ({"eval__program_html": [{**HTML_TARGET, "required_contents": {"must_exclude": []}}]}, "must_exclude"),
        ({"eval__program_html": [{**HTML_TARGET, "required_contents": None}]}, "required_contents` is None"),
        ({"eval__program_html": [{**HTML_TARGET, "url": ""}]}, "both must be strings"),
        ({"eval__eval_types": ["database"], "eval__database": [{"site": "shop"}]}, r"`eval.database\[0\].site`"),
        (
            {
                "eval__eval_types": ["database"],
                "eval__database": [{"site": "shopping", "query": "SELECT", "rows": [1]}],
            },
            r"`eval.database\[0\].rows`",
        ),
        (
            {"eval__eval_types": ["database"], "eval__database": [{"site": "shopping", "rows": []}]},
            "must be an SQL query",
        ),
        ({"plan": {}}, "`plan`"),
    ],
)
def test_invalid_task_is_rejected_with_file_task_and_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "some.json", [task(**changes)])
    with pytest.raises(ValueError, match=message) as error:
        read_tasks(path, "set")
    assert str(error.value).startswith(f"{path}, task {changes.get('task_id', 7)}: ")


def test_invalid_files_and_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no task file or folder .*nothing\.json"):
        read_tasks(tmp_path / "nothing.json", "set")
    with pytest.raises(ValueError, match="There are no tasks in"):
        read_tasks(tmp_path, "set")
    with pytest.raises(ValueError, match="a task must be a JSON object, not int"):
        read_tasks(write_json(tmp_path / "x.json", [1]), "set")
    with pytest.raises(ValueError, match="two tasks with task_id 7"):
        read_tasks(write_json(tmp_path / "x.json", [task(), task()]), "set")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_tasks(tmp_path / "x.json", "set")
