"""The base class of all environments: a Gymnasium environment whose observations and actions are text.

`TextEnv` implements the contract in one place: looking up tasks, rewards as increments of the score, the keys of
`info`, and the behaviour before the first `reset` and after the end. A subclass supplies six hooks and does not depend
on policies, conversations or tokens.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache, wraps
from typing import Any, ClassVar, SupportsFloat

import gymnasium
from gymnasium.error import ResetNeeded

from agentgym_envs.core.action_schema import Function, read_functions
from agentgym_envs.core.feedback import EnvFault, Feedback, FeedbackChecker, InvalidFeedback, Malformed, writable
from agentgym_envs.core.tasks import SPLITS, Split, Task, TaskSet
from agentgym_envs.core.text_space import TextSpace
from agentgym_envs.util.package_files import package_text
from agentgym_envs.util.redaction import declare_secrets

__all__ = [
    "MAX_ACTION_CHARS",
    "MAX_OBSERVATION_CHARS",
    "EnvFault",
    "Feedback",
    "InvalidFeedback",
    "Malformed",
    "TextEnv",
    "writable",
]

MAX_ACTION_CHARS = 4_096
MAX_OBSERVATION_CHARS = 32_768
_OF_EPISODES = {"oracle", "oracle_thought", "oracle_plan", "scene"}
"""The methods of subclasses that raise `ResetNeeded` before the first `reset`."""


class TextEnv(gymnasium.Env[str, str], ABC):
    """A text environment. docs/howto/add-a-world.md explains step by step how to write one.

    `reset(seed=..., options={"task": id, "split": "train" | "dev" | "test"})` starts the task with that id. Without an
    id, it draws a task from the split (default `train`) with the environment's own generator. The same task produces
    byte-identical text in every process.

    `step(action)` never raises on text. Rewards are the increments of a score in [0, 1].

    Both return `info` with `task_id`, `success`, `score`, `valid`, `available_actions` (or None if they can't be
    listed), `state_key` (a hash of the simulator's state) and environment-specific values under `raw`. Where a limit of
    turns that ends the episode here would change score and success, `if_truncated` has what they would be; see
    `truncated_result`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - declared so by Gymnasium
    package: ClassVar[str] = ""
    """The Python package of the environment, which contains `instructions.md`, `actions.json` and `manifest.json`.
    Empty for one without these files, such as one in a notebook: it overrides `instructions`, and
    `functions` if needed.
    """
    client_options: ClassVar[frozenset[str]] = frozenset()
    """The options that a client of a server may set besides `render_mode` and `max_episode_steps`. An option must not
    be listed if it names a file, an address or a program, or can exceed the resources of a session."""
    secret_options: ClassVar[frozenset[str]] = frozenset()
    """The options that hold passwords, tokens or keys; run folders, logs and messages show stars instead. Names that
    end in `password`, `token`, `secret` or `api_key`, and passwords within URLs, need not be listed."""
    step_seconds: ClassVar[float] = 0.01
    """The approximate duration of a step in seconds. `EnvPool` runs environments that answer within a millisecond in
    the caller's thread, and others in a process each, unless `step_waits`."""
    step_waits: ClassVar[bool] = False
    """Whether a step may wait for something outside of Python (another process, a server), so that threads can step
    many environments concurrently."""
    actions_option: ClassVar[str] = ""
    """The option, as KEY=VALUE, with which `info["available_actions"]` is a list, if there is one. Messages suggest it
    where `lists_actions` is false."""
    has_oracle: ClassVar[bool] = True
    """Whether there is an expert. Environments of other libraries have none; their `oracle` raises `EnvFault`."""
    oracle_replans: ClassVar[bool] = True
    """Whether `oracle` decides from the current state, whichever actions led there. False if it follows a path that was
    computed at the start, from which other actions may lead away."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        declare_secrets(cls.secret_options)
        for name in _OF_EPISODES & vars(cls).keys():
            setattr(cls, name, _after_reset(vars(cls)[name]))

    def __init__(self, *, render_mode: str | None = None) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode {render_mode!r} is not supported; choose one of {modes} or None.")
        self.render_mode = render_mode
        self.observation_space = TextSpace(MAX_OBSERVATION_CHARS)
        self.action_space = TextSpace(MAX_ACTION_CHARS)
        self._task: Task | None = None
        self._score = 0.0
        self._last = Feedback("")

    # Hooks for subclasses.

    @property
    @abstractmethod
    def tasks(self) -> TaskSet:
        """The tasks of this environment under its options."""

    @abstractmethod
    def _start(self, task: Task) -> str:
        """Set up the simulator for `task` and return the first observation. Rebuilds the simulator after `EnvFault`."""

    @abstractmethod
    def _act(self, action: str) -> Feedback:
        """Carry out one action. Raises `EnvFault` if the simulator broke, and nothing else for any text."""

    @abstractmethod
    def _standing(self) -> tuple[float, bool]:
        """Return the score so far, in [0, 1], and whether the goal is reached."""

    @abstractmethod
    def _state(self) -> str:
        """Return the simulator's complete state as text, for `info["state_key"]`."""

    @abstractmethod
    def oracle(self) -> str:
        """Return the expert's next action, from the simulator's true state. It leads to success on every task.

        Before the first `reset`, this raises `ResetNeeded`, as do the `oracle_thought`, `oracle_plan` and `scene` of a
        subclass: the base class adds the check.
        """

    def check_dependencies(self) -> None:
        """Check for the programs that this environment starts only at its first `reset`, such as a browser.

        Raises:
            gymnasium.error.DependencyNotInstalled: if one is missing; the message gives the command that installs it.
        """

    def _available_actions(self) -> list[str] | None:
        """Return every action that makes sense in the current state, or None if they can't be listed."""
        return None

    def _raw(self) -> dict[str, Any]:
        """Return environment-specific values for `info["raw"]`."""
        return {}

    def oracle_thought(self) -> str:
        """Return the expert's reasons for its next action on one line, or an empty string.

        The thought mentions nothing that an agent couldn't know from its observations. Like `oracle`, this has no side
        effects.
        """
        return ""

    def oracle_plan(self) -> str:
        """Return the expert's plan from here to the end in a few lines, under the rules of `oracle_thought`."""
        return ""

    def scene(self) -> dict[str, Any] | None:
        """Return the state after the last `reset` or `step` as a viewer draws it, or None if there is only text.

        The scene consists of JSON values. Its `kind` determines the other keys; docs/viewer.md lists the kinds. This
        has no side effects.
        """
        return None

    def interchangeable_names(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of names, in lower case, whose permutation within a group gives another plausible episode.

        For data augmentation in training. A name that contains another one and must not change is a group of its own.
        """
        return ()

    # Public interface.

    @property
    def instructions(self) -> str:
        """The instructions for an agent: the goal and the actions."""
        return _instructions(self.package)

    @property
    def lists_actions(self) -> bool:
        """Whether `info["available_actions"]` may be a list with these options, so that policies can draw from it. If
        not, such policies are refused before the simulator starts.
        """
        return type(self)._available_actions is not TextEnv._available_actions

    @property
    def has_screenshots(self) -> bool:
        """Whether `info["screenshot"]` is an image of each observation, an array (height, width, 3) of uint8, for
        agents with the habit `pictures`. `info["element_boxes"]` may have the boxes of the elements by what
        stands for them in the text.
        """
        return False

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kinds of actions, for agents that call functions: those in `actions.json`, or else one function that
        takes the action as text.
        """
        return read_functions(self.package)

    @property
    def task(self) -> Task:
        """The current task.

        Raises:
            ResetNeeded: before the first `reset`.
        """
        self._check_reset()
        assert self._task is not None
        return self._task

    def task_page(self, split: Split, offset: int, limit: int, whole: bool) -> dict[str, Any]:
        """Return some tasks of a split as plain data, for callers in other processes or on other machines.

        Returns:
            The `name` of the set, the `split`, the `total` number of its tasks, the `offset`, and at most `limit`
            `tasks` from there on: their ids, or complete tasks if `whole`.
        """
        tasks = self.tasks.split(split)
        page = tasks[offset : offset + limit]
        shown = [asdict(task) for task in page] if whole else list(page.ids)
        return {"name": self.tasks.name, "split": split, "total": len(tasks), "offset": offset, "tasks": shown}

    def find_task(self, task_id: str) -> Task:
        """Return `tasks[task_id]`, for callers in other processes. Raises KeyError if there is none."""
        return self.tasks[task_id]

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a task. See the class for `options`.

        Raises:
            ValueError: if an option or split is unknown, or the split is empty.
            KeyError: if the task id is unknown.
            EnvFault: if the simulator can't be started.
            InvalidFeedback: if the environment returns a value that violates the contract.
        """
        super().reset(seed=seed)
        self._task = self._choose(dict(options or {}))
        try:
            self._last = Feedback(self._checked.text("observation", self._start(self._task)))
        except BaseException:
            self._task = None  # the last episode is over, and none has begun
            raise
        self._score = 0.0
        return self._last.observation, self._info()

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play one action.

        Returns:
            The observation, the increment of the score, whether the environment ended the episode, whether a limit of
            the simulator did, and `info`. After the end, the state stays the same and rewards are 0.

        Raises:
            ResetNeeded: before the first `reset`.
            TypeError: if the action is not text.
            EnvFault: if the simulator broke.
            InvalidFeedback: if the environment returns a value that violates the contract: an observation that isn't
                text, or a score that isn't a finite number in [0, 1].
        """
        self._check_reset()
        if not isinstance(action, str):
            raise TypeError(f"An action must be text (str), not {type(action).__name__}.")
        reward = 0.0
        if not (self._last.terminated or self._last.truncated):
            if isinstance(action, Malformed):
                self._last = Feedback(action.hint, valid=False)
            else:
                self._last = self._checked.feedback(self._act(writable(action)))
            before, self._score = self._score, self._result()[0]
            reward = self._score - before
        last = self._last
        return last.observation, reward, last.terminated, last.truncated, self._info()

    def render(self) -> Any:
        """Return the last observation as text in mode `ansi`. Environments with images add `rgb_array`."""
        return self._last.observation if self.render_mode == "ansi" else None

    def _choose(self, options: dict[str, Any]) -> Task:
        task_id, split = options.pop("task", None), options.pop("split", "train")
        if options:
            raise ValueError(f"Unknown reset option {sorted(options)}; reset takes 'task' and 'split'.")
        if task_id is not None:
            return self.tasks[task_id]
        if split not in SPLITS:
            raise ValueError(f"There is no split {split!r}; the splits are {', '.join(SPLITS)}.")
        tasks = self.tasks.split(split)
        if not tasks:
            others = " or ".join(name for name in SPLITS if self.tasks.split(name)) or "other options"
            raise ValueError(f"This environment has no tasks in split {split!r} under its options; use {others}.")
        return tasks[int(self.np_random.integers(len(tasks)))]

    def _check_reset(self) -> None:
        """Raise `ResetNeeded` before the first `reset`, and after one that failed."""
        if self._task is None:
            raise ResetNeeded("There is no current task: call reset() first.")

    @property
    def _checked(self) -> FeedbackChecker:
        return FeedbackChecker(self.spec.id if self.spec else type(self).__name__, self.task.id)

    def _result(self) -> tuple[float, bool]:
        """Return the checked score and success."""
        standing = self._standing()
        if not isinstance(standing, tuple) or len(standing) != 2:
            raise self._checked.invalid("score and success", "must be a tuple of two", standing)
        return self._checked.score(standing[0]), self._checked.flag("success", standing[1])

    def _info(self) -> dict[str, Any]:
        checked = self._checked
        score, success = self._result()
        return {
            "task_id": self.task.id,
            "success": success,
            "score": score,
            "valid": self._last.valid,
            "available_actions": checked.actions(self._available_actions()),
            "state_key": hashlib.blake2b(checked.text("state", self._state()).encode(), digest_size=12).hexdigest(),
            "raw": checked.raw(self._raw()),
        }


def _after_reset(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of an environment that raises `ResetNeeded` while there is no current task."""

    @wraps(method)
    def checked(self: TextEnv, *args: Any, **keywords: Any) -> Any:
        self._check_reset()  # pyright: ignore[reportPrivateUsage]
        return method(self, *args, **keywords)

    return checked


def truncated_result(reward: float, info: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return reward and `info` of a step that is the last one by a limit of turns, of which the environment itself
    knows nothing.
    """
    if "if_truncated" not in info:
        return reward, info
    settled = {name: value for name, value in info.items() if name != "if_truncated"} | info["if_truncated"]
    return reward + settled["score"] - info["score"], settled


@cache
def _instructions(package: str) -> str:
    with suppress(ModuleNotFoundError):
        if (text := package_text(package, "instructions.md")) is not None:
            return text.strip()
    raise FileNotFoundError(
        f"There is no instructions.md in the package {package!r}. Write one next to the environment's code, with the "
        "goal and the grammar of the actions, and set the environment's attribute `package` to that package; or "
        "override `instructions`, for example in a notebook."
    )
