"""The base class of environments of other libraries: seeds are tasks, and rewards are scaled to a score.

A subclass starts and steps the other library's environment. There is no expert.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from agentgym_envs.core.feedback import EnvFault, Feedback
from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
from agentgym_envs.core.text_env import MAX_OBSERVATION_CHARS, TextEnv, truncated_result

_log = logging.getLogger(__name__)
_FIRST_TEST_SEED = 1_000_000
_DIGITS = 4  # of numbers in observations
_ROUNDING = 1e-9  # of a score: rewards such as ten times 0.1 don't add up to exactly 1
_CUT = " […]"
TEST_SHARE = 10
"""Where a library's rows are the tasks and have no split, one in so many is a test task."""


class ExternalEnv(TextEnv):
    """An environment of another library.

    Its tasks are seeds: `NAME/train/7` begins it with seed 7, `NAME/test/7` with seed 1,000,007. Its rewards add up to
    a return, which is scaled from the range `low` to `high` to a score from 0 to 1.
    """

    package: ClassVar[str] = "agentgym_envs.adapters"
    scheme: ClassVar[str]
    """The scheme of its name, as in `gymnasium:ID`."""
    has_oracle: ClassVar[bool] = False
    client_options: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        source: str,
        *,
        low: float = 0.0,
        high: float = 1.0,
        train: int = 10_000,
        test: int = 1_000,
        instructions: str = "",
        render_mode: str | None = None,
    ) -> None:
        """Create the environment without starting it.

        Args:
            source: The other library's name of it.
            low: The return whose score is 0. Below 0, the score is only paid at the end of an episode.
            high: The return whose score is 1.
            train: Number of training tasks, at most a million.
            test: Number of test tasks.
            instructions: What an agent is told first, such as the goal.
            render_mode: `ansi` or None.

        Raises:
            ValueError: if the range is empty, or a number of tasks is out of range.
        """
        super().__init__(render_mode=render_mode)
        if not -math.inf < low < high < math.inf:
            raise ValueError(
                f"low must be less than high, the finite returns of the scores 0 and 1, not {low:g} and {high:g}."
            )
        if not 0 < train <= _FIRST_TEST_SEED or test < 1:
            raise ValueError(
                f"train must be from 1 to {_FIRST_TEST_SEED:,} and test at least 1, not {train} and {test}."
            )
        self.source = source
        self._range, self._told = (low, high), instructions
        self._sizes: dict[Split, int] = {"train": train, "test": test}
        self._return, self._over, self._solved = 0.0, False, None
        self._solved: bool | None
        self._history: list[str] = []

    # Hooks for subclasses.

    @abstractmethod
    def _begin(self, task: Task) -> str:
        """Begin the task, and return the first observation."""

    @abstractmethod
    def _take(self, action: str) -> Feedback:
        """Take an action, after which `_earn` has been called with its reward."""

    def _described(self) -> str:
        """Return the instructions on the actions, and what else the library says about the environment. The default is
        for replies in a conversation.
        """
        return "Your action is your reply in a conversation, whose messages are your observations."

    def _earn(self, reward: float, *, solved: object = None) -> None:
        """Add a reward to the return; `solved` tells whether the goal is reached, if the library says so by a truth
        value or a number of 0 or 1.
        """
        self._return += reward
        low, high = self._range
        if self._return > high + _ROUNDING * (high - low):
            _warn_of_high(self.name, high)
        if isinstance(solved, bool | np.bool_ | int | float | np.number) and solved in (0, 1):
            self._solved = bool(solved)

    # The contract of text environments.

    @property
    def name(self) -> str:
        """The name by which commands find the environment."""
        return f"{self.scheme}:{self.source}"

    @property
    def tasks(self) -> TaskSet:
        """The seeds as tasks."""
        train, test = self._seeds("train", 0), self._seeds("test", _FIRST_TEST_SEED)
        return TaskSet(train=train, test=test, split_key=self._split_key)

    def _split_key(self, task_id: str) -> str:
        """Return what decides whether a training task is a dev task: not the address of a server, which may move."""
        return task_id.removeprefix(self._slug) if "://" in self.source else task_id

    @property
    def _slug(self) -> str:
        """The beginning of task ids, and the category of tasks."""
        return re.sub(r"[^\w.-]+", "-", self.source).strip("-")

    def _seeds(self, split: Split, first: int) -> Tasks:
        slug = self._slug

        def build(task_id: str) -> Task:
            seed = first + int(task_id.rpartition("/")[2])
            return Task(task_id, self.name, split, slug, 1, {"seed": seed})

        return Tasks([f"{slug}/{split}/{i}" for i in range(self._sizes[split])], build)

    @property
    def instructions(self) -> str:
        """What an agent is told first: the given instructions, then the library's own."""
        return "\n\n".join(filter(None, [self._told, self._described()])).strip()

    def oracle(self) -> str:
        """Raise `EnvFault`: environments of other libraries have no expert."""
        raise EnvFault(f"{self.name} has no expert.")

    def _start(self, task: Task) -> str:
        self._return, self._over, self._solved, self._history = 0.0, False, None, [task.id]
        return _shortened(self._begin(task))

    def _act(self, action: str) -> Feedback:
        feedback = self._take(action)
        self._over = feedback.terminated or feedback.truncated
        self._history.append(action)
        return replace(feedback, observation=_shortened(feedback.observation))

    def _standing(self) -> tuple[float, bool]:
        return self._result_if(over=self._over)

    def _result_if(self, *, over: bool) -> tuple[float, bool]:
        """Return score and success if the episode is `over`, or goes on."""
        low, high = self._range
        scaled = min(max((self._return - low) / (high - low), 0.0), 1.0)
        scaled = 1.0 if scaled > 1 - _ROUNDING else scaled
        score = scaled if over or low >= 0 else 0.0
        return score, score == 1 if self._solved is None else self._solved

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if self._range[0] < 0 and not self._over:
            score, success = self._result_if(over=True)
            info["if_truncated"] = {"score": score, "success": success}
        return info

    def _state(self) -> str:
        """Return the task and the actions so far: the library's own state is unknown."""
        return json.dumps(self._history)

    def _raw(self) -> dict[str, Any]:
        return {"return": self._return}


class PaidAtLimit(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Pays the score of an environment with a `low` below 0 also if a limit of turns ends the episode, once."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        """Wrap an environment, with the limit."""
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._end: tuple[str, dict[str, Any]] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a task."""
        self._end = None
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play one action. After the limit, the state stays the same and rewards are 0."""
        if self._end is not None:
            return self._end[0], 0.0, False, True, dict(self._end[1])
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated and not terminated:
            reward, info = truncated_result(float(reward), info)
            self._end = observation, info
        return observation, reward, terminated, truncated, info


@cache
def _warn_of_high(name: str, high: float) -> None:
    """Log, once in a process, that a return of this environment is larger than that of the score 1."""
    _log.warning(
        "A return of %s exceeds high=%g, so its score is cut to 1. Set the option high to the return of a solved "
        "episode, as in --options high=500.",
        name,
        high,
    )


def rows_of(split: Split, number: int | None) -> Iterator[int]:
    """Return the positions of a split's rows, of `number` rows or of endless ones: every tenth is a test task, and the
    last of fewer than ten.
    """
    first = min(TEST_SHARE, number or TEST_SHARE) - 1
    positions = itertools.count() if number is None else range(number)
    return (i for i in positions if (i % TEST_SHARE == first) == (split == "test"))


def _shortened(text: str) -> str:
    """Return a text that is in the observation space: the beginning of a longer one."""
    return text if len(text) <= MAX_OBSERVATION_CHARS else text[: MAX_OBSERVATION_CHARS - len(_CUT)] + _CUT


def listed_tools(functions: Iterable[Mapping[str, Any]]) -> str:
    """Return the tools that a reply can call, as JSON, and how."""
    listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return f'Your tools:\n{listed}\n\nA reply that is a JSON object {{"name": "…", "arguments": {{…}}}} calls one.'


def plain(value: Any) -> Any:
    """Return a value as JSON values, with numbers rounded."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return round(value, _DIGITS)
    return value if isinstance(value, str | int | bool | None) else str(value)
