"""WebArena-Verified (ServiceNow, 2025): audited tasks, evaluated by the answer and by the browser's requests.

The package `webarena-verified` brings 812 audited tasks, a hard subset of 258, and the 812 original ones, which are
read here as WebArena's own. The package evaluates the audited tasks from the answer, a JSON object, and the browser's
requests, recorded as HAR. It is an optional extra, imported only when it is used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentgym_envs.core.tasks import Task
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.extras import brought_by
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.evaluation import Verdict
from agentgym_envs.worlds.webarena.tasks.task_files import ENV_ID, category, read_tasks, template

if TYPE_CHECKING:
    from webarena_verified.api import WebArenaVerified

EXTRA: Final = "webarena-verified"
ORIGINAL, ALL, HARD = "webarena", "webarena-verified", "webarena-verified-hard"
VERIFIED_SETS: Final = (ORIGINAL, ALL, HARD)
"""The task sets of the package: WebArena's original tasks, the audited ones, and the hard subset of these."""
EVAL_TYPE: Final = "webarena_verified"
"""The only eval type of an audited task, which the package evaluates."""
ANSWER_FORMAT: Final = """\
Say what came of it as a JSON object in the brackets of stop: {"task_type": "RETRIEVE", "MUTATE" or "NAVIGATE", \
"status": "SUCCESS", "ACTION_NOT_ALLOWED_ERROR", "PERMISSION_DENIED_ERROR", "NOT_FOUND_ERROR", "DATA_VALIDATION_ERROR" \
or "UNKNOWN_ERROR", "retrieved_data": a list of what was asked for (null unless the task is to retrieve something), \
"error_details": null or, where it failed, why in a sentence}."""
"""The answer format, appended to the objective of an audited task."""


def verified_tasks(name: str) -> tuple[Task, ...]:
    """Return the tasks of one of `VERIFIED_SETS`, all in the split `test`.

    Raises:
        ValueError: for another name.
        DependencyNotInstalled: if the package isn't installed; the message has the install command.
    """
    if name not in VERIFIED_SETS:
        raise ValueError(f"WebArena-Verified has no set {name!r}; it has {', '.join(VERIFIED_SETS)}.")
    if name == ORIGINAL:
        return read_tasks(_assets() / "dataset" / "test.raw.json", ORIGINAL)
    records = [task.model_dump(mode="json") for task in _package().get_tasks()]
    if name == HARD:
        hard = set(json.loads((_assets() / "dataset" / "subsets" / f"{HARD}.json").read_text())["task_ids"])
        records = [record for record in records if record["task_id"] in hard]
    return tuple(_task(record, name) for record in records)


def is_verified(task: Mapping[str, Any]) -> bool:
    """Whether a task's payload is that of an audited task, which `evaluate_verified` evaluates."""
    return EVAL_TYPE in task["eval"]["eval_types"]


def evaluate_verified(task: Mapping[str, Any], answer: str, har: Path, sites: Sites) -> Verdict:
    """Evaluate an episode of an audited task.

    Args:
        task: The task's payload.
        answer: The answer that the agent gave with `stop`; see `ANSWER_FORMAT`.
        har: The browser's requests and responses, as Playwright records them.
        sites: The sites' URLs.

    Raises:
        DependencyNotInstalled: if the package isn't installed; the message has the install command.
        EnvFault: if the recording can't be evaluated.
    """
    result = _package(sites).evaluate_task(task_id=task["task_id"], agent_response=answer, network_trace=har)
    if not result.evaluators_results:
        raise EnvFault(f"WebArena-Verified can't evaluate the recording {har}: {result.error_msg}")
    parts: dict[str, float] = {}
    for number, part in enumerate(result.evaluators_results):
        # A malformed answer, which is the agent's fault, makes the answer evaluator report an error.
        if part.status == "error" and part.evaluator_name != "AgentResponseEvaluator":
            raise EnvFault(f"WebArena-Verified can't evaluate task {task['task_id']}: {part.error_msg}")
        parts[f"{number} {part.evaluator_name}"] = float(part.score)
    return Verdict(float(all(parts.values())), parts)


def _task(record: dict[str, Any], name: str) -> Task:
    """Build a task with the keys of WebArena's tasks. It requires a reset if it is to change something."""
    payload = {
        **record,
        "start_url": " |AND| ".join(record["start_urls"]),
        "require_login": True,
        "require_reset": any(part["expected"].get("task_type") == "MUTATE" for part in record["eval"]),
        "eval": {"eval_types": [EVAL_TYPE], "evaluators": record["eval"]},
    }
    sites = [str(site) for site in record["sites"]]
    return Task(
        f"webarena/{name}/{record['task_id']}",
        ENV_ID,
        "test",
        category(sites),
        len(record["eval"]),
        payload,
        template(record),
    )


@cache
def _package(sites: Sites | None = None) -> WebArenaVerified:
    """Return the package's API, configured with the sites' URLs."""
    with brought_by(EXTRA):
        from webarena_verified.api import WebArenaVerified
        from webarena_verified.types.config import WebArenaVerifiedConfig
    for name in ("WebArena-Verified", "webarena_verified"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its log messages repeat the results
    urls = {f"__{key.upper()}__": {"urls": [url]} for key, url in (sites or Sites()).configured.items()}
    return WebArenaVerified(config=WebArenaVerifiedConfig.model_validate({"environments": urls} if urls else {}))


def _assets() -> Path:
    with brought_by(EXTRA):
        from webarena_verified.utils import get_package_assets_path
    return Path(get_package_assets_path())
