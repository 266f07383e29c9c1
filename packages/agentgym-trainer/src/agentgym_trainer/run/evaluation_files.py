"""The files of a run's evaluations: one line of JSON per episode, and how many episodes each of them has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, read_episodes
from agentgym_envs.util.files import write_whole


def write_evaluation(path: Path, episodes: Sequence[Episode]) -> None:
    """Write the episodes of an evaluation, and record their number first."""
    path.parent.mkdir(exist_ok=True)
    counts = _counts(path) | {path.stem: len(episodes)}
    write_whole(_counts_file(path), json.dumps(counts, indent=2) + "\n")
    write_whole(path, "".join(f"{episode.to_json()}\n" for episode in episodes))


def load_evaluation(path: Path) -> tuple[list[Episode], str | None]:
    """Return the episodes of an evaluation, and what is wrong with the file; None if it is whole.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    halves = list[str]()
    try:
        episodes = list(read_episodes(path, half=halves.append))
    except ValueError as error:
        return [], str(error)
    if halves:
        return episodes, halves[0]
    expected = _counts(path).get(path.stem, len(episodes))  # runs of 0.2.0 have no numbers
    return episodes, None if len(episodes) == expected else f"{path} has {len(episodes)} of {expected} episodes"


def _counts_file(path: Path) -> Path:
    return path.parent.with_suffix(".json")


def _counts(path: Path) -> dict[str, Any]:
    """Return the number of episodes of each evaluation, by the name of its file."""
    try:
        return dict(json.loads(_counts_file(path).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):  # a run of 0.2.0, or damaged; it is then written again
        return {}
