"""WebArena's evaluation: the score is the product of the parts of a task's `eval`, each 0 or 1.

It follows the paper (Zhou et al. 2023, arXiv 2307.13854, section 3.2) and the benchmark's repository.
Nothing from a task file is executed in Python: calls of helper functions are parsed and looked up in a table.
If a site, the browser or the judge fails during the evaluation, an `EnvFault` is raised instead of a score.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_envs.worlds.webarena.browser.login import Accounts
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.evaluation import database as database_part
from agentgym_envs.worlds.webarena.evaluation import program_html, string_match, url_match
from agentgym_envs.worlds.webarena.evaluation.judge import Judge, missing_judge_message, needs_judge
from agentgym_envs.worlds.webarena.evaluation.locators import Caller

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.browser.session import Session

__all__ = ["Judge", "Verdict", "evaluate", "evaluate_ending", "missing_judge_message", "needs_judge"]
_HTML = "program_html"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evaluation of an episode."""

    score: float
    """The product of the parts, 0 or 1."""
    parts: dict[str, float]
    """The score of each of the task's `eval_types`."""


async def evaluate(
    task: Mapping[str, Any],
    answer: str,
    session: Session,
    sites: Sites,
    *,
    judge: Judge | None = None,
    database: Mapping[str, Path] | None = None,
    accounts: Accounts | None = None,
) -> Verdict:
    """Evaluate an episode by its task's `eval`, once, after the agent's `stop`.

    Args:
        task: The payload of a task from `task_files`, with its placeholders.
        answer: The answer that the agent gave with `stop`; empty if it gave none or never stopped.
        session: The session with the agent's final tabs. Further pages are opened in the background and closed again.
        sites: The sites' URLs.
        judge: The model that judges free-form answers, for tasks with `needs_judge(task)`.
        database: The SQLite file of each site, for tasks that check the databases.
        accounts: The accounts for the shop's API, for tasks that look up reviews and orders; WebArena's by default.

    Raises:
        ValueError: if the task needs a judge, a database or a site that isn't given; check this before the episode.
        EnvFault: if a site, the browser, a database or the judge fails.
    """
    filled = sites.fill(dict(task))
    if not session.tabs:
        await session.new_tab()  # a page has just closed the last tab
    last_url = session.tab.url
    html_scores: dict[str, float] = {}
    if _HTML in (kinds := filled["eval"]["eval_types"]):
        caller = Caller(sites, accounts or Accounts(), last_url)
        html_scores[_HTML] = await program_html.score(filled["eval"]["program_html"], session, caller)
        filled["eval"] = {**filled["eval"], "eval_types": [kind for kind in kinds if kind != _HTML]}
    canonical = ""
    if "url_match" in kinds and url_match.reads_canonical(filled["eval"]):
        canonical = await program_html.read_stable(
            session.tab.page, lambda: session.guard(session.tab.page.evaluate(url_match.CANONICAL_SCRIPT))
        )
    rest = await evaluate_ending(filled, answer, last_url, canonical, judge=judge, database=database)
    parts = {kind: (html_scores | rest.parts)[kind] for kind in kinds}
    return Verdict(math.prod(parts.values()), parts)


async def evaluate_ending(
    task: Mapping[str, Any],
    answer: str,
    url: str,
    canonical: str = "",
    *,
    judge: Judge | None = None,
    database: Mapping[str, Path] | None = None,
) -> Verdict:
    """Evaluate an episode in any browser, by its answer, the URL of its last page and the databases.

    Args:
        task: The payload of a task without placeholders and without `program_html`, which needs a `Session`.
        answer: The agent's answer; empty if it gave none.
        url: The URL of the page at which the agent stopped.
        canonical: The result of `url_match.CANONICAL_SCRIPT` on that page.
        judge: See `evaluate`.
        database: See `evaluate`.

    Raises:
        ValueError: if the task needs `program_html`, a judge or a database that isn't given.
        EnvFault: if a database or the judge fails.
    """
    parts: dict[str, float] = {}
    for kind in task["eval"]["eval_types"]:
        match kind:
            case "string_match":
                parts[kind] = await string_match.score(task, answer, judge)
            case "url_match":
                parts[kind] = url_match.score(task["eval"], url, canonical)
            case "database":
                checks = task["eval"]["database"]
                parts[kind] = await asyncio.to_thread(database_part.score, checks, database or {})
            case _:
                raise ValueError(
                    f"Task {task.get('task_id')} has the eval type {kind!r}, which can't be evaluated here."
                )
    return Verdict(math.prod(parts.values()), parts)
