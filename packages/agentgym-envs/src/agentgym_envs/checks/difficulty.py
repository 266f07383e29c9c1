"""The difficulty curve: the success of the random policy and of the oracle by the difficulty of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, zip_longest

import gymnasium
import numpy as np

from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import Task, Tasks
from agentgym_envs.core.text_env import truncated_result

RANDOM_SUCCESS = 0.5
"""The random policy's share of successful episodes above which a task set tells little about an agent."""
_LEVELS = 5
"""The most rows of the table; with more difficulties, neighbours are joined."""
_CONSIDERED = 500
"""The number of tasks, evenly spaced in the split, from which those to play are chosen."""
_ORACLE_LIMIT, _RANDOM_LIMIT = 500, 100
"""The most turns of an episode in an environment without a limit."""


@dataclass(slots=True)
class Level:
    """The episodes of the tasks of some neighbouring difficulties."""

    lowest: int
    """The lowest difficulty."""
    highest: int
    """The highest difficulty."""
    tasks: int
    """The number of tasks."""
    random: list[bool] = field(default_factory=list[bool])
    """The success of each random episode; empty if the available actions can't be listed."""
    oracle: list[bool] = field(default_factory=list[bool])
    """The success of each episode of the oracle; empty if there is none."""
    oracle_actions: list[int] = field(default_factory=list[int])
    """The number of actions in each successful episode of the oracle."""

    @property
    def random_success(self) -> float | None:
        """The random policy's share of successful episodes; None without episodes."""
        return _mean(self.random)

    @property
    def oracle_success(self) -> float | None:
        """The oracle's share of successful episodes; None without episodes."""
        return _mean(self.oracle)

    @property
    def mean_oracle_actions(self) -> float | None:
        """The mean number of actions in the oracle's successful episodes; None without such episodes."""
        return _mean(self.oracle_actions)


@dataclass(frozen=True, slots=True)
class DifficultyCurve:
    """The difficulty curve of an environment."""

    levels: list[Level]
    """The levels, from the easiest on."""
    failed: list[str]
    """Ids of the tasks that the oracle didn't solve within the limit of turns."""
    complete: bool
    """Whether all episodes were played; otherwise time was up."""

    @property
    def total(self) -> Level:
        """All episodes together."""
        everything = Level(self.levels[0].lowest, self.levels[-1].highest, sum(level.tasks for level in self.levels))
        for level in self.levels:
            everything.random += level.random
            everything.oracle += level.oracle
            everything.oracle_actions += level.oracle_actions
        return everything

    @property
    def warnings(self) -> Iterator[str]:
        """A sentence for each finding that a user should look at."""
        success = self.total.random_success
        if success is not None and success > RANDOM_SUCCESS:
            yield (
                f"Random actions succeed in {success:.0%} of the episodes (more than {RANDOM_SUCCESS:.0%}): such tasks "
                "tell little about an agent. Add harder tasks, lower the limit of turns, or end episodes at mistakes."
            )
        if self.failed:
            shown = ", ".join(self.failed[:3]) + (f" and {len(self.failed) - 3} more" if len(self.failed) > 3 else "")
            yield (
                f"The oracle failed {len(self.failed)} of {len(self.total.oracle)} tasks within the limit of turns: "
                f"{shown}. Raise max_episode_steps, repair the oracle, or exclude these tasks."
            )


def difficulty_curve(
    env: gymnasium.Env[str, str],
    *,
    tasks: int = 12,
    samples: int = 4,
    seconds: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> DifficultyCurve:
    """Play training tasks, spread evenly over the difficulties, once with the oracle and several times at random.

    Random actions are drawn uniformly from the available ones. Episodes end with the environment's limit of turns.

    Args:
        env: An environment from `gymnasium.make`. It is left open.
        tasks: The number of tasks.
        samples: The number of random episodes per task.
        seconds: No further episode is begun after this time.
        clock: Returns the time in seconds.

    Raises:
        EnvFault: if the simulator broke.
        ValueError: if there are no training tasks.
    """
    world, until = text_env(env), clock() + seconds
    chosen = _spread(world.tasks.train, tasks)
    if not chosen:
        raise ValueError("There are no training tasks to play.")
    levels = _levels(chosen)
    rows = [(task, next(level for level in levels if task.difficulty <= level.highest)) for task in chosen]
    failed, complete = list[str](), True
    for sample in range(samples + 1):  # the first round is the oracle's
        for number, (task, level) in enumerate(rows):
            if clock() > until:
                complete = False
            elif sample:
                level.random += _random_episode(env, task, sample, np.random.default_rng((number, sample)))
            elif world.has_oracle:
                success, actions = _oracle_episode(env, task)
                level.oracle.append(success)
                level.oracle_actions += [actions] if success else []
                failed += [] if success else [task.id]
    return DifficultyCurve(levels, failed, complete)


def _spread(tasks: Tasks, count: int) -> list[Task]:
    """Return `count` tasks, or all, as evenly over difficulties as possible and in their order."""
    step = max(1, len(tasks) // _CONSIDERED)
    considered = sorted(tasks[::step], key=lambda task: task.difficulty)
    groups = [list(group) for _, group in groupby(considered, key=lambda task: task.difficulty)]
    if len(groups) > count:
        groups = [groups[int(at)] for at in np.linspace(0, len(groups) - 1, count).round()]
    rng = np.random.default_rng(0)
    shuffled = [[group[int(at)] for at in rng.permutation(len(group))] for group in groups]
    rounds = (task for tasks in zip_longest(*shuffled) for task in tasks if task is not None)
    return sorted(islice(rounds, count), key=lambda task: task.difficulty)


def _levels(tasks: Sequence[Task]) -> list[Level]:
    difficulties = sorted({task.difficulty for task in tasks})
    parts = np.array_split(np.array(difficulties), min(_LEVELS, len(difficulties)))
    return [
        Level(int(part[0]), int(part[-1]), sum(bool(part[0] <= task.difficulty <= part[-1]) for task in tasks))
        for part in parts
    ]


def _oracle_episode(env: gymnasium.Env[str, str], task: Task) -> tuple[bool, int]:
    """Return success and the number of actions."""
    world, limit = text_env(env), _turns(env) or _ORACLE_LIMIT
    env.reset(seed=1, options={"task": task.id})
    for actions in range(1, limit + 1):
        _, _, terminated, truncated, info = env.step(world.oracle())
        if terminated or truncated:
            return _success(info, truncated=truncated), actions
    return False, limit


def _random_episode(env: gymnasium.Env[str, str], task: Task, seed: int, rng: np.random.Generator) -> list[bool]:
    """Return the success as a list of one; an empty list if there are no available actions to draw from."""
    _, info = env.reset(seed=seed, options={"task": task.id})
    for _ in range(_turns(env) or _RANDOM_LIMIT):
        actions: list[str] | None = info["available_actions"]
        if not actions:
            return []
        _, _, terminated, truncated, info = env.step(actions[int(rng.integers(len(actions)))])
        if terminated or truncated:
            return [_success(info, truncated=truncated)]
    return [bool(info["success"])]


def _turns(env: gymnasium.Env[str, str]) -> int | None:
    """Return the limit of turns that the environment was made with."""
    return env.spec.max_episode_steps if env.spec else None


def _success(info: dict[str, object], *, truncated: bool) -> bool:
    return bool((truncated_result(0.0, info)[1] if truncated else info)["success"])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
