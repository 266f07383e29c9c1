"""What a WebArena task is worth at its end: the parts of its `eval`, each 0 or 1, multiplied.

After the paper (Zhou et al. 2023, arXiv 2307.13854, section 3.2) and what the benchmark's repository says and does.
Nothing from a task file is executed in Python: calls of helper functions are parsed and looked up in a table.
A fault of a site, of the browser or of the judge while judging is an `EnvFault`; nothing is scored by accident.
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
from agentgym_envs.worlds.webarena.evaluation.judge import Judge, needs_judge, refusal
from agentgym_envs.worlds.webarena.evaluation.locators import Caller

if TYPE_CHECKING:
    from agentgym_envs.worlds.webarena.browser.session import Session

__all__ = ["Judge", "Verdict", "evaluate", "needs_judge", "refusal"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an episode is worth."""

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
    """Judge an episode by its task's `eval`, once, after the agent said `stop`.

    Args:
        task: The payload of a task of `task_files`, placeholders and all.
        answer: What the agent said with `stop`; empty when it said nothing or never stopped.
        session: The agent's tabs, as it left them; pages are opened beside them and closed again.
        sites: Where the sites are.
        judge: The model that judges free answers, for tasks with `needs_judge(task)`.
        database: The SQLite file of each site, for tasks that are judged by what is in them.
        accounts: Who may ask the shop's API, for tasks that look up reviews and orders; WebArena's own by default.

    Raises:
        ValueError: when the task needs a judge, a database or a site that isn't given; it should not have been begun.
        EnvFault: when a site, the browser, a database or the judge failed.
    """
    filled = sites.fill(dict(task))
    if not session.tabs:
        await session.new_tab()  # a page has just closed the last one
    last_url = session.tab.url
    parts: dict[str, float] = {}
    for kind in filled["eval"]["eval_types"]:
        match kind:
            case "string_match":
                parts[kind] = await string_match.score(filled, answer, judge)
            case "url_match":
                parts[kind] = url_match.score(filled["eval"], last_url)
            case "program_html":
                caller = Caller(sites, accounts or Accounts(), last_url)
                parts[kind] = await program_html.score(filled["eval"]["program_html"], session, caller)
            case "database":
                checks = filled["eval"]["database"]
                parts[kind] = await asyncio.to_thread(database_part.score, checks, database or {})
            case _:
                raise ValueError(f"Task {task.get('task_id')} has an eval type {kind!r}, which is unknown here.")
    return Verdict(math.prod(parts.values()), parts)
