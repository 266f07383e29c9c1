"""Settings of `evaluate` and `collect`, as frozen dataclasses that also define the command line.

Nothing heavy is imported here, because `--help` imports this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from agentgym_envs.util.flag_markers import arg, switch

from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.protocols import find_protocol
from agentgym_eval.storage.labels import checked_tags
from agentgym_eval.util.errors import UsageError


def short_name(env: str) -> str:
    """Return the short name of an environment: `textcraft` for `agentgym/TextCraft-v0`, `textcraft` or
    `MODULE:mine/TextCraft-v3`. It can be part of a file name.
    """
    return re.sub(r"\s+", "-", re.sub(r".*[/:]|-v\d+$", "", env).lower())


@dataclass(frozen=True, kw_only=True)
class _OneWorld:
    env: str
    """Environment: a Gymnasium id (agentgym/TextCraft-v0), a short name (textcraft), or MODULE:ID for your own."""


@dataclass(frozen=True, kw_only=True)
class _Worlds:
    env: tuple[str, ...]
    """Environments: Gymnasium ids (agentgym/TextCraft-v0), short names (textcraft), MODULE:ID for your own, or "all"
    for every installed environment."""


@dataclass(frozen=True, kw_only=True)
class _OnePolicy:
    policy: str
    """Policy: oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL, hf:PATH and vllm:PATH (these two need
    agentgym-trainer), or MODULE:NAME for your own."""


@dataclass(frozen=True, kw_only=True)
class _Policies:
    policy: tuple[str, ...]
    """Policies: any of oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL, hf:PATH and vllm:PATH (these two
    need agentgym-trainer), and MODULE:NAME for your own. Each is compared with the first."""


@dataclass(frozen=True, kw_only=True)
class _Play:
    split: Literal["train", "dev", "test"] = "test"
    """Split to take the tasks from."""
    tasks: Annotated[int | None, arg(metavar="INT")] = None
    """Number of tasks, spread evenly over the split's categories and difficulties. Default: all tasks."""
    task: tuple[str, ...] = ()
    """Ids of the tasks to play, from any split, instead of --split and --tasks."""
    items: tuple[Path, ...] = ()
    """Item-id files of AgentGym whose tasks to play: [{"item_id": "babyai_123"}]."""
    skip: Annotated[bool, switch()] = False
    """Leave out items that don't correspond to a task of this package, instead of stopping with an error."""
    samples: int = 1
    """Number of attempts at each task."""
    agent: Annotated[str | None, arg(metavar="FORM[+HABIT]")] = None
    """Agent: reply format (react, bare, tags, function-call, code-act, or MODULE:CLASS for your own), optionally with
    habits, as in react+plan+window:6. Default: the environment's own agent."""
    pictures: Annotated[int | None, arg(metavar="INT")] = None
    """Number of screenshots in the context of a model that sees: each of the newest observations comes with its own. It
    is the habit pictures of --agent, for environments with screenshots, and turns on their option screenshot."""
    prompt: Annotated[str | None, arg(metavar="FILE|MODULE:NAME")] = None
    """System message instead of the environment's instructions and the reply format's: a text file with {instructions}
    and {format_instructions} in their places, a function MODULE:NAME, or an installed prompt's name."""
    instructions: bool = True
    """Whether to show the environment's instructions to the policy. Turn it off for a model that was trained without
    them."""
    horizon: Annotated[int | None, arg(metavar="INT")] = None
    """Maximum number of actions per episode (per trial for agents that retry), instead of the environment's limit."""
    seed: int = 0
    """Random seed of the environment, the policy and the confidence intervals."""
    temperature: float = 1.0
    """Sampling temperature of language models."""
    max_tokens: Annotated[int | None, arg(metavar="INT")] = None
    """Maximum number of tokens per reply of language models. Default: 512."""
    slots: int = 16
    """Number of environments that run in parallel. Results don't depend on it."""
    options: tuple[str, ...] = ()
    """Options of the environment, as KEY=VALUE with Python literals: depth=(2,3). With several environments,
    ENV:KEY=VALUE sets an option of one of them."""
    overwrite: Annotated[bool, switch()] = False
    """Discard an existing run in --out and start over."""
    max_failed: float = 0.05
    """Share of a run's episodes that may fail (because the environment broke, not because the policy did badly) before
    the command exits with code 1."""
    endpoint: Annotated[EndpointSettings, arg(name="")] = field(default_factory=EndpointSettings)
    """Endpoint of --policy openai:MODEL."""

    def __post_init__(self) -> None:
        for name in ("tasks", "samples", "horizon", "max_tokens", "slots", "pictures"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
        if self.seed < 0 or not 0 <= self.temperature < math.inf:
            raise UsageError("--seed and --temperature must be 0 or more.")
        if not 0 <= self.max_failed <= 1:
            raise UsageError(f"--max-failed must be a share between 0 and 1, not {self.max_failed:g}.")
        if (self.tasks is not None) + bool(self.task) + bool(self.items) > 1:
            raise UsageError("--task, --items and --tasks exclude each other; give one of the three.")
        if self.pictures is not None and "+pictures" in (self.agent or ""):
            raise UsageError(f"--agent {self.agent} says how many pictures the agent gets; leave out --pictures.")
        if self.prompt is not None and not self.instructions:
            raise UsageError(f"--prompt {self.prompt} writes the instructions; leave out --no-instructions.")
        if self.skip and not self.items:
            raise UsageError("--skip applies only to --items; give --items as well.")


@dataclass(frozen=True, kw_only=True)
class _InHarness:
    harness: Annotated[HarnessSettings, arg(name="")] = field(default_factory=HarnessSettings)
    """Agent of another program that plays with the policy's model."""


@dataclass(frozen=True, kw_only=True)
class _ByProtocol:
    protocol: Annotated[str | None, arg(metavar="NAME")] = None
    """Evaluation settings of a paper, by name: agentgym-rl. They determine --split, --tasks, --samples, --horizon,
    --temperature and --max-tokens in each environment; other values of these flags are refused."""


@dataclass(frozen=True, kw_only=True)
class _Tagged:
    tags: tuple[str, ...] = ()
    """Tags of the run, by which the viewer groups and filters runs; there they can be changed later."""


@dataclass(frozen=True, kw_only=True)
class PlaySettings(_Tagged, _ByProtocol, _InHarness, _Play, _OnePolicy, _OneWorld):
    """The settings of one run: one policy in one environment."""

    max_tokens: int = 512
    """Maximum number of tokens per reply of language models."""

    @property
    def label(self) -> str:
        """What plays: the policy, in a harness if there is one."""
        return _in_harness(self.policy, self.harness)

    @property
    def breakable(self) -> str:
        """What may fail through no fault of the policy."""
        return "harness" if self.harness.name else "environment"

    @property
    def shown_options(self) -> list[str]:
        """The options with secrets replaced by stars, including secrets that the environment declares."""
        from agentgym_envs.core.registration import full_id
        from agentgym_envs.core.registry import world_class
        from agentgym_envs.util.redaction import redacted_option
        from gymnasium.error import DependencyNotInstalled

        with suppress(ValueError, ImportError, DependencyNotInstalled):
            world_class(full_id(self.env))
        return [redacted_option(pair) for pair in self.options]

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the episodes, as JSON values without secrets. A run is resumed only if
        these are equal.
        """
        from agentgym_envs.util.redaction import redacted_option

        names = [f.name for f in fields(PlaySettings) if f.name not in _NOT_IDENTITY]
        values = {name: getattr(self, name) for name in names}
        values["options"] = [pair for pair in self.shown_options if pair.partition("=")[0] not in _ADDRESS]
        values["items"] = [str(path) for path in self.items]
        values |= {"body": list(map(redacted_option, self.endpoint.body))} if self.endpoint.body else {}
        values |= {} if self.endpoint.native_tools else {"native_tools": False}
        values |= {name: value for name in ("pictures", "prompt") if (value := getattr(self, name))}
        values |= self.harness.identity()
        values |= {"protocol": self.protocol} if self.protocol else {}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


_ADDRESS = ("url", "token", "timeout")  # options that locate an environment on a server; one of them is a secret
_NOT_IDENTITY = (
    "skip", "slots", "overwrite", "max_failed", "endpoint", "harness", "protocol", "pictures", "prompt", "tags",
)  # fmt: skip
ALL = "all"
"""Value of --env that stands for every installed environment."""


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(_Tagged, _ByProtocol, _InHarness, _Play, _Policies, _Worlds):
    """Evaluate policies in environments: success, score, turns, tokens, pass@k and pass^k with 95% intervals.

    Each policy in each environment is one run: a folder with its episodes and a report. Several runs are compared task
    by task in one table. Repeating the command resumes an interrupted run. Exit codes: 0 for success, 1 when more than
    --max-failed of a run's episodes failed, 2 for wrong usage, 3 when the --budget is spent.
    """

    k: tuple[int, ...] = ()
    """Values of k for which to report pass@k and pass^k. Default: the powers of two from 1 up to --samples."""
    detect: Annotated[float | None, arg(metavar="FLOAT")] = None
    """Don't run any episodes; print how many tasks and samples are needed to detect this difference in success between
    two policies: 0.05 is five points. Takes the results of an earlier run in --out into account."""
    forensics: Annotated[bool, switch()] = False
    """Also measure the expert's distance to the goal at each turn of unsuccessful episodes, by replaying them: it tells
    over-interaction and moving away from the goal from a budget that was too small. Only in environments whose expert
    decides from the current state."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Folder of the run; with several runs, the folder of their folders ENV-POLICY-SPLIT. Default: a folder in
    runs/evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol:  # `all` is checked once it is replaced by environments
            find_protocol(self.protocol).check([env for env in self.env if env != ALL], vars(self))
        if self.detect is not None and not 0 < self.detect < 1:
            raise UsageError(f"--detect must be between 0 and 1, such as 0.05 for five points, not {self.detect:g}.")
        for k in self.k:
            if not 1 <= k <= self.samples:
                raise UsageError(
                    f"--k {k} must be between 1 and --samples, which is {self.samples}; lower --k or raise --samples."
                )
        _check_names("--env", "environment", [short_name(env) for env in self.env])
        _check_names("--policy", "policy", [_file_name(policy) for policy in self.policy])
        _options(self.env, self.options)
        checked_tags(self.tags)
        for policy in self.policy:
            own = {"--agent": self.agent, "--prompt": self.prompt, "--pictures": self.pictures}
            given = [flag for flag, value in own.items() if value is not None]
            self.harness.check(policy, [*given, *([] if self.instructions else ["--no-instructions"])])

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of k for pass@k, ascending."""
        powers = (2**i for i in range(self.samples.bit_length()))
        return tuple(sorted(set(self.k or powers)))

    @property
    def label(self) -> str:
        """What plays: the policies, in a harness if there is one."""
        return _in_harness(", ".join(self.policy), self.harness)

    @property
    def played_tasks(self) -> str:
        """The split, and the protocol if there is one, for titles of reports."""
        return f"{self.split} split" + (f", protocol {self.protocol}" if self.protocol else "")

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.env) * len(self.policy) > 1 or ALL in self.env

    @property
    def folder(self) -> Path:
        """Folder of the run, or the one that contains the folders of several runs."""
        worlds, few = "-".join(map(short_name, self.env)), len(self.policy) == 1
        policies = self.policy[0] if few else f"{len(self.policy)}-policies"
        policies = _file_name(_in_harness(policies, self.harness))
        return self.out or Path("runs", "evaluate", f"{worlds}-{policies}-{self.split}")

    def runs(self) -> dict[str, dict[Path, PlaySettings]]:
        """Return the settings of all runs, by policy and by run folder."""
        found: dict[str, dict[Path, PlaySettings]] = {}
        for policy in self.policy:
            worlds = _in_each_world(self, policy, self.env)
            names = (f"{short_name(world.env)}-{_file_name(world.label)}-{self.split}" for world in worlds)
            folders = (self.folder / name if self.several else self.folder for name in names)
            found[policy] = dict(zip(folders, worlds, strict=True))
        return found

    def resolved(self, run: PlaySettings, folder: Path) -> dict[str, Any]:
        """Return all settings of a run as JSON values, with the defaults that depend on other settings filled in."""
        filled = {"k": list(self.ks), "out": str(folder), "slots": self.slots, "max_failed": self.max_failed}
        return run.identity() | filled


@dataclass(frozen=True, kw_only=True)
class CollectSettings(_Play, _OnePolicy, _Worlds):
    """Run a policy in one or several environments and save the episodes as a dataset of JSON lines with a data card.

    Unfinished work is kept in OUT.partial; repeating the command resumes it. Failed episodes are counted, but never
    part of the dataset.
    """

    out: Path
    """FILE.jsonl, or a folder with one file per environment and split, which `datasets.load_dataset` loads. It is
    written when all episodes are done."""
    split: Literal["train", "dev", "test"] = "train"
    """Split to take the tasks from."""
    keep: Literal["all", "success"] = "all"
    """Save all episodes, or only those that reached the goal."""
    min_score: float = 0.0
    """Save only episodes with at least this score, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score must be between 0 and 1, not {self.min_score:g}.")
        if self.out.name in ("", ".."):
            raise UsageError(f"--out {self.out} has no file name; give a name, such as runs/NAME or NAME.jsonl.")
        if self.out.suffix == ".json":
            raise UsageError(
                f"--out {self.out} is not a valid name for a file with one episode per line; use {self.out}l or name a "
                "folder."
            )
        _check_names("--env", "environment", [short_name(env) for env in self.env])
        _options(self.env, self.options)

    @property
    def folder(self) -> Path:
        """Folder of unfinished work."""
        return self.out.with_name(f"{self.out.name}.partial")

    def worlds(self) -> dict[Path, PlaySettings]:
        """Return the settings for each environment, by the folder of its unfinished run."""
        worlds = _in_each_world(self, self.policy, self.env)
        return {self.folder / short_name(world.env): world for world in worlds}

    def resolved(self) -> dict[str, Any]:
        """Return the settings that determine which episodes are produced and kept, as JSON values."""
        worlds = [settings.identity() for settings in self.worlds().values()]
        each = {"env": list(self.env), "options": {world["env"]: world["options"] for world in worlds}}
        return worlds[0] | each | {"keep": self.keep, "min_score": self.min_score}


def _in_each_world(asked: _Play, policy: str, envs: Sequence[str]) -> list[PlaySettings]:
    common: dict[str, Any] = {f.name: getattr(asked, f.name) for f in fields(_Play)}
    common = {name: value for name, value in common.items() if value is not None}
    options = _options(envs, common.pop("options"))
    own: dict[str, dict[str, Any]] = {env: {"options": options[env]} for env in envs}
    if isinstance(asked, EvaluateSettings):
        common |= {"harness": asked.harness, "protocol": asked.protocol, "tags": checked_tags(asked.tags)}
        if asked.protocol:
            protocol = find_protocol(asked.protocol)
            own = {env: own[env] | protocol.settings(env, items=bool(asked.items)) for env in envs}
    return [PlaySettings(env=env, policy=policy, **(common | own[env])) for env in envs]


def _options(envs: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options by environment; those without an environment's name before the key apply to all."""
    given: dict[str, tuple[str, ...]] = dict.fromkeys(envs, ())
    for pair in options:
        name = pair.partition("=")[0].rpartition(":")[0]
        targets = [env for env in envs if name in ("", env, short_name(env))]
        if not targets and ALL not in envs:
            raise UsageError(
                f"--options {pair.partition('=')[0]} is for {name}, which is not among the environments of --env: "
                f"{', '.join(envs)}."
            )
        for env in targets:
            given[env] += (pair.removeprefix(f"{name}:") if name else pair,)
    return given


def _check_names(flag: str, kind: str, names: Sequence[str]) -> None:
    if not names:
        raise UsageError(f"{flag} names no {kind}; name one or more.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{flag} names {name} twice; name each {kind} once, or use a separate --out.")


def _in_harness(policy: str, harness: HarnessSettings) -> str:
    return f"{policy} in {harness.name}" if harness.name else policy


def _file_name(policy: str) -> str:
    return re.sub(r"[^\w.]+", "-", policy)
