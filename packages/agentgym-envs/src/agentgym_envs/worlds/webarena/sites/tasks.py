"""Generates tasks from the data: templates with placeholders are filled in, checked and assigned to splits.

A template yields cases. A case names its entities (a product, a user, a town). A hash of its name assigns each entity
to one split for all templates; a case belongs to the split of its entities if they agree. Held-out templates have tasks
in the test split only.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random
from typing import Any, Final

from agentgym_envs.worlds.webarena.sites.directory import PLACES

Databases = Mapping[str, sqlite3.Connection]
"""Read-only connections by name (`shop`, `forum`, `code`, `map`, `wiki`); rows are `sqlite3.Row`."""
Step = Mapping[str, Any]
_COLLECTIONS = ("shop", "shop_admin", "forum", "code", "map", "wiki", "cross_site")
_WITH_UNACHIEVABLE = ("shop", "shop_admin", "forum", "code", "map", "wiki")
UNACHIEVABLE: Final = "-unachievable"
"""The end of the names of templates whose tasks can't be done, after that of an achievable one with the same wording.
"""
_HOLE = re.compile(r"\{\{(\w+)\}\}")
_WANTED = {"train": 5, "dev": 1, "test": 1}
_WANTED_HELD_OUT = {"train": 0, "dev": 0, "test": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """One assignment of a template's placeholders, with its evaluation and its solution."""

    values: Mapping[str, str | int]
    """Values of the placeholders in the wording."""
    entities: frozenset[str]
    """Entities of the case, such as `product:17`; entities of test tasks occur in no train task."""
    eval: Mapping[str, Any]
    """WebArena's `eval`; built from the parts that `said`, `at`, `page` and `rows` return, joined by `both`."""
    plan: Sequence[Step]
    """The oracle's steps from the start page to the end; see `go`, `click`, `fill`, `choose`, `tab`, `stop`."""
    start: Sequence[str] = ()
    """URLs of the start pages, one tab each, of which the first is active; empty for the first site's front page."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task: a wording with a generator of cases."""

    name: str
    """Unique name, such as `shop/cheapest-in-category`."""
    sites: tuple[str, ...]
    """Keys of the required sites; the episode starts on the first."""
    wording: str
    """The intent with placeholders: `Add {{product}} to my cart`."""
    cases: Callable[[Databases, Random], Iterable[Case]]
    """Yields distinct cases in random order, as many as reasonable (a hundred is plenty)."""
    held_out: bool = False
    """Whether the tasks are in the test split only."""

    def unachievable(self, cases: Callable[[Databases, Random], Iterable[Case]]) -> Template:
        """Return its twin with the same wording, so that only the site shows that the tasks can't be done.

        Args:
            cases: Yields cases that `unachievable` judges.
        """
        return replace(self, name=f"{self.name}{UNACHIEVABLE}", cases=cases)


def said(
    *must_state: str, rivals: Iterable[str] = (), terms: Iterable[str] = (), exact: str | None = None
) -> dict[str, Any]:
    """Judge the answer: it equals `exact`, or states each of `must_state` and little else, in any usual notation.

    Args:
        must_state: The phrases of the answer.
        rivals: The candidates that the agent may hedge with, such as the other products of the category. None of them
            may be in the answer. Those that are also in `must_state` are left out. Values (numbers, times, codes and so
            on) need none, as the answer may have only one of a kind.
        terms: The numbers whose sum or difference the task asks for, which the answer may show beside it.
        exact: The whole answer, for tasks that ask for it alone.
    """
    if exact is not None:
        return {"eval_types": ["string_match"], "reference_answers": {"must_equal": exact}}
    reference = {"must_state": list(must_state)}
    if others := sorted(set(rivals) - {"", *must_state}):
        reference["must_not_state"] = others
    if shown := list(terms):
        reference["terms"] = shown
    return {"eval_types": ["string_match"], "reference_answers": reference}


def unachievable(reason: str) -> dict[str, Any]:
    """Judge the answer to a task that can't be done: it is `N/A`, as in WebArena.

    Args:
        reason: Why it can't be done, as WebArena's `string_note`. It isn't judged, since that would take a model.
    """
    return {**said(exact="N/A"), "string_note": reason}


def at(
    url: str, *same_page: str, defaults: Mapping[str, str] | None = None, any_case: Sequence[str] = ()
) -> dict[str, Any]:
    """Judge the page that the agent stopped at, by its path and the query fields of `url`.

    Args:
        url: The URL of the page.
        same_page: Other URLs that show the same.
        defaults: Query fields that a URL may leave out, with the values that the site takes then.
        any_case: Query fields whose case the site ignores.
    """
    judged: dict[str, Any] = {"reference_url": " |OR| ".join((url, *same_page)), "url_note": "SAME PATH"}
    if defaults:
        judged["url_defaults"] = dict(defaults)
    if any_case:
        judged["url_any_case"] = list(any_case)
    return {"eval_types": ["url_match"], **judged}


def page(url: str, locator: str, *must_include: str) -> dict[str, Any]:
    """Judge a page (`last` or a URL): the result of the JavaScript `locator` contains all texts."""
    contents = {"must_include": list(must_include)}
    checked = {"url": url, "locator": locator, "required_contents": contents}
    return {"eval_types": ["program_html"], "program_html": [checked]}


def rows(site: str, query: str, *expected: Sequence[Any]) -> dict[str, Any]:
    """Judge the database of `site`: the query returns exactly these rows in order. This must not hold at the start."""
    check = {"site": site, "query": query, "rows": [list(row) for row in expected]}
    return {"eval_types": ["database"], "database": [check]}


def both(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Require all parts. `page` and `rows` may occur several times, `said` and `at` once each."""
    joined: dict[str, Any] = {"eval_types": []}
    for part in parts:
        for key, value in part.items():
            if not isinstance(value, list) and key in joined:
                raise ValueError(f"Two parts have a {key}; one would be lost.")
            joined[key] = [*joined.get(key, ()), *value] if isinstance(value, list) else value
    joined["eval_types"] = sorted(set(joined["eval_types"]))
    return joined


def go(url: str) -> Step:
    """Navigate to a URL: `go("http://shop.example/cart")`."""
    return {"do": "goto", "url": url}


def click(role: str, name: str, nth: int = 0) -> Step:
    """Click the `nth` element (from the top) with this role and accessible name."""
    return {"do": "click", "role": role, "name": name, "nth": nth}


def fill(role: str, name: str, text: str, *, enter: bool = False, nth: int = 0) -> Step:
    """Type into a field, and press Enter if requested."""
    return {"do": "type", "role": role, "name": name, "text": text, "enter": enter, "nth": nth}


def choose(name: str, option: str, nth: int = 0) -> Step:
    """Choose an option, by its visible text, of the `<select>` with that accessible name."""
    return {"do": "select", "role": "combobox", "name": name, "option": option, "nth": nth}


def press(keys: str) -> Step:
    """Press keys."""
    return {"do": "press", "keys": keys}


def back() -> Step:
    """Go back one page."""
    return {"do": "back"}


def tab(index: int) -> Step:
    """Go to a tab, counted from 0."""
    return {"do": "tab", "index": index}


def stop(answer: str = "") -> Step:
    """End the episode, with an answer if the task asks for one. The last step of every plan."""
    return {"do": "stop", "answer": answer}


def split_of(entity: str) -> str:
    """Return the split of an entity: 20% `test`, 10% `dev`, 70% `train`."""
    draw = hashlib.sha256(entity.encode()).digest()[0] % 10
    return "test" if draw < 2 else "dev" if draw == 2 else "train"


def templates() -> list[Template]:
    """Return all templates in a fixed order."""
    names = [
        *(f"{site}.tasks" for site in _COLLECTIONS),
        *(f"{site}.tasks_unachievable" for site in _WITH_UNACHIEVABLE),
    ]
    modules = [import_module(f"agentgym_envs.worlds.webarena.sites.{name}") for name in names]
    return [template for module in modules for template in module.TEMPLATES]


def make_tasks(databases: Databases) -> dict[str, list[dict[str, Any]]]:
    """Return the tasks of each split with templates interleaved, so that any prefix of a split is a fair sample."""
    chosen: dict[str, list[list[dict[str, Any]]]] = {"train": [], "dev": [], "test": []}
    for template in templates():
        for split, cases in deal(template, databases).items():
            chosen[split].append([_task(template, case) for case in cases])
    return {split: _numbered(_in_turn(lists)) for split, lists in chosen.items()}


def deal(template: Template, databases: Databases) -> dict[str, list[Case]]:
    """Return the cases of one template by split, up to the wanted number of each."""
    wanted = _WANTED_HELD_OUT if template.held_out else _WANTED
    chosen: dict[str, list[Case]] = {split: [] for split in wanted}
    for case in template.cases(databases, Random(template.name)):
        splits = {split_of(entity) for entity in case.entities}
        split = splits.pop() if len(splits) == 1 else None
        if split is not None and len(chosen[split]) < wanted[split]:
            chosen[split].append(case)
        if all(len(chosen[split]) >= wanted[split] for split in wanted):
            break
    return chosen


def _task(template: Template, case: Case) -> dict[str, Any]:
    return {
        "sites": list(template.sites),
        "template": template.name,
        "require_login": any(PLACES[site].account for site in template.sites),
        "start_url": " |AND| ".join(map(_placed, case.start or (PLACES[template.sites[0]].url,))),
        "intent_template": template.wording,
        "instantiation_dict": dict(case.values),
        "intent": _HOLE.sub(lambda hole: str(case.values[hole[1]]), template.wording),
        "entities": sorted(case.entities),
        "require_reset": False,
        "eval": dict(case.eval),
        "plan": [dict(step) for step in case.plan],
    }


def _placed(url: str) -> str:
    """Write a site's URL with its placeholder, as WebArena's tasks do."""
    place = next(place for place in PLACES.values() if f"{url}/".startswith(f"{place.url}/"))
    return f"__{place.key.upper()}__{url.removeprefix(place.url)}"


def _in_turn(lists: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    longest = max(map(len, lists), default=0)
    return [tasks[i] for i in range(longest) for tasks in lists if i < len(tasks)]


def _numbered(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [task | {"task_id": number} for number, task in enumerate(tasks)]
