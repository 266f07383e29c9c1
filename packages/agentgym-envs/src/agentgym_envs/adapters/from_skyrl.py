"""Environments of SkyRL-gym as text environments: `skyrl:ID`, with the rows of a SkyRL dataset as tasks.

An action is the reply that SkyRL's generator would hand to `step`; the messages of the conversation are observations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import ExternalEnv, rows_of
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
from agentgym_envs.util.importing import import_named
from agentgym_envs.util.installation import install
from agentgym_envs.util.json_text import parse

try:
    import skyrl_gym
    from omegaconf import OmegaConf
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"SkyRL-gym's environments need the package skyrl-gym. Install it: {install('skyrl-gym')}"
    ) from missing

Row = dict[str, Any]


class SkyRLEnv(ExternalEnv):
    """An environment of SkyRL-gym. Each episode has one of its own, made of a row.

    SkyRL-gym doesn't say why an episode is over: one that reaches the environment's `max_turns` without success is
    truncated, even if a wrong answer in that turn has ended it.
    """

    scheme: ClassVar[str] = "skyrl"

    def __init__(
        self,
        source: str,
        *,
        rows: str = "",
        test_rows: str = "",
        settings: Mapping[str, Any] | None = None,
        max_turns: int = 0,
        **options: Any,
    ) -> None:
        """Create the environment without starting an episode.

        Args:
            source: The id that is registered with SkyRL-gym, or MODULE:ID, where the module registers it.
            rows: A file of rows as SkyRL's datasets have them, JSON lines or Parquet: `prompt`, a list of messages, and
                what the environment needs, such as `reward_spec`. They are the training tasks; every tenth is a test
                task if there are no `test_rows`.
            test_rows: A file of rows for the test tasks.
            settings: What SkyRL's configuration has for the environment, in `environment.skyrl_gym.ID`.
            max_turns: `max_turns` of rows that have none, which environments of several turns read; 0 leaves it out.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if there is no such environment, a file can't be read, or options are out of range.
        """
        super().__init__(source, **options)
        module, colon, self._id = source.rpartition(":")
        if colon:
            import_named(module, f"the environment {self.name}")
        if self._id not in skyrl_gym.registry:
            known = ", ".join(sorted(skyrl_gym.registry))
            raise ValueError(
                f"SkyRL-gym has no environment {self._id!r}, but {known}. For one that a module registers, write "
                f"skyrl:MODULE:ID."
            )
        if not rows:
            raise ValueError(f"{self.name} needs rows: --options rows=FILE, a file of JSON lines or Parquet.")
        self._settings = OmegaConf.create(dict(settings or {}))
        self._max_turns = max_turns
        self._rows: dict[str, list[Row]] = {"rows": _read(Path(rows))}
        if test_rows:
            self._rows["test_rows"] = _read(Path(test_rows))
        self._env: Any = None

    @property
    def _slug(self) -> str:
        return self._id

    @property
    def tasks(self) -> TaskSet:
        """The rows."""
        rows = len(self._rows["rows"])
        if "test_rows" in self._rows:
            train, test = list(range(rows)), list(range(len(self._rows["test_rows"])))
        else:
            train, test = list(rows_of("train", rows)), list(rows_of("test", rows))
        return TaskSet(train=self._split("train", train), test=self._split("test", test))

    def _split(self, split: Split, positions: list[int]) -> Tasks:
        file = "test_rows" if split == "test" and "test_rows" in self._rows else "rows"

        def build(task_id: str) -> Task:
            row = self._rows[file][int(task_id.rpartition("/")[2])]
            return Task(task_id, self.name, split, str(row.get("data_source", self._id)), 1, row)

        return Tasks([f"{self._slug}/{split}/{i}" for i in positions[: self._sizes[split]]], build)

    def _begin(self, task: Task) -> str:
        self.close()
        row = cast("Row", json.loads(json.dumps(task.payload)))  # the environment may keep and change it
        if self._max_turns:
            row.setdefault("max_turns", self._max_turns)
        prompt = row.pop("prompt", [])
        self._env = skyrl_gym.make(self._id, env_config=self._settings, extras=row)
        messages, _ = self._env.init([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        return _text(messages)

    def _take(self, action: str) -> Feedback:
        if self._env is None:
            raise EnvFault(f"{self.name} has no episode.")
        output = self._env.step(action)
        metadata = output.get("metadata") or {}
        solved, valid = metadata.get("success"), metadata.get("valid")
        self._earn(float(output["reward"]), solved=solved)
        self._over = bool(output["done"])
        limit = getattr(self._env, "max_turns", 1)  # 1, the default, is no limit: the reply is the answer
        cut = self._over and 1 < limit == getattr(self._env, "turns", 0) and not self._standing()[1]
        return Feedback(
            _text(output["observations"]), valid=valid is not False, terminated=self._over and not cut, truncated=cut
        )

    def close(self) -> None:
        """Close the episode's environment. May be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _text(messages: list[dict[str, Any]] | None) -> str:
    return writable("\n\n".join(str(message["content"]) for message in messages or []))


def _read(file: Path) -> list[Row]:
    """Return the rows of a file.

    Raises:
        ValueError: if it can't be read, or has no rows.
    """
    try:
        rows = _parquet(file) if file.suffix == ".parquet" else _lines(file)
    except (OSError, ImportError, ValueError) as error:
        raise ValueError(f"The rows in {file} can't be read: {error}") from error
    if not rows:
        raise ValueError(f"{file} has no rows; write one JSON object a line, with a prompt.")
    return rows


def _lines(file: Path) -> list[Row]:
    found = list[Row]()
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            row = parse(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object.")
            found.append(row)
    return found


def _parquet(file: Path) -> list[Row]:
    import pandas  # a dependency of skyrl-gym, whose Parquet needs pyarrow

    text = pandas.read_parquet(file).to_json(orient="records", double_precision=15)
    return cast("list[Row]", json.loads(text or "[]"))
