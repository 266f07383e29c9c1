"""Tests of the generated tasks: their number, disjoint splits, plans, and that none is solved at the start."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.evaluation import string_match
from agentgym_envs.worlds.webarena.evaluation.parts import check_eval
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.tasks import (
    UNACHIEVABLE,
    Case,
    Template,
    both,
    deal,
    rows,
    said,
    split_of,
    stop,
    templates,
)
from agentgym_envs.worlds.webarena.tasks.task_files import start_urls

SPLITS = ("train", "dev", "test")
Task = dict[str, Any]


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[Task]]:
    return store.tasks()


def test_there_are_enough_templates_and_tasks(tasks: dict[str, list[Task]]) -> None:
    assert len(templates()) >= 60
    assert len(tasks["train"]) >= 600
    assert len(tasks["test"]) >= 150
    assert {task["template"] for split in SPLITS for task in tasks[split]} == {t.name for t in templates()}


def test_splits_cover_all_sites_and_evaluations(tasks: dict[str, list[Task]]) -> None:
    for split in ("train", "test"):
        kinds = Counter(kind for task in tasks[split] for kind in task["eval"]["eval_types"])
        assert min(kinds[kind] for kind in ("string_match", "url_match", "database")) >= 20, kinds
        single_site = Counter(task["sites"][0] for task in tasks[split] if len(task["sites"]) == 1)
        assert single_site.keys() == PLACES.keys() - {"homepage"}
        assert sum(len(task["sites"]) > 1 for task in tasks[split]) >= 20


def test_held_out_templates_and_entities_are_disjoint(tasks: dict[str, list[Task]]) -> None:
    held_out = {template.name for template in templates() if template.held_out}
    assert len(held_out) >= 10
    assert held_out.isdisjoint(task["template"] for task in tasks["train"] + tasks["dev"])
    entities = {split: {entity for task in tasks[split] for entity in task["entities"]} for split in SPLITS}
    for first, second in (("train", "test"), ("train", "dev"), ("dev", "test")):
        assert entities[first].isdisjoint(entities[second])


def test_intents_are_complete_and_unique(tasks: dict[str, list[Task]]) -> None:
    starts = [(task["intent"], task["start_url"]) for split in SPLITS for task in tasks[split]]
    assert [start for start, count in Counter(starts).items() if count > 1] == []
    assert not [intent for intent, _ in starts if re.search(r"[{}]|\bNone\b", intent)]


def test_plans_start_at_the_site_and_end_with_stop(tasks: dict[str, list[Task]]) -> None:
    for split in SPLITS:
        for task in tasks[split]:
            kinds = [step["do"] for step in task["plan"]]
            assert (kinds[-1], kinds.count("stop")) == ("stop", 1), task["intent"]
            assert len(kinds) <= 25, task["intent"]
            placeholders = {f"__{site.upper()}__" for site in task["sites"]}
            assert {start_url.split("/")[0] for start_url in start_urls(task)} <= placeholders, task["start_url"]


def test_some_tasks_start_on_deep_pages_and_in_several_tabs(tasks: dict[str, list[Task]]) -> None:
    opened = {task["template"]: start_urls(task) for split in SPLITS for task in tasks[split]}
    assert sum("/" in urls[0] for urls in opened.values()) >= 8
    assert sum(len(urls) > 1 for urls in opened.values()) >= 4


# Tasks that can't be done.


def _answers(task: Task, answer: str) -> bool:
    """Whether the answer alone could score: a task that also ends on a page or with changes needs more."""
    if task["eval"]["eval_types"] != ["string_match"]:
        return False
    return asyncio.run(string_match.score(task | {"eval": check_eval(task["eval"])}, answer, None)) == 1


@pytest.mark.long
def test_always_answering_not_applicable_scores_only_on_unachievable_tasks(tasks: dict[str, list[Task]]) -> None:
    every = [task for split in SPLITS for task in tasks[split]]
    scoring = [task for task in every if _answers(task, "N/A")]
    assert all(task["template"].endswith(UNACHIEVABLE) for task in scoring)
    assert len(scoring) == sum(task["template"].endswith(UNACHIEVABLE) for task in every)
    assert 0.045 <= len(scoring) / len(every) <= 0.06
    for split in SPLITS:
        share = sum(task in scoring for task in tasks[split]) / len(tasks[split])
        assert 0.03 <= share <= 0.065, split


def test_unachievable_tasks_have_the_wording_of_achievable_ones(tasks: dict[str, list[Task]]) -> None:
    by_name = {template.name: template for template in templates()}
    twins = {name: by_name[name.removesuffix(UNACHIEVABLE)] for name in by_name if name.endswith(UNACHIEVABLE)}
    assert len(twins) >= 10
    assert {site for name in twins for site in by_name[name].sites} == PLACES.keys() - {"homepage"}
    for name, twin in twins.items():
        assert (by_name[name].wording, by_name[name].sites, by_name[name].held_out) == (
            twin.wording, twin.sites, twin.held_out,
        )  # fmt: skip
    for split in SPLITS:
        for task in tasks[split]:
            if task["template"] in twins:
                assert task["eval"]["string_note"], task["intent"]
                assert task["plan"][-1]["answer"] == "N/A"


def test_empty_and_constant_answers_rarely_score(tasks: dict[str, list[Task]]) -> None:
    answers: Counter[str] = Counter()
    for task in tasks["test"]:
        if task["eval"]["eval_types"] == ["string_match"] and not task["template"].endswith(UNACHIEVABLE):
            reference = task["eval"]["reference_answers"]
            expected = [reference["must_equal"]] if "must_equal" in reference else reference["must_state"]
            assert all(str(part).strip() for part in expected), task["intent"]
            answers[json.dumps(expected).lower()] += 1
    assert answers.most_common(1)[0][1] <= 0.05 * len(tasks["test"])


@pytest.mark.long
def test_database_checks_do_not_hold_at_the_start(tasks: dict[str, list[Task]]) -> None:
    for split in SPLITS:
        for task in tasks[split]:
            checks = task["eval"].get("database", [])
            matches = [_rows(check) == check["rows"] for check in checks]
            assert not checks or not all(matches), f"{task['template']}: {task['intent']}"


def _rows(check: dict[str, Any]) -> list[list[Any]]:
    path = store.database(PLACES[check["site"]].database or "")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return [list(row) for row in db.execute(check["query"])]


_IMPORTS_SCRIPT = """
import sys
from importlib import import_module
from agentgym_envs.worlds.webarena.sites import process, store, tasks
tasks.templates()
for name in ("shop", "forum", "code", "map", "wiki"):
    import_module(f"agentgym_envs.worlds.webarena.sites.{name}.data")
print(*sys.modules)
"""


def test_generating_data_and_tasks_imports_no_server() -> None:
    process = subprocess.run([sys.executable, "-c", _IMPORTS_SCRIPT], check=True, capture_output=True, text=True)
    assert {"starlette", "jinja2", "uvicorn", "playwright"}.isdisjoint(process.stdout.split())


_DIGEST_SCRIPT = """
import hashlib, json
from agentgym_envs.worlds.webarena.sites import store
for name in ("shop", "forum", "code", "map", "wiki"):
    print(name, hashlib.sha256(store.make_database(name)).hexdigest())
"""


@pytest.mark.long
def test_databases_are_independent_of_the_hash_seed() -> None:
    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-c", _DIGEST_SCRIPT]
        process = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, check=True, capture_output=True, text=True)
        return process.stdout

    assert digests("1") == digests("2")


# The assignment of cases to splits.


def _case(entity: str, *more: str) -> Case:
    return Case({"x": entity}, frozenset({entity, *more}), said(exact=entity), [stop(entity)])


def test_case_goes_to_the_split_of_its_entities() -> None:
    names = [f"thing:{i}" for i in range(200)]
    cases_by_split = deal(Template("t", ("map",), "{{x}}", lambda databases, random: map(_case, names)), {})
    assert {split: len(cases) for split, cases in cases_by_split.items()} == {"train": 5, "dev": 1, "test": 1}
    for split, cases in cases_by_split.items():
        assert {split_of(entity) for case in cases for entity in case.entities} == {split}


def test_case_across_two_splits_is_dropped() -> None:
    train = next(name for name in map(str, range(100)) if split_of(name) == "train")
    test = next(name for name in map(str, range(100)) if split_of(name) == "test")
    cases_by_split = deal(Template("t", ("map",), "{{x}}", lambda databases, random: [_case(train, test)]), {})
    assert cases_by_split == {"train": [], "dev": [], "test": []}


def test_both_joins_evaluations() -> None:
    joined = both(rows("map", "SELECT 1", [1]), rows("map", "SELECT 2", [2]), said("x"))
    assert joined["eval_types"] == ["database", "string_match"]
    assert [check["query"] for check in joined["database"]] == ["SELECT 1", "SELECT 2"]
    with pytest.raises(ValueError, match="reference_answers"):
        both(said("x"), said("y"))
