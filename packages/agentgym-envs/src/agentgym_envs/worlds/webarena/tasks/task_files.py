"""WebArena's task files, read as they are, into `Task`s.

A file holds a list of tasks (`test.raw.json`), one task (`config_files/0.json`) or one a line (JSONL); a folder holds
such files. What variants of the benchmark leave out or write otherwise is put right where it can mean one thing only:
ids as text, no `sites` where the start URL has a placeholder, `null` for an empty list, `string_note` beside `eval`.
The rest is refused in a sentence. Knows neither where sites are nor how a task is judged beyond what `eval` must hold.

The category of a task is its site, or `cross-site`. Its difficulty is the number of steps of its `plan` where it has
one (our own tasks do), else the number of things that are checked at its end: reference answers, the URL, contents.
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
    """The tasks of a file or of a folder's files, as the set `name`, with ids `webarena/NAME/TASK_ID`.

    Raises:
        ValueError: when there is none, or one isn't a task; names the file, the task and the field.
        OSError: when a file can't be read.
    """
    tasks: dict[str, Task] = {}
    for place, record in _records(path):
        task = task_of(record, name, split, place)
        if task.id in tasks:
            raise ValueError(f"{place}: there are two tasks with task_id {record['task_id']}.")
        tasks[task.id] = task
    if not tasks:
        raise ValueError(f"There are no tasks in {path}; WebArena's are .json or .jsonl files.")
    return tuple(tasks.values())


def task_of(record: Mapping[str, Any], name: str, split: Split = "test", place: str = "") -> Task:
    """One task of the set `name` from WebArena's JSON; `place` says where it was read, for the message.

    Raises:
        ValueError: when it isn't a task; names the place, the task and the field.
    """
    try:
        payload = _normalised(record)
    except ValueError as error:
        where = ", ".join(filter(None, (place, f"task {record.get('task_id', '?')}")))
        raise ValueError(f"{where}: {error}") from error
    return Task(
        id=f"webarena/{name}/{payload['task_id']}",
        env=ENV_ID,
        split=split,
        category=category(payload["sites"]),
        difficulty=len(payload.get("plan", ())) or _checks(payload["eval"]),
        payload=payload,
        cluster=template(payload),
    )


def template(record: Mapping[str, Any]) -> str:
    """What the tasks of a template have in common: its name in our own set, its number in WebArena's."""
    return str(record.get("template", record.get("intent_template_id", "")))


def category(sites: list[str]) -> str:
    """The group that reports average over: the site, or `cross-site` for several."""
    return sites[0] if len(sites) == 1 else "cross-site"


def start_urls(task: Mapping[str, Any]) -> tuple[str, ...]:
    """The pages that a task starts with, one tab each, the first in front."""
    return tuple(url.strip() for url in str(task["start_url"]).split(" |AND| "))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each task of `path` lies, and its JSON."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in (".json", ".jsonl")]
        files.sort(key=lambda file: (len(file.name), file.name))  # 2.json before 10.json
        if len(lists := [file.name for file in files if not file.stem.isdecimal()]) < len(files):
            files = [file for file in files if file.name not in lists]  # WebArena keeps test.json beside 0.json, ...
        for file in files:
            yield from _records(file)
        return
    if not path.exists():
        raise ValueError(f"There is no task file {path}.")
    for place, record in _parsed(path):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: a task is a JSON object, not {type(record).__name__}.")
        one = cast("dict[str, Any]", record)
        yield place, {"task_id": int(path.stem), **one} if path.stem.isdecimal() else one


def _parsed(path: Path) -> Iterator[tuple[str, object]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"{path}, line {number}", _json(line, f"{path}, line {number}")
        return
    whole = _json(text, str(path))
    for record in cast("list[object]", whole) if isinstance(whole, list) else [whole]:
        yield str(path), record


def _json(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}.") from error


def _normalised(record: Mapping[str, Any]) -> dict[str, Any]:
    task = dict(record)
    task_id = task.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, int | str) or task_id == "":
        raise ValueError(f"`task_id` is {task_id!r}; it must be a number or a name.")
    for field in ("intent", "start_url"):
        if not isinstance(task.get(field), str) or not task[field].strip():
            raise ValueError(f"`{field}` is {task.get(field)!r}; it must be text.")
    task["sites"] = _sites(task)
    for field in ("require_login", "require_reset"):
        task[field] = bool(task.get(field))
    if not isinstance(task.get("eval"), Mapping):
        raise ValueError("`eval` is missing; it must be an object with `eval_types`.")
    judged = {"string_note": task.get("string_note"), **task["eval"]}
    for field in ("string_note", "reference_url"):
        judged[field] = judged.get(field) or ""
    task["eval"] = {**judged, **check_eval(judged)}
    if not isinstance(task.get("plan", []), list):
        raise ValueError("`plan` must be a list of steps.")
    return task


def _sites(task: Mapping[str, Any]) -> list[str]:
    sites = task.get("sites")
    if sites is None:
        sites = list(needed({"start_url": task["start_url"]}))
    if not isinstance(sites, list) or not sites:
        raise ValueError(f"`sites` is {sites!r}; it must be a list of {', '.join(KEYS)}.")
    listed = cast("list[object]", sites)
    if unknown := [site for site in listed if site not in KEYS]:
        raise ValueError(f"`sites` names {unknown[0]!r}; WebArena's sites are {', '.join(KEYS)}.")
    return [str(site) for site in listed]


def _checks(judged: Mapping[str, Any]) -> int:
    """How many things are checked at the end of a task."""
    return sum(PARTS[part].count(judged) for part in judged["eval_types"])
