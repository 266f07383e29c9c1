"""What every world is: a Gymnasium environment whose observations and actions are text.

`TextEnv` keeps the contract in one place: looking tasks up, paying the score out as increments, the keys of `info`,
and what happens before the first `reset` and after the end. A world supplies six hooks and knows nothing about
policies, conversations or tokens.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any, ClassVar, SupportsFloat

import gymnasium
from gymnasium.error import ResetNeeded

from agentgym_envs.core.action_schema import Function, read_functions
from agentgym_envs.core.feedback import EnvFault, Feedback, FeedbackChecker, InvalidFeedback, Malformed, writable
from agentgym_envs.core.tasks import SPLITS, Split, Task, TaskSet
from agentgym_envs.core.text_space import TextSpace
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


class TextEnv(gymnasium.Env[str, str], ABC):
    """A text world. docs/howto/add-a-world.md writes one from beginning to end.

    `reset(seed=..., options={"task": id, "split": "train" | "dev" | "test"})`: a task id gives exactly that task;
    without one, a task is drawn from the split (default `train`) with the env's own generator. The same task is the
    same text to the byte in every process.

    `step(action)` never raises on text. Rewards are the increments of a score in [0, 1].

    `info` after both: `task_id`, `success`, `score`, `valid`, `available_actions` (or None where they can't be
    listed), `state_key` (a hash of the simulator's state) and the world's own figures under `raw`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - declared so by Gymnasium
    package: ClassVar[str]
    """The Python package of the world, where its `instructions.md`, `actions.json` and `manifest.json` lie."""
    client_options: ClassVar[frozenset[str]] = frozenset()
    """Which options a client of a server may set, beside `render_mode` and `max_episode_steps`: none that names a file,
    an address or a program, or costs more than a session may."""
    secret_options: ClassVar[frozenset[str]] = frozenset()
    """Which options hold passwords, tokens or keys: run folders, logs and messages show stars in their place. Those of
    names that end in `password`, `token`, `secret` or `api_key` needn't be listed, nor passwords within URLs."""
    step_seconds: ClassVar[float] = 0.01
    """About how long a step takes. `EnvPool` plays a world that answers within a millisecond in the caller's thread,
    and gives others a process each; unless they wait."""
    step_waits: ClassVar[bool] = False
    """Whether a step may wait for something outside of Python (another process, a server), so that threads can step
    many worlds at once."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        declare_secrets(cls.secret_options)

    def __init__(self, *, render_mode: str | None = None) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode {render_mode!r} is not offered here; choose one of {modes} or None")
        self.render_mode = render_mode
        self.observation_space = TextSpace(MAX_OBSERVATION_CHARS)
        self.action_space = TextSpace(MAX_ACTION_CHARS)
        self._task: Task | None = None
        self._score = 0.0
        self._last = Feedback("")

    # What a world supplies.

    @property
    @abstractmethod
    def tasks(self) -> TaskSet:
        """The tasks of this world under the options it was made with."""

    @abstractmethod
    def _start(self, task: Task) -> str:
        """Set the simulator up for `task` and return the first observation. After an `EnvFault` it builds anew."""

    @abstractmethod
    def _act(self, action: str) -> Feedback:
        """Carry out one action. Raises `EnvFault` when the simulator broke, and nothing else on any text."""

    @abstractmethod
    def _standing(self) -> tuple[float, bool]:
        """The score earned so far in [0, 1], and whether the goal is reached."""

    @abstractmethod
    def _state(self) -> str:
        """The simulator's whole state as text, for `info["state_key"]`."""

    @abstractmethod
    def oracle(self) -> str:
        """The expert's next action, from the simulator's true state. Always leads to success on the set's tasks."""

    def check_dependencies(self) -> None:
        """See that every program is there that this world starts only at its first `reset`, such as a browser.

        Raises:
            gymnasium.error.DependencyNotInstalled: when one is missing; the message has the command that installs it.
        """

    def _available_actions(self) -> list[str] | None:
        """Every action that makes sense now, or None where they can't be listed."""
        return None

    def _raw(self) -> dict[str, Any]:
        """The simulator's own figures for `info["raw"]`."""
        return {}

    def oracle_thought(self) -> str:
        """Why the expert's next action is what it is, from the expert's own reasons, on one line; empty where there are
        none. It names nothing that an agent couldn't know from what it was shown. Changes nothing, as `oracle` doesn't.
        """
        return ""

    def oracle_plan(self) -> str:
        """What the expert intends from here to the end, in a few lines; the same holds."""
        return ""

    def scene(self) -> dict[str, Any] | None:
        """What a viewer draws of the state after the last `reset` or `step`, or None where there is nothing to draw but
        text. JSON values under a `kind`, which says what else there is; docs/viewer.md has the kinds. Changes nothing.
        """
        return None

    # What a user calls.

    @property
    def instructions(self) -> str:
        """What the world tells an agent about its goal and its actions."""
        return _instructions(self.package)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kinds of actions, for agents that call functions: those in `actions.json` beside the instructions, else
        one that takes the action as text.
        """
        return read_functions(self.package)

    @property
    def task(self) -> Task:
        """The task being played.

        Raises:
            ResetNeeded: before the first `reset`.
        """
        if self._task is None:
            raise ResetNeeded("No task is being played yet: call reset() first.")
        return self._task

    def task_page(self, split: Split, offset: int, limit: int, whole: bool) -> dict[str, Any]:
        """Some tasks of a split as plain data, for those who can't have `tasks`: in other processes, on other machines.

        Returns:
            `name` of the set, `split`, `total` number of the split's tasks, `offset`, and at most `limit` `tasks` from
            there on: their ids, or with `whole` all of each.
        """
        tasks = self.tasks.split(split)
        page = tasks[offset : offset + limit]
        shown = [asdict(task) for task in page] if whole else list(page.ids)
        return {"name": self.tasks.name, "split": split, "total": len(tasks), "offset": offset, "tasks": shown}

    def find_task(self, task_id: str) -> Task:
        """`tasks[task_id]`, for the same. Raises KeyError when there is none."""
        return self.tasks[task_id]

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a task. See the class for `options`.

        Raises:
            ValueError: for an unknown option or split, or an empty split.
            KeyError: for an unknown task id.
            EnvFault: when the simulator can't be brought up.
            InvalidFeedback: when the environment returns what the contract doesn't allow.
        """
        super().reset(seed=seed)
        self._task = self._choose(dict(options or {}))
        self._last = Feedback(self._checked.text("observation", self._start(self._task)))
        self._score = 0.0
        return self._last.observation, self._info()

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play one action.

        Returns:
            The observation, the increment of the score, whether the world ended the episode, whether a limit of the
            simulator did, and `info`. After the end nothing changes any more and nothing is paid.

        Raises:
            ResetNeeded: before the first `reset`.
            TypeError: when the action is not text.
            EnvFault: when the simulator broke.
            InvalidFeedback: when the environment returns what the contract doesn't allow: an observation that isn't
                text, a score that isn't a finite number in [0, 1].
        """
        if self._task is None:
            raise ResetNeeded("No task is being played yet: call reset() before step().")
        if not isinstance(action, str):
            raise TypeError(f"An action is text (str), not {type(action).__name__}.")
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
        """The last observation as text in mode `ansi`; worlds with a picture add `rgb_array`."""
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
            raise ValueError(f"This world has no task of split {split!r} under its options; ask for {others}.")
        return tasks[int(self.np_random.integers(len(tasks)))]

    @property
    def _checked(self) -> FeedbackChecker:
        return FeedbackChecker(self.spec.id if self.spec else type(self).__name__, self.task.id)

    def _result(self) -> tuple[float, bool]:
        """Score and success, checked."""
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


@cache
def _instructions(package: str) -> str:
    try:
        return resources.files(package).joinpath("instructions.md").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise FileNotFoundError(
            f"There is no instructions.md in the package {package!r}: write one beside the world's code, with its goal "
            "and the grammar of its actions, and name that package in the world's attribute `package`."
        ) from error
