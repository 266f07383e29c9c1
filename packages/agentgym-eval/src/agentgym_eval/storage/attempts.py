"""Reading files of episodes as attempts: one for each policy, environment, task and sample.

A file may have several lines for one attempt, for example if it was appended to itself. The last line counts, as in
`evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym_envs import Episode, read_episodes

from agentgym_eval.metrics.failure_causes import EpisodeKey, episode_key

AttemptKey = tuple[str, EpisodeKey]
"""Policy, and the key in its run: merged files have episodes of several policies."""
_TRAINING_DATA = {"data.jsonl", "kept.jsonl", "sampled.jsonl"}


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts in a file."""

    episodes: list[Episode]
    """In the order in which the file has the first line of each."""
    left_out: list[str]
    """A message for each line that doesn't count."""


def read_attempts(path: Path) -> Attempts:
    """Read the attempts in a file; every line is one in files that `may_repeat`. Raises as `read_episodes`."""
    left_out: list[str] = []
    read = enumerate(read_episodes(path, half=left_out.append), 1)
    if may_repeat(path):
        return Attempts([episode for _, episode in read], left_out)
    lines: dict[AttemptKey, int] = {}
    episodes: dict[AttemptKey, Episode] = {}
    for number, episode in read:
        key = attempt_key(episode)
        if key in lines:
            left_out.append(repeated(path, lines[key], number, episode))
        lines[key], episodes[key] = number, episode
    return Attempts(list(episodes.values()), left_out)


def attempt_key(episode: Episode) -> AttemptKey:
    """Return what identifies an attempt in a file that isn't one that `may_repeat`."""
    return episode.policy, episode_key(episode)


def may_repeat(path: Path) -> bool:
    """Return whether several lines of a file may have the same key and still be different attempts: in the rollouts of
    a training step, which may have several groups of a task, and in training data, which is merged from several files.
    """
    return path.parent.name == "rollouts" or path.name in _TRAINING_DATA


def repeated(path: Path, line: int, later: int, episode: Episode) -> str:
    """Return the sentence that says that a line of a file doesn't count, since a later one has the same attempt."""
    again = f"{episode.task_id}, sample {episode.sample}, is in line {later} again"
    return f"{path}, line {line}: {again}, which counts instead."
