"""What a run is asked for, as frozen dataclasses that are the command line at the same time.

Nothing heavy is imported here: `--help` reads this module and nothing else of ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.util.errors import UsageError


def short_name(env: str) -> str:
    """`textcraft` for `agentgym/TextCraft-v0`, `textcraft` or `MODULE:mine/TextCraft-v3`."""
    return re.sub(r".*[/:]|-v\d+$", "", env).lower()


@dataclass(frozen=True, kw_only=True)
class _OneWorld:
    env: str
    """World: a Gymnasium id (agentgym/TextCraft-v0), its short name (textcraft), or MODULE:ID for a world of yours."""


@dataclass(frozen=True, kw_only=True)
class _Worlds:
    env: tuple[str, ...]
    """Worlds: Gymnasium ids (agentgym/TextCraft-v0), short names (textcraft), MODULE:ID for a world of yours, or all
    for every world that is installed."""


@dataclass(frozen=True, kw_only=True)
class _OnePolicy:
    policy: str
    """oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL, or hf:PATH and vllm:PATH (with agentgym-trainer)."""


@dataclass(frozen=True, kw_only=True)
class _Policies:
    policy: tuple[str, ...]
    """One or several of oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL, and hf:PATH and vllm:PATH (with
    agentgym-trainer). The others are compared with the first."""


@dataclass(frozen=True, kw_only=True)
class _Play:
    split: Literal["train", "dev", "test"] = "test"
    """Split that the tasks are of."""
    tasks: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """So many tasks, evenly spread over the split's categories and difficulties; all of them when not given."""
    task: tuple[str, ...] = ()
    """Exactly these task ids, of whichever split, instead of --split and --tasks."""
    items: tuple[Path, ...] = ()
    """Exactly the tasks in these item-id files of AgentGym: [{"item_id": "babyai_123"}]."""
    skip: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave out the items that name no task of ours, instead of refusing them."""
    samples: int = 1
    """Attempts at each task."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="FORM[+HABIT]")] = None
    """Who plays: the form of replies (react, bare, tags, function-call, code-act, or MODULE:CLASS for one of yours)
    with habits behind it, such as react+plan+window:6; the world's own when not given."""
    instructions: bool = True
    """Whether the player is told the world's instructions. Switch it off for a model that was trained without them."""
    horizon: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Most actions of an episode, in place of the world's own limit; of each trial where the agent tries again."""
    seed: int = 0
    """Seed of everything that is drawn: the world's, the policy's and the intervals' numbers."""
    temperature: float = 1.0
    """Sampling temperature of language models."""
    max_tokens: int = 512
    """Most tokens of one reply of a language model."""
    slots: int = 16
    """Worlds played at once; no figure depends on it."""
    options: tuple[str, ...] = ()
    """Options the world is made with, as KEY=VALUE with Python literals: depth=(2,3). Of several worlds, those of one
    are WORLD:KEY=VALUE."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Begin again where --out holds another run."""
    max_failed: float = 0.05
    """Share of a run's episodes that may fail (a broken world, not a poor player) before the command exits with 1."""
    endpoint: Annotated[EndpointSettings, tyro.conf.arg(name="")] = field(default_factory=EndpointSettings)
    """What openai:MODEL is asked through."""

    def __post_init__(self) -> None:
        for name in ("tasks", "samples", "horizon", "max_tokens", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is at least 1, not {value}.")
        if self.seed < 0 or not 0 <= self.temperature < math.inf:
            raise UsageError("--seed and --temperature are not negative; give 0 or more.")
        if not 0 <= self.max_failed <= 1:
            raise UsageError(f"--max-failed is a share, from 0 to 1, not {self.max_failed:g}.")
        if (self.tasks is not None) + bool(self.task) + bool(self.items) > 1:
            raise UsageError("--task and --items name the tasks and --tasks counts them: give one of the three.")
        if self.skip and not self.items:
            raise UsageError("--skip leaves items out, and there are none: give --items as well.")


@dataclass(frozen=True, kw_only=True)
class PlaySettings(_Play, _OnePolicy, _OneWorld):
    """Which episodes are played in a world, and by whom."""

    @property
    def shown_options(self) -> list[str]:
        """The options with stars for secrets, those included that the world declares."""
        from agentgym_envs.core.registry import full_id, world_class
        from agentgym_envs.util.redaction import redacted_option
        from gymnasium.error import DependencyNotInstalled

        with suppress(ValueError, ImportError, DependencyNotInstalled):
            world_class(full_id(self.env))
        return [redacted_option(pair) for pair in self.options]

    def identity(self) -> dict[str, Any]:
        """The settings that decide which episodes come out, as JSON values without secrets. A run resumes only under
        equal ones.
        """
        from agentgym_envs.util.redaction import redacted_option

        names = [f.name for f in fields(PlaySettings) if f.name not in _NOT_IDENTITY]
        values = {name: getattr(self, name) for name in names}
        values["options"] = [pair for pair in self.shown_options if pair.partition("=")[0] not in _ADDRESS]
        values["items"] = [str(path) for path in self.items]
        values |= {"body": list(map(redacted_option, self.endpoint.body))} if self.endpoint.body else {}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


_ADDRESS = ("url", "token", "timeout")  # options that say where a world on a server is; one of them is a secret
_NOT_IDENTITY = ("skip", "slots", "overwrite", "max_failed", "endpoint")
ALL = "all"
"""Instead of worlds: every one that is installed."""


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(_Play, _Policies, _Worlds):
    """Play policies in worlds and report success, score, turns, tokens, pass@k and pass^k with 95% intervals.

    Each policy in each world is a run: a folder with its episodes and report. Several are compared in one table, task
    by task. The same command resumes where it stopped. Exits with 0, with 1 when more than --max-failed of a run's
    episodes failed, and with 2 when the command itself is wrong.
    """

    k: tuple[int, ...] = ()
    """Report pass@k and pass^k for these; 1 and the powers of two up to --samples when not given."""
    detect: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Play nothing, and tell how many tasks and samples it takes to tell two policies apart that differ by so much in
    success: 0.05 is five points. What an earlier run in --out came to is taken into account."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of the run, or of the runs (WORLD-POLICY-SPLIT in it) when there are several; in runs/evaluate when not
    given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.detect is not None and not 0 < self.detect < 1:
            raise UsageError(f"--detect is a difference in success, such as 0.05 for five points, not {self.detect:g}.")
        for k in self.k:
            if not 1 <= k <= self.samples:
                raise UsageError(
                    f"pass@{k} needs 1 to --samples attempts, here {self.samples}: lower --k or add samples."
                )
        _check_names("--env", "world", [short_name(env) for env in self.env])
        _check_names("--policy", "policy", [_file_name(policy) for policy in self.policy])
        _options(self.env, self.options)

    @property
    def ks(self) -> tuple[int, ...]:
        """The k of pass@k, ascending."""
        powers = (2**i for i in range(self.samples.bit_length()))
        return tuple(sorted(set(self.k or powers)))

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.env) * len(self.policy) > 1 or ALL in self.env

    @property
    def folder(self) -> Path:
        """Where the run or the runs lie."""
        worlds, few = "-".join(map(short_name, self.env)), len(self.policy) == 1
        policies = _file_name(self.policy[0]) if few else f"{len(self.policy)}-policies"
        return self.out or Path("runs", "evaluate", f"{worlds}-{policies}-{self.split}")

    def runs(self) -> dict[str, dict[Path, PlaySettings]]:
        """What is played by each policy, by the folder in which the run lies."""
        found: dict[str, dict[Path, PlaySettings]] = {}
        for policy in self.policy:
            worlds = _in_each_world(self, policy, self.env)
            names = (f"{short_name(world.env)}-{_file_name(policy)}-{self.split}" for world in worlds)
            folders = (self.folder / name if self.several else self.folder for name in names)
            found[policy] = dict(zip(folders, worlds, strict=True))
        return found

    def resolved(self, run: PlaySettings, folder: Path) -> dict[str, Any]:
        """All settings of a run as JSON values, with the defaults that depend on others filled in."""
        filled = {"k": list(self.ks), "out": str(folder), "slots": self.slots, "max_failed": self.max_failed}
        return run.identity() | filled


@dataclass(frozen=True, kw_only=True)
class CollectSettings(_Play, _OnePolicy, _Worlds):
    """Play a policy in one or several worlds and keep the episodes as data, one JSON line each, with a data card.

    Unfinished work lies in OUT.partial; the same command resumes it. Failed episodes are never data: they are
    counted and left out.
    """

    out: Path
    """FILE.jsonl, or a folder with a file for each world and split, which `datasets.load_dataset` loads. It appears
    when all episodes are played."""
    split: Literal["train", "dev", "test"] = "train"
    """Split that the tasks are of."""
    keep: Literal["all", "success"] = "all"
    """Keep every episode, or those that reached the goal."""
    min_score: float = 0.0
    """Keep only episodes with at least this score, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score is from 0 to 1, as scores are, not {self.min_score:g}.")
        if self.out.name in ("", ".."):
            raise UsageError(f"--out {self.out} has no name of its own: call it runs/NAME or NAME.jsonl.")
        if self.out.suffix == ".json":
            raise UsageError(f"--out {self.out} holds an episode a line: call it {self.out}l, or name a folder.")
        _check_names("--env", "world", [short_name(env) for env in self.env])
        _options(self.env, self.options)

    @property
    def folder(self) -> Path:
        """Where the unfinished work lies."""
        return self.out.with_name(f"{self.out.name}.partial")

    def worlds(self) -> dict[Path, PlaySettings]:
        """What is asked for in each world, by the folder in which its unfinished run lies."""
        worlds = _in_each_world(self, self.policy, self.env)
        return {self.folder / short_name(world.env): world for world in worlds}

    def resolved(self) -> dict[str, Any]:
        """What decides which episodes come out and are kept, as JSON values."""
        worlds = [settings.identity() for settings in self.worlds().values()]
        each = {"env": list(self.env), "options": {world["env"]: world["options"] for world in worlds}}
        return worlds[0] | each | {"keep": self.keep, "min_score": self.min_score}


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Compare runs on the tasks that they share: each with the first, task by task.

    A run is a folder that `evaluate` wrote (one with several runs stands for all of them), or a file of episodes, such
    as an evaluation of a training run. Exits with 0, and with 2 when runs can't be compared.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of `evaluate` or files of episodes, two or more in all. The others are compared with the first."""
    against: tuple[Path, ...] = ()
    """Runs of another way of training, as many as there are of the first and in the same order of training seeds: each
    is compared with the one of its seed, and the two ways of training over seeds."""
    k: tuple[int, ...] = ()
    """Report pass@k and pass^k for these; 1 and the powers of two up to the attempts at each task when not given."""
    seed: int = 0
    """Seed of the intervals and of the paired tests."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder for the comparison as pages and pictures; without it there is the table alone."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError("--seed is not negative; give 0 or more.")
        if any(k < 1 for k in self.k):
            raise UsageError(f"pass@k is of 1 or more attempts, not of {min(self.k)}: mend --k.")


def _in_each_world(asked: _Play, policy: str, envs: Sequence[str]) -> list[PlaySettings]:
    common: dict[str, Any] = {f.name: getattr(asked, f.name) for f in fields(_Play)}
    options = _options(envs, common.pop("options"))
    return [PlaySettings(env=env, policy=policy, options=options[env], **common) for env in envs]


def _options(envs: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Options by world: those without a world's name before the key are for all."""
    given: dict[str, tuple[str, ...]] = dict.fromkeys(envs, ())
    for pair in options:
        name = pair.partition("=")[0].rpartition(":")[0]
        of = [env for env in envs if name in ("", env, short_name(env))]
        if not of and ALL not in envs:
            raise UsageError(
                f"--options {pair.partition('=')[0]} is for {name}, which --env doesn't name; there are "
                f"{', '.join(envs)}."
            )
        for env in of:
            given[env] += (pair.removeprefix(f"{name}:") if name else pair,)
    return given


def _check_names(flag: str, noun: str, names: Sequence[str]) -> None:
    if not names:
        raise UsageError(f"{flag} names no {noun}; name one or several.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{flag} names {name} twice; name each {noun} once, or write into another --out.")


def _file_name(policy: str) -> str:
    return re.sub(r"[^\w.]+", "-", policy)
