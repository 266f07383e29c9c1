"""Tests of the list of MiniWoB++'s pages, of their selection, and of the tasks made from them."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.miniwob.page_server import html_folder
from agentgym_envs.worlds.webarena.miniwob.pages import NEEDS, choose_pages, interchangeable_names, pages
from agentgym_envs.worlds.webarena.miniwob.scripts import SCRIPTS
from agentgym_envs.worlds.webarena.miniwob.scripts.synonyms import SYNONYMS
from agentgym_envs.worlds.webarena.miniwob.tasks import SEEDS, miniwob_tasks
from dev_packages import require_packages

ROOT = Path(__file__).parents[6]


def test_the_list_has_exactly_the_packages_pages() -> None:
    require_packages("miniwob")
    assert list(pages()) == sorted(path.stem for path in (html_folder() / "miniwob").glob("*.html"))


def test_the_interchangeable_names_are_those_of_the_packages_placeholder_text_and_persons() -> None:
    require_packages("miniwob")
    script = (html_folder() / "common" / "ui_utils.js").read_text()
    lists = (re.search(rf"{name} = \[(.*?)\]", script, re.DOTALL) for name in ("lorem_words", "FIFTY_NAMES"))
    theirs = [
        {word.strip(",.").lower() for word in re.findall(r"[\w.,]+", found[1])} - {""} for found in lists if found
    ]
    words, persons = interchangeable_names()
    assert theirs[0] - {*words} == {"a", "at", "id", "in", "integer", "sit"}  # English words
    assert words == tuple(sorted(theirs[0] & {*words}))
    assert persons == tuple(sorted(theirs[1]))
    assert WebArena(task_set="miniwob").interchangeable_names() == (words, persons)
    assert WebArena().interchangeable_names() == ()


def test_synonyms_are_those_of_the_page() -> None:
    require_packages("miniwob")
    page = (html_folder() / "miniwob" / "click-checkboxes-soft.html").read_text()
    listed = re.search(r"SYNONYMS = \[(.*?)\n\];", page, re.DOTALL)
    assert listed is not None
    assert [set(re.findall("'([^']+)'", line)) for line in listed[1].strip().splitlines()] == [*map(set, SYNONYMS)]


def test_more_than_a_hundred_scripts_reach_the_reward_in_every_recorded_episode() -> None:
    recorded = pages().values()
    assert set(SCRIPTS) == {page.name for page in recorded if page.played}
    assert sum(page.solved == page.played > 0 for page in recorded) >= 100
    assert all(bool(page.reason) == (page.needs != "text") for page in recorded)


def test_docs_have_the_table_of_the_recorded_pages() -> None:
    spec = importlib.util.spec_from_file_location("make_miniwob_pages", ROOT / "scripts/make_miniwob_pages.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs/webarena/miniwob.md").read_text() == script.table(pages())


def test_pages_are_chosen_by_name_or_by_what_they_need() -> None:
    assert choose_pages(("enter-text", "click-button")) == choose_pages(["click-button", "enter-text"])
    assert choose_pages("click-button") == ("click-button",)
    assert choose_pages("all") == tuple(pages())
    groups = [choose_pages(group) for group in NEEDS]
    assert sorted(name for group in groups for name in group) == sorted(pages())
    assert choose_pages(None) == choose_pages("text") and "click-color" not in choose_pages(None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("click-buton", "There is no page 'click-buton' among the 130 of MiniWoB.* Did you mean click-button"),
        (["soup"], "There is no page 'soup' .* Groups of pages are text, positions, pixels, time and all"),
        ([], "pages is empty"),
        (3, "pages must be the name of a page or a list of names"),
        ([3], "pages must be the name of a page or a list of names"),
    ],
)
def test_unknown_pages_are_refused(asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WebArena(task_set="miniwob", pages=asked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": "click-button"}, "Only task_set='miniwob' has pages to choose from"),
        ({"task_set": "miniwob", "templates": "map/phone"}, "Only the embedded tasks have templates"),
        ({"task_set": "miniwob", "sites": "shopping=http://127.0.0.1:1"}, "The tasks of miniwob run on this machine's"),
    ],
)
def test_options_of_other_task_sets_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WebArena(**options)


def test_tasks_are_pages_with_seeds_that_no_two_splits_share() -> None:
    tasks = miniwob_tasks(("click-button", "enter-text"))
    for split, seeds in SEEDS.items():
        assert len(tasks.split(split)) == 2 * len(seeds)
        assert {task.payload["seed"] for task in tasks.split(split)} == set(seeds)
        assert all(task.split == split and task.cluster == task.category for task in tasks.split(split))
    assert len({seed for seeds in SEEDS.values() for seed in seeds}) == sum(map(len, SEEDS.values()))
    task = tasks["webarena/miniwob/enter-text/17"]
    assert task.split == "train" and task.payload["start_url"] == "http://miniwob.example/miniwob/enter-text.html"


@pytest.mark.long
def test_tasks_match_the_manifest() -> None:
    folder = resources.files("agentgym_envs.worlds.webarena.miniwob")
    committed = json.loads(folder.joinpath("manifest.json").read_text(encoding="utf-8"))
    assert {group: miniwob_tasks(choose_pages(group)).manifest() for group in NEEDS} == committed


def test_instructions_explain_how_an_episode_ends() -> None:
    assert "The episode ends as soon as the page counts your attempt" in WebArena(task_set="miniwob").instructions
    assert "counts your attempt" not in WebArena().instructions
