"""Protocols: the evaluation settings of papers, by name.

Nothing heavy is imported here, because `--help` imports the settings of runs, which import this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_eval.util.errors import UsageError, did_you_mean

EMBEDDED = "embedded"
"""Value of WebArena's option `task_set` for its own sites, which is its default."""


@dataclass(frozen=True, kw_only=True)
class EnvSettings:
    """A protocol's settings of one environment."""

    tasks: int
    """Number of tasks. If the split has fewer, all are played."""
    horizon: int
    """Maximum number of actions per episode."""
    max_tokens: int
    """Maximum number of tokens per reply."""
    task_set: str = ""
    """Value of the environment's option `task_set` with which it has the paper's own tasks; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The evaluation settings of a paper.

    `split`, `samples` and `temperature` must be the defaults of the flags: the flags of these names can't be told from
    their defaults, so any other value of a flag contradicts the protocol.
    """

    name: str
    about: str
    """A sentence."""
    source: str
    """Address of the paper."""
    envs: Mapping[str, EnvSettings]
    """By short name of the environments of this package."""
    split: Literal["train", "dev", "test"] = "test"
    samples: int = 1
    """Number of attempts at each task."""
    temperature: float = 1.0

    def env(self, name: str) -> EnvSettings:
        """Return the settings of an environment of this package, by its id or short name.

        Raises:
            UsageError: If the protocol has none for it.
        """
        own = name.removeprefix("agentgym/").removesuffix("-v0").lower()
        if own not in self.envs:
            raise UsageError(
                f"--protocol {self.name} has no settings for {name}. Its environments are {', '.join(self.envs)}; play "
                "others without --protocol."
            )
        return self.envs[own]

    def settings(self, env: str, *, items: bool) -> dict[str, Any]:
        """Return the settings of a run in an environment, by the names of flags.

        Args:
            env: Id or short name of the environment.
            items: Whether the tasks are those of --items, which then also determine their number.

        Raises:
            UsageError: See `env`.
        """
        own = self.env(env)
        found = {"split": self.split, "samples": self.samples, "temperature": self.temperature}
        found |= {"tasks": own.tasks, "horizon": own.horizon, "max_tokens": own.max_tokens}
        return {name: value for name, value in found.items() if name != "tasks" or not items}

    def check(self, envs: Sequence[str], given: Mapping[str, Any]) -> None:
        """Check that flags don't contradict the settings of environments.

        Args:
            envs: Ids or short names of the environments.
            given: Values by the names of flags; None for flags that weren't given.

        Raises:
            UsageError: If one does; and see `env`.
        """
        if given["task"]:
            raise UsageError(
                f"--task can't be given with --protocol {self.name}, which determines the tasks: leave it out, or name "
                "item-id files of the paper with --items."
            )
        for env in envs:
            for name, value in self.settings(env, items=bool(given["items"])).items():
                if given[name] not in (None, value):
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(
                        f"{flag} {given[name]} contradicts --protocol {self.name}, in which {env} has {flag} {value}. "
                        f"Leave out {flag}, or play without --protocol."
                    )

    def check_task_set(self, env: str, options: Mapping[str, Any]) -> None:
        """Check that an environment's options select tasks that its settings are for: its own, or the paper's.

        Raises:
            UsageError: If they select others.
        """
        own = self.env(env)
        task_set = options.get("task_set", EMBEDDED)
        if own.task_set and task_set not in (EMBEDDED, own.task_set):
            raise UsageError(
                f"--protocol {self.name} has no settings for {env} with task_set={task_set}. Its environments are "
                f"{', '.join(self.envs)}, and the paper's tasks of {env} are task_set={own.task_set} or those of "
                "item-id files (--items)."
            )

    def sentence(self, env: str, *, tasks: int, task_set: str, items: bool) -> str:
        """Return a sentence on the tasks of a run and how they relate to the paper's.

        Args:
            env: Id or short name of the environment.
            tasks: Number of tasks of the run.
            task_set: Name of the task set, for environments with several; otherwise empty.
            items: Whether the tasks are those of --items.
        """
        own = self.env(env)
        start = f"Protocol {self.name} in {env}: {own.horizon} turns, {own.max_tokens} tokens per reply, and"
        if items:
            return f"{start} the {tasks:,} tasks of --items; the paper has {own.tasks}."
        if own.task_set and task_set == own.task_set:
            return f"{start} {tasks:,} of the paper's own {own.tasks} {self.split} tasks."
        if tasks < own.tasks:
            return f"{start} all {tasks:,} {self.split} tasks of this package, fewer than the paper's own {own.tasks}."
        return f"{start} {tasks:,} {self.split} tasks of this package, not the paper's own {own.tasks}."


AGENTGYM_RL = Protocol(
    name="agentgym-rl",
    about="The evaluations of AgentGym-RL (Xi et al. 2025).",
    source="https://arxiv.org/abs/2509.08755",
    envs={
        "webarena": EnvSettings(tasks=50, horizon=15, max_tokens=512, task_set="webarena-agentgym-rl"),
        "searchqa": EnvSettings(tasks=400, horizon=10, max_tokens=512),
        "textcraft": EnvSettings(tasks=100, horizon=30, max_tokens=512),
        "babyai": EnvSettings(tasks=90, horizon=20, max_tokens=512),
        "sciworld": EnvSettings(tasks=200, horizon=30, max_tokens=200),
    },
)
"""AgentGym-RL (arXiv 2509.08755). The numbers of tasks are those of its test splits. One sample at temperature 1, 30
turns and 200 tokens per reply are the settings of its evaluation script for SciWorld; in the other environments, turns
and tokens are those of the last stage of training. The order is that of the paper's table of results."""

PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in (AGENTGYM_RL,)}
"""All protocols by name."""


def find_protocol(name: str) -> Protocol:
    """Return the protocol of this name.

    Raises:
        UsageError: If there is none.
    """
    if name not in PROTOCOLS:
        raise UsageError(
            f"There is no protocol {name!r}.{did_you_mean(name, list(PROTOCOLS))} There are: {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[name]
