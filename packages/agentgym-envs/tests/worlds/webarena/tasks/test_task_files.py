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
    """The task above, with fields changed; `eval__x` is a field of its `eval`, and None takes one away."""
    changed = copy.deepcopy(TASK)
    for name, value in changes.items():
        place = changed["eval"] if name.startswith("eval__") else changed
        key = name.removeprefix("eval__")
        if value is None:
            del place[key]
        else:
            place[key] = value
    return changed


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_a_list_of_tasks(tmp_path: Path) -> None:
    first, second = read_tasks(write(tmp_path / "test.raw.json", [task(), task(task_id="7b")]), "mine")
    assert (first.id, first.env, first.split, first.category) == ("webarena/mine/7", ENV_ID, "test", "shopping")
    assert second.id == "webarena/mine/7b"
    assert first.difficulty == 2
    assert {key: first.payload[key] for key in TASK if key != "eval"} == {k: v for k, v in TASK.items() if k != "eval"}
    assert first.payload["eval"]["program_html"][0] == {**TASK["eval"]["program_html"][0], "prep_actions": []}


def test_a_folder_of_configuration_files_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write(tmp_path / f"{number}.json", task(task_id=number))
    write(tmp_path / "test.raw.json", [task(task_id=0)])  # WebArena keeps the whole beside its pieces
    assert [one.payload["task_id"] for one in read_tasks(tmp_path, "lite")] == [0, 2, 10]


def test_one_task_in_a_file_gets_its_number_from_the_name(tmp_path: Path) -> None:
    (one,) = read_tasks(write(tmp_path / "12.json", task(task_id=None)), "set", split="train")
    assert (one.id, one.split) == ("webarena/set/12", "train")


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(task(task_id=i)) for i in range(3)) + "\n\n")
    assert [one.id for one in read_tasks(path, "set")] == [f"webarena/set/{i}" for i in range(3)]
    path.write_text(json.dumps(task()) + "\n{")
    with pytest.raises(ValueError, match=r"tasks\.jsonl, line 2 is not valid JSON"):
        read_tasks(path, "set")


def test_what_is_missing_but_plain_is_put_right() -> None:
    bare = {
        "task_id": "a",
        "intent": "x",
        "start_url": "__GITLAB__/y |AND| __REDDIT__",
        "string_note": "because",
        "eval": {"eval_types": "string_match", "reference_answers": {"must_include": "5", "fuzzy_match": "N/A"}},
    }
    made = task_of(bare, "set")
    assert made.payload["sites"] == ["gitlab", "reddit"]
    assert made.category == "cross-site"
    assert made.difficulty == 2
    assert made.payload["require_login"] is made.payload["require_reset"] is False
    assert made.payload["eval"]["eval_types"] == ["string_match"]
    assert made.payload["eval"]["reference_answers"] == {"must_include": ["5"], "fuzzy_match": "N/A"}
    assert made.payload["eval"]["string_note"] == "because"
    assert start_urls(made.payload) == ("__GITLAB__/y", "__REDDIT__")


def test_a_plan_says_how_long_a_task_is() -> None:
    assert task_of(task(plan=[{"do": "stop"}] * 5), "set").difficulty == 5


def test_reading_changes_nothing_that_was_given() -> None:
    given = task()
    task_of(given, "set")
    assert given == TASK


HTML = TASK["eval"]["program_html"][0]


@pytest.mark.parametrize(
    ("changes", "said"),
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
            {"eval__program_html": [HTML, {**HTML, "locator": "import os"}]},
            r"`eval.program_html\[1\].locator` is 'import",
        ),
        (
            {"eval__program_html": [{**HTML, "url": "func:exit()"}]},
            r"`eval.program_html\[0\].url`: .* unknown function",
        ),
        ({"eval__program_html": [{**HTML, "required_contents": {"must_exclude": []}}]}, "must_exclude"),
        ({"eval__program_html": [{**HTML, "required_contents": None}]}, "required_contents` is None"),
        ({"eval__program_html": [{**HTML, "url": ""}]}, "both must be strings"),
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
def test_what_is_no_task_is_refused_by_file_task_and_field(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.json", [task(**changes)])
    with pytest.raises(ValueError, match=said) as refused:
        read_tasks(path, "set")
    assert str(refused.value).startswith(f"{path}, task {changes.get('task_id', 7)}: ")


def test_a_file_that_is_none_of_tasks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no task file or folder .*nothing\.json"):
        read_tasks(tmp_path / "nothing.json", "set")
    with pytest.raises(ValueError, match="There are no tasks in"):
        read_tasks(tmp_path, "set")
    with pytest.raises(ValueError, match="a task must be a JSON object, not int"):
        read_tasks(write(tmp_path / "x.json", [1]), "set")
    with pytest.raises(ValueError, match="two tasks with task_id 7"):
        read_tasks(write(tmp_path / "x.json", [task(), task()]), "set")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_tasks(tmp_path / "x.json", "set")
