"""What the options of the environment stand for, such as real sites and a judge of free-form answers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np

from agentgym_envs.worlds.webarena.browser.login import Accounts
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.evaluation import Judge
from agentgym_envs.worlds.webarena.tasks import containers
from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
from agentgym_envs.worlds.webarena.tasks.site_backend import RealSites
from agentgym_envs.worlds.webarena.tasks.task_sets import EMBEDDED, MINIWOB, find_task_set

Skin = Literal["plain", "rough"]
SKINS: tuple[Skin, ...] = ("plain", "rough")
"""The skins of the embedded sites."""


def check_task_set_options(task_set: str, *, sites: object, templates: object, pages: object) -> Path | None:
    """Check that there is such a task set, and that the options of other task sets are None. Returns the absolute path
    of a file or folder of tasks, and None for the name of a task set.

    Raises:
        ValueError: if there is none, or an option isn't.
    """
    path = find_task_set(task_set)
    if task_set in (EMBEDDED, MINIWOB) and sites is not None:
        raise ValueError(
            f"The tasks of {task_set} run on this machine's own pages only. To use your own sites, give a task_set, "
            "too, such as 'webarena' or a file of tasks."
        )
    if task_set != EMBEDDED and templates is not None:
        raise ValueError(f"Only the embedded tasks have templates; leave templates out for {task_set}.")
    if task_set != MINIWOB and pages is not None:
        raise ValueError(f"Only task_set='miniwob' has pages to choose from; leave pages out for {task_set}.")
    return path


def choose_skins(skin: str, task_set: str) -> tuple[Skin, ...]:
    """Return the skins among which the option `skin` draws: one of `SKINS`, or with `mixed` all of them.

    Raises:
        ValueError: if there is no such skin, or the tasks aren't the embedded ones.
    """
    chosen: tuple[Skin, ...] = tuple(known for known in SKINS if skin in (known, "mixed"))
    if not chosen:
        raise ValueError(f"skin must be 'plain', 'rough' or 'mixed', not {skin!r}.")
    if skin != "plain" and task_set != EMBEDDED:
        raise ValueError(f"Only the embedded sites have a skin; leave skin out for {task_set}.")
    return chosen


def draw_skin(skins: Sequence[Skin], task_id: str, drawn: int) -> Skin:
    """Return the skin of an episode by a number that was drawn from the environment's generator and by the task: the
    episodes of an evaluation all have the same seed, and their skins differ by task.
    """
    draw = np.random.default_rng([drawn, crc32(task_id.encode())])
    return skins[int(draw.integers(len(skins)))]


def check_view(observe: str, max_chars: int, viewport: object, longest: int, **flags: bool) -> None:
    """Check the options of what is observed.

    Args:
        observe: The option `observe`.
        max_chars: The option `max_chars`.
        viewport: The option `viewport`.
        longest: The largest `max_chars`.
        **flags: Options that are true or false, by name.

    Raises:
        ValueError: if one has another type or is out of range.
    """
    if observe not in ("viewport", "page"):
        raise ValueError(f"observe must be 'viewport' or 'page', not {observe!r}.")
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or not 500 <= max_chars <= longest:
        raise ValueError(f"max_chars must be an integer from 500 to {longest:,}, not {max_chars!r}.")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be true or false, not {flag!r}.")
    sides = viewport if isinstance(viewport, Sequence) and len(viewport) == 2 else ()
    if not sides or not all(isinstance(side, int) and 100 <= side <= 10_000 for side in sides):
        raise ValueError(
            f"viewport must be width and height in pixels (100 to 10,000), such as (1280, 720), not {viewport!r}."
        )


def check_elements(elements: str, *, marks: bool) -> None:
    """Check the option `elements`.

    Raises:
        ValueError: if it is unknown, or marks would show ids beside names.
    """
    if elements not in ("ids", "names"):
        raise ValueError(f"elements must be 'ids' or 'names', not {elements!r}.")
    if marks and elements == "names":
        raise ValueError("Marks show the ids of elements; leave marks or elements='names' out.")


def real_sites(
    sites: Mapping[str, str] | str | None,
    accounts: Accounts,
    reset_hook: str | tuple[str, ...] | ResetHook | None,
    extra_hosts: tuple[str, ...],
) -> RealSites:
    """Return the real sites of the options `sites`, `accounts`, `reset_hook` and `extra_hosts`.

    Raises:
        ValueError: if no URL is configured, neither here nor in the environment's variables.
    """
    known = Sites.from_environment(os.environ).configured | Sites.of(sites or {}).configured
    if not known:
        raise ValueError(
            "No site URLs are configured: give sites='shopping=http://HOST:PORT,...', or set SHOPPING, "
            "SHOPPING_ADMIN, REDDIT, GITLAB, MAP, WIKIPEDIA and HOMEPAGE (or the same names prefixed with WA_)."
        )
    if reset_hook == "containers":
        reset_hook = ResetHook(containers.HOOK, when="always")
    elif reset_hook is not None and not isinstance(reset_hook, ResetHook):
        reset_hook = ResetHook(reset_hook if isinstance(reset_hook, str) else tuple(reset_hook))
    return RealSites(Sites(**known), accounts, reset_hook, extra_hosts)


def judge_of(judge: str | Judge | None) -> Judge | None:
    """Return the judge of the option `judge`. Raises `ValueError` if it isn't MODEL@BASE_URL."""
    if not isinstance(judge, str):
        return judge
    parts = re.fullmatch("(.+?)@(https?://.+)", judge)  # names of models and passwords in URLs may contain @
    if parts is None:
        raise ValueError(f"judge is {judge!r}; expected MODEL@http://HOST:PORT/v1.")
    return Judge(parts[2], parts[1], os.environ.get("OPENAI_API_KEY", ""))
