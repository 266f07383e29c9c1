"""Files with the expert's distances to the goal, next to files of episodes (schema `agentgym.distances/1`).

A line has the environment, the task and the sample of an unsuccessful episode, and its distances; see
`agentgym_eval.metrics.failure_causes.Distances`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym_envs.util.files import write_whole

from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey

SCHEMA = "agentgym.distances/1"


_SUFFIX = ".distances.jsonl"


def distances_file(episodes: Path) -> Path:
    """Return the path of the distances that belong to a file of episodes; it may not exist."""
    return episodes.with_suffix(_SUFFIX)


def is_distances_file(path: Path) -> bool:
    """Return whether a path is that of a file of distances."""
    return path.name.endswith(_SUFFIX)


def read_distances(episodes: Path) -> dict[EpisodeKey, Distances]:
    """Read the distances that belong to a file of episodes; empty if there are none. Invalid lines are left out, since
    the distances can be measured again.
    """
    try:
        lines = distances_file(episodes).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return dict(filter(None, map(_parsed, lines)))


def write_distances(episodes: Path, distances: Mapping[EpisodeKey, Distances]) -> None:
    """Write the distances that belong to a file of episodes. Raises OSError if the folder can't be written to."""
    lines = [
        json.dumps({"schema": SCHEMA, "env": env, "task_id": task, "sample": sample, "distances": list(known)})
        for (env, task, sample), known in distances.items()
    ]
    write_whole(distances_file(episodes), "".join(f"{line}\n" for line in lines))


def _parsed(line: str) -> tuple[EpisodeKey, Distances] | None:
    try:
        record: Any = json.loads(line)
        env, task, sample, distances = (record[name] for name in ("env", "task_id", "sample", "distances"))
        schema = record["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(distances, list) and all(type(each) is int or each is None for each in distances)
    names = isinstance(env, str) and isinstance(task, str) and type(sample) is int
    return ((env, task, sample), tuple(distances)) if schema == SCHEMA and known and names else None
