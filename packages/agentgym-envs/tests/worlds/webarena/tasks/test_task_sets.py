"""Tests of the selection of embedded tasks by template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.env import WebArena


def test_templates_select_tasks_of_every_split() -> None:
    every, chosen = WebArena().tasks, WebArena(templates=("wiki/award", "map/phone")).tasks
    for split in ("train", "dev", "test"):
        expected = [task for task in every.split(split) if task.cluster in ("map/phone", "wiki/award")]
        assert list(chosen.split(split)) == expected and expected
    assert WebArena(templates="map/phone").tasks.train.ids == [
        task.id for task in every.train if task.cluster == "map/phone"
    ]
    assert chosen.name == every.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": "map/fone"}, "There is no template 'map/fone' among the 208 .* Did you mean map/phone"),
        ({"templates": ["soup"]}, "There is no template 'soup' .* Names are like 'map/phone'"),
        ({"templates": []}, "templates is empty"),
        ({"templates": 3}, "templates must be a template's name or a list of names"),
    ],
)
def test_invalid_templates_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WebArena(**options)


def test_relative_file_is_that_of_the_working_directory_at_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WebArena] = []
    for name in ("heron", "kingfisher"):
        evaluation = {"eval_types": ["string_match"], "reference_answers": {"exact_match": name}}
        task = {"task_id": name, "intent": name, "start_url": "__SHOPPING__", "eval": evaluation}
        (tmp_path / name).mkdir()
        (tmp_path / name / "tasks.json").write_text(json.dumps([task]), encoding="utf-8")
        monkeypatch.chdir(tmp_path / name)
        made.append(WebArena(task_set="tasks.json", sites="shopping=http://shop.example"))
    monkeypatch.chdir(tmp_path)
    assert [env.tasks.test.ids for env in made] == [["webarena/tasks/heron"], ["webarena/tasks/kingfisher"]]
    assert [env.tasks.name for env in made] == ["tasks.json", "tasks.json"]


def test_other_task_sets_have_no_templates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Only the embedded tasks have templates"):
        WebArena(task_set=tmp_path, templates="map/phone")
