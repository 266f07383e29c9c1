"""How tasks are made from the data: templates with holes, filled in, checked, and dealt to the splits.

A template yields cases. A case names the entities it is about (a product, a user, a town); an entity belongs to one
split for all templates, by a hash of its name, and so does a case whose entities agree. Templates that are held out
have tasks in the test split only.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.directory import PLACES

Databases = Mapping[str, sqlite3.Connection]
"""By name (`shop`, `forum`, `code`, `map`, `wiki`), for reading; rows are `sqlite3.Row`."""
Step = Mapping[str, Any]
_COLLECTIONS = ("shop", "shop_admin", "forum", "code", "map", "wiki", "cross_site")
_HOLE = re.compile(r"\{\{(\w+)\}\}")
_WANTED = {"train": 5, "dev": 1, "test": 1}
_WANTED_HELD_OUT = {"train": 0, "dev": 0, "test": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """One way of filling a template's holes, how it is judged and how it is done."""

    values: Mapping[str, str | int]
    """What goes into the holes of the wording."""
    entities: frozenset[str]
    """What it is about, such as `product:17`; entities of test tasks are in no train task."""
    eval: Mapping[str, Any]
    """WebArena's `eval`; see `said`, `at`, `page` and `rows`, which make its parts, and `both`."""
    plan: Sequence[Step]
    """The oracle's way from the start page to the end; see `go`, `click`, `fill`, `choose`, `press`, `stop`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task."""

    name: str
    """Such as `shop/cheapest-in-category`; unique."""
    sites: tuple[str, ...]
    """Keys of the sites it needs; the first is where it starts."""
    wording: str
    """The intent, with holes: `Add {{product}} to my cart`."""
    cases: Callable[[Databases, Random], Iterable[Case]]
    """Yields distinct cases, in random order and as many as there sensibly are (a hundred is plenty)."""
    held_out: bool = False
    """Whether its tasks are in the test split only."""


def said(*must_state: str, exact: str | None = None) -> dict[str, Any]:
    """Judge the answer: it equals `exact`, or states each of `must_state` and little else (case doesn't matter)."""
    reference = {"must_state": list(must_state)} if exact is None else {"exact_match": exact}
    return {"eval_types": ["string_match"], "reference_answers": reference}


def at(url: str) -> dict[str, Any]:
    """Judge the address of the page the agent stopped at (path, and the fields of the query that `url` has)."""
    return {"eval_types": ["url_match"], "reference_url": url, "url_note": "SAME PATH"}


def page(url: str, locator: str, *must_include: str) -> dict[str, Any]:
    """Judge a page (`last` or an address): what the JavaScript `locator` finds there contains every text."""
    contents = {"must_include": list(must_include)}
    checked = {"url": url, "locator": locator, "required_contents": contents}
    return {"eval_types": ["program_html"], "program_html": [checked]}


def rows(site: str, query: str, *expected: Sequence[Any]) -> dict[str, Any]:
    """Judge the database of `site`: the query gives exactly these rows in this order. It must not hold at the start."""
    check = {"site": site, "query": query, "rows": [list(row) for row in expected]}
    return {"eval_types": ["database"], "database": [check]}


def both(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """All parts must hold. There may be several of `page` and `rows`, and one each of `said` and `at`."""
    joined: dict[str, Any] = {"eval_types": []}
    for part in parts:
        for key, value in part.items():
            if not isinstance(value, list) and key in joined:
                raise ValueError(f"Two parts have a {key}; one would be lost.")
            joined[key] = [*joined.get(key, ()), *value] if isinstance(value, list) else value
    joined["eval_types"] = sorted(set(joined["eval_types"]))
    return joined


def go(url: str) -> Step:
    """Type an address: `go("http://shop.example/cart")`."""
    return {"do": "goto", "url": url}


def click(role: str, name: str, nth: int = 0) -> Step:
    """Click what has this role and accessible name, the `nth` of them from above."""
    return {"do": "click", "role": role, "name": name, "nth": nth}


def fill(role: str, name: str, text: str, *, enter: bool = False, nth: int = 0) -> Step:
    """Type into a field, and press Enter where asked."""
    return {"do": "type", "role": role, "name": name, "text": text, "enter": enter, "nth": nth}


def choose(name: str, option: str, nth: int = 0) -> Step:
    """Choose an option, by what it shows, of the `<select>` of that accessible name."""
    return {"do": "select", "role": "combobox", "name": name, "option": option, "nth": nth}


def press(keys: str) -> Step:
    """Press keys."""
    return {"do": "press", "keys": keys}


def back() -> Step:
    """Go back one page."""
    return {"do": "back"}


def stop(answer: str = "") -> Step:
    """End, with an answer where the task asks for one. The last step of every plan."""
    return {"do": "stop", "answer": answer}


def split_of(entity: str) -> str:
    """The split an entity belongs to: two in ten to `test`, one to `dev`, the others to `train`."""
    draw = hashlib.sha256(entity.encode()).digest()[0] % 10
    return "test" if draw < 2 else "dev" if draw == 2 else "train"


def templates() -> list[Template]:
    """All templates, in a fixed order."""
    modules = [import_module(f"agentgym_envs.worlds.webarena.sites.{name}.tasks") for name in _COLLECTIONS]
    return [template for module in modules for template in module.TEMPLATES]


def make_tasks(databases: Databases) -> dict[str, list[dict[str, Any]]]:
    """The tasks of each split, templates in turn, so that any first part of a split is a fair sample."""
    dealt: dict[str, list[list[dict[str, Any]]]] = {"train": [], "dev": [], "test": []}
    for template in templates():
        for split, cases in deal(template, databases).items():
            dealt[split].append([_task(template, case) for case in cases])
    return {split: _numbered(_in_turn(lists)) for split, lists in dealt.items()}


def deal(template: Template, databases: Databases) -> dict[str, list[Case]]:
    """The cases of one template by split, as many as are wanted of each and there are."""
    wanted = _WANTED_HELD_OUT if template.held_out else _WANTED
    dealt: dict[str, list[Case]] = {split: [] for split in wanted}
    for case in template.cases(databases, Random(template.name)):
        splits = {split_of(entity) for entity in case.entities}
        split = splits.pop() if len(splits) == 1 else None
        if split is not None and len(dealt[split]) < wanted[split]:
            dealt[split].append(case)
        if all(len(dealt[split]) >= wanted[split] for split in wanted):
            break
    return dealt


def _task(template: Template, case: Case) -> dict[str, Any]:
    start = f"__{template.sites[0].upper()}__"
    return {
        "sites": list(template.sites),
        "template": template.name,
        "require_login": any(PLACES[site].account for site in template.sites),
        "start_url": start,
        "intent_template": template.wording,
        "instantiation_dict": dict(case.values),
        "intent": _HOLE.sub(lambda hole: str(case.values[hole[1]]), template.wording),
        "entities": sorted(case.entities),
        "require_reset": False,
        "eval": dict(case.eval),
        "plan": [dict(step) for step in case.plan],
    }


def _in_turn(lists: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    longest = max(map(len, lists), default=0)
    return [tasks[i] for i in range(longest) for tasks in lists if i < len(tasks)]


def _numbered(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [task | {"task_id": number} for number, task in enumerate(tasks)]
