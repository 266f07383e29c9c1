"""Read WebArena's task files as published into `Task`s.

A file holds a list of tasks (`test.raw.json`), one task (`config_files/0.json`) or one task per line (JSONL); a folder
holds such files. Deviations in variants of the benchmark are normalized if they are unambiguous: ids as text, no
`sites` where the start URL has a placeholder, `null` for an empty list, `string_note` outside `eval`. Everything else
is an error. This module does not need the sites' URLs; it only checks that `eval` has the required fields.

The category of a task is its site, or `cross-site`. Its difficulty is the number of steps of its `plan` if it has one
(our own tasks do), else the number of checks at its end: reference answers, the URL, page contents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from agentgym_envs.core.tasks import Split, Task
from agentgym_envs.worlds.webarena.browser.site_urls import KEYS, needed
from agentgym_envs.worlds.webarena.evaluation.parts import PARTS, check_eval

ENV_ID = "agentgym/WebArena-v0"


def read_tasks(path: Path, name: str, split: Split = "test") -> tuple[Task, ...]:
    """Read the tasks of a file, or of a folder's files, as the set `name`, with ids `webarena/NAME/TASK_ID`.

    Raises:
        ValueError: if there are none, or one is invalid; the message names the file, the task and the field.
        OSError: if a file can't be read.
    """
    tasks: dict[str, Task] = {}
    for place, record in _records(path):
        task = task_of(record, name, split, place)
        if task.id in tasks:
            raise ValueError(
                f"{place}: there are two tasks with task_id {record['task_id']}; ids must be unique within a set."
            )
        tasks[task.id] = task
    if not tasks:
        raise ValueError(f"There are no tasks in {path}; expected .json or .jsonl files in WebArena's format.")
    return tuple(tasks.values())


def task_of(record: Mapping[str, Any], name: str, split: Split = "test", place: str = "") -> Task:
    """Build a task of the set `name` from WebArena's JSON; `place` is where it was read, for error messages.

    Raises:
        ValueError: if it is invalid; the message names the place, the task and the field.
    """
    try:
        payload = _normalised(record)
    except ValueError as error:
        location = ", ".join(filter(None, (place, f"task {record.get('task_id', '?')}")))
        raise ValueError(f"{location}: {error}") from error
    return Task(
        id=f"webarena/{name}/{payload['task_id']}",
        env=ENV_ID,
        split=split,
        category=category(payload["sites"]),
        difficulty=len(payload.get("plan", ())) or _check_count(payload["eval"]),
        payload=payload,
        cluster=template(payload),
    )


def template(record: Mapping[str, Any]) -> str:
    """Return the template that a task was made from: its name in our own set, its number in WebArena's."""
    return str(record.get("template", record.get("intent_template_id", "")))


def category(sites: list[str]) -> str:
    """Return the category that reports average over: the site, or `cross-site` for several sites."""
    return sites[0] if len(sites) == 1 else "cross-site"


def start_urls(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the URLs of a task's start pages, one tab each; the first tab is the active one."""
    return tuple(url.strip() for url in str(task["start_url"]).split(" |AND| "))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location (file and line) and the JSON of each task of `path`."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in (".json", ".jsonl")]
        files.sort(key=lambda file: (len(file.name), file.name))  # 2.json before 10.json
        if len(lists := [file.name for file in files if not file.stem.isdecimal()]) < len(files):
            # WebArena's folder has test.json, the list of all tasks, as well as 0.json, 1.json, ...
            files = [file for file in files if file.name not in lists]
        for file in files:
            yield from _records(file)
        return
    if not path.exists():
        raise ValueError(f"There is no task file or folder {path}.")
    for place, record in _parsed(path):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: a task must be a JSON object, not {type(record).__name__}.")
        fields = cast("dict[str, Any]", record)
        yield place, {"task_id": int(path.stem), **fields} if path.stem.isdecimal() else fields


def _parsed(path: Path) -> Iterator[tuple[str, object]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{path}, line {number}", _json(line, f"{path}, line {number}")
        return
    content = _json(text, str(path))
    for record in cast("list[object]", content) if isinstance(content, list) else [content]:
        yield str(path), record


def _json(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place} is not valid JSON: {error}.") from error


def _normalised(record: Mapping[str, Any]) -> dict[str, Any]:
    task = dict(record)
    task_id = task.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, int | str) or task_id == "":
        raise ValueError(f"`task_id` is {task_id!r}; it must be a number or a non-empty string.")
    for field in ("intent", "start_url"):
        if not isinstance(task.get(field), str) or not task[field].strip():
            raise ValueError(f"`{field}` is {task.get(field)!r}; it must be a non-empty string.")
    task["sites"] = _sites(task)
    for field in ("require_login", "require_reset"):
        task[field] = bool(task.get(field))
    if not isinstance(task.get("eval"), Mapping):
        raise ValueError("`eval` is missing; it must be an object with `eval_types`.")
    evaluation = {"string_note": task.get("string_note"), **task["eval"]}
    for field in ("string_note", "reference_url"):
        evaluation[field] = evaluation.get(field) or ""
    task["eval"] = {**evaluation, **check_eval(evaluation)}
    if not isinstance(task.get("plan", []), list):
        raise ValueError("`plan` must be a list of steps.")
    return task


def _sites(task: Mapping[str, Any]) -> list[str]:
    sites = task.get("sites")
    if sites is None:
        sites = list(needed({"start_url": task["start_url"]}))
    if not isinstance(sites, list) or not sites:
        raise ValueError(f"`sites` is {sites!r}; it must be a non-empty list of {', '.join(KEYS)}.")
    listed = cast("list[object]", sites)
    if unknown := [site for site in listed if site not in KEYS]:
        raise ValueError(f"`sites` has the unknown site {unknown[0]!r}; WebArena's sites are {', '.join(KEYS)}.")
    return [str(site) for site in listed]


def _check_count(evaluation: Mapping[str, Any]) -> int:
    """Return the number of checks at the end of a task."""
    return sum(PARTS[part].count(evaluation) for part in evaluation["eval_types"])
