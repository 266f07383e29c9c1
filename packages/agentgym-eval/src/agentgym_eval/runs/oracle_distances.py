"""How far from the goal an agent was at each turn, in actions of the environment's expert.

Episodes are replayed, and in each state the expert plays on to the goal. This needs an expert that decides from the
current state (`TextEnv.oracle_replans`) and an environment that returns the recorded observations again. It costs about
as many steps as turns times distance, so reports leave it out unless it is asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from agentgym_envs import EnvFault, Episode, Malformed, TextEnv
from agentgym_envs.core.feedback import faulting
from agentgym_envs.episodes.replay import replay
from gymnasium.error import DependencyNotInstalled

from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey, episode_key
from agentgym_eval.runs.recorded_env import client_options, recorded_class, recorded_seed
from agentgym_eval.storage.distances import distances_file, read_distances, write_distances

MOST = 100
"""Maximum number of the expert's actions; a goal further away counts as not reached."""


class DistanceMeter:
    """Measures distances in one environment. Results of common beginnings of episodes are reused."""

    def __init__(self, env: TextEnv, seed: int, most: int = MOST) -> None:
        """Measure nothing yet.

        Args:
            env: The environment itself, without wrappers, with the options of the recording. It is reset often, and
                stays open.
            seed: The seed of the recording.
            most: Maximum number of the expert's actions.

        Raises:
            ValueError: if the environment has no expert that decides from the current state.
        """
        if not can_measure(type(env)):
            raise ValueError(f"{type(env).__name__} has no expert that decides from the current state.")
        self._env = env
        self._seed = seed
        self._most = most
        self._task = ""
        self._known: dict[tuple[str, ...], int | None] = {}

    def distances(self, episode: Episode) -> Distances:
        """Return the distances at each turn of an episode and at its end, up to where the replay deviates."""
        states: list[tuple[str, ...]] = []
        with suppress(EnvFault), faulting(type(self._env).__name__):  # where the replay deviates, too
            for taken in replay(self._env, episode, seed=self._seed):
                states.append(taken)
        if episode.task_id != self._task:
            self._task, self._known = episode.task_id, {}
        return tuple(map(self._distance, states))

    def _distance(self, taken: tuple[str, ...]) -> int | None:
        """Return the number of the expert's actions to the goal after the actions `taken` from the beginning."""
        key = _executed(taken)
        if key not in self._known:
            self._measure(taken)
        return self._known[key]

    def _measure(self, taken: tuple[str, ...]) -> None:
        """Let the expert play on, and note the distances of all states on its way."""
        path, reached = list[str](), False
        with suppress(EnvFault), faulting(type(self._env).__name__):
            _, info = self._env.reset(seed=self._seed, options={"task": self._task})
            over = False
            for action in taken:
                _, _, terminated, truncated, info = self._env.step(action)
                over = terminated or truncated
            reached = info["success"]
            while not (reached or over) and len(path) < self._most:
                path.append(self._env.oracle())
                _, _, terminated, truncated, info = self._env.step(path[-1])
                reached, over = info["success"], terminated or truncated
        if not reached:
            self._known[_executed(taken)] = None
            return
        for number in range(len(path) + 1):
            self._known[_executed((*taken, *path[:number]))] = len(path) - number


def _executed(taken: tuple[str, ...]) -> tuple[str, ...]:
    """Return the actions without replies that had none, which environments don't execute."""
    return tuple(action for action in taken if not isinstance(action, Malformed))


def can_measure(env_class: type[TextEnv]) -> bool:
    """Return whether the environment has an expert that decides from the current state."""
    return env_class.has_oracle and env_class.oracle_replans


def measure(env: TextEnv, seed: int, episodes: Iterable[Episode]) -> Iterator[tuple[EpisodeKey, Distances]]:
    """Yield the distances of the unsuccessful episodes of one environment; see `DistanceMeter`."""
    meter = DistanceMeter(env, seed)
    for episode in sorted(episodes, key=lambda each: each.task_id):
        if not (episode.success or episode.failed):
            yield episode_key(episode), meter.distances(episode)


def recorded_distances(file: Path, episodes: Sequence[Episode]) -> dict[EpisodeKey, Distances]:
    """Return the distances of the unsuccessful episodes of a file: those next to it, and for episodes without any, by
    replaying them with the settings of their run. Episodes of environments that can't be measured have none, and
    neither have several with the same `episode_key`.
    """
    known = read_distances(file)
    return known | dict(_missing(file, episodes, known))


def _missing(
    file: Path, episodes: Sequence[Episode], known: Mapping[EpisodeKey, Distances]
) -> Iterator[tuple[EpisodeKey, Distances]]:
    """Yield the distances that are measured for `recorded_distances`, besides those that are known."""
    keys, before = Counter(map(episode_key, episodes)), {*known}
    for env_id in dict.fromkeys(episode.env for episode in episodes):
        env_class = recorded_class(env_id)
        own = (episode for episode in episodes if episode.env == env_id)
        missing = [episode for episode in own if (key := episode_key(episode)) not in before and keys[key] == 1]
        if env_class is None or not can_measure(env_class) or not missing:
            continue
        settings = run_settings(file)
        try:
            env = env_class(**client_options(env_class, settings, env_id))
        except (ImportError, DependencyNotInstalled, ValueError, TypeError):
            continue
        with closing(env):
            yield from measure(env, recorded_seed(settings), missing)


def saved_distances(
    file: Path, episodes: Sequence[Episode], check: Callable[[], object] = lambda: None
) -> tuple[dict[EpisodeKey, Distances], str]:
    """Return the same distances, after writing them next to the file if new ones were measured.

    Args:
        file: The file of the episodes.
        episodes: Its episodes.
        check: Called after each episode; may raise an exception to stop. What was measured until then is written.

    Returns:
        The distances, and a sentence if they could not be written; else an empty string.
    """
    found, news, note = read_distances(file), False, ""
    try:
        for key, distances in _missing(file, episodes, found):
            found[key] = distances
            news = news or bool(distances)
            check()
    finally:
        if news:
            try:
                write_distances(file, found)
            except OSError as error:
                note = f"The expert's distances could not be saved in {distances_file(file)}: {error}"
    return found, note


def measure_run(file: Path, episodes: Sequence[Episode], env: TextEnv, seed: int) -> dict[EpisodeKey, Distances]:
    """Measure the distances of a run's unsuccessful episodes, and write them next to the file of its episodes.

    Distances of an earlier call are kept, also of one that was interrupted. Returns an empty mapping, and writes
    nothing, in an environment that can't be measured.
    """
    if not can_measure(type(env)):
        return {}
    known = read_distances(file)
    missing = [episode for episode in episodes if episode_key(episode) not in known]
    try:
        for key, distances in measure(env, seed, missing):
            known[key] = distances
    finally:
        write_distances(file, known)
    return known


def run_settings(file: Path) -> Mapping[str, Any]:
    """Return the settings of the run that a file of episodes belongs to; empty if it has no readable `run.json`."""
    for folder in file.parents[:2]:
        try:
            record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found = (record.get("settings") or record.get("config")) if isinstance(record, dict) else None
        return found if isinstance(found, dict) else {}
    return {}
