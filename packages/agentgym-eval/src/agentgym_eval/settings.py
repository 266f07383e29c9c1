"""What a run is asked for, as frozen dataclasses that are the command line at the same time.

Only the standard library is imported here: `--help` reads this module and nothing else of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from agentgym_eval.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PlaySettings:
    """Which episodes are played, and by whom."""

    env: str
    """World: a Gymnasium id (agentgym/TextCraft-v0), its short name (textcraft), or MODULE:ID for a world of yours."""
    policy: str
    """oracle, oracle:NOISE, random, scripted:FILE, or hf:PATH and vllm:PATH (with agentgym-trainer)."""
    split: Literal["train", "dev", "test"] = "test"
    """Split that the tasks are of."""
    tasks: int | None = None
    """So many tasks, evenly spread over the split's categories and difficulties; all of them when not given."""
    task: tuple[str, ...] = ()
    """Exactly these task ids, of whichever split, instead of --split and --tasks."""
    samples: int = 1
    """Attempts at each task."""
    wrapper: Literal["react", "bare", "tags"] | None = None
    """Form of a reply: Thought and Action, the bare action, or <think> and a tag; the world's own when not given."""
    instructions: bool = True
    """Tell the player the world's instructions. Switch it off for a model that was trained without them."""
    horizon: int | None = None
    """Most turns of an episode, in place of the world's own limit."""
    seed: int = 0
    """Seed of everything that is drawn: the world's, the policy's and the intervals' numbers."""
    temperature: float = 1.0
    """Sampling temperature of language models."""
    max_tokens: int = 512
    """Most tokens of one reply of a language model."""
    slots: int = 16
    """Worlds played at once; no figure depends on it."""
    options: tuple[str, ...] = ()
    """Options the world is made with, as KEY=VALUE with Python literals: depth=(2,3)."""
    overwrite: bool = False
    """Begin again where --out holds another run."""
    max_failed: float = 0.05
    """Share of episodes that may fail (a broken world, not a poor player) before the command exits with 1."""

    def __post_init__(self) -> None:
        for name in ("tasks", "samples", "horizon", "max_tokens", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is at least 1, not {value}.")
        if self.seed < 0 or self.temperature < 0:
            raise UsageError("--seed and --temperature are not negative; give 0 or more.")
        if self.tasks is not None and self.task:
            raise UsageError("--task names the tasks and --tasks counts them: give one of the two.")

    def identity(self) -> dict[str, Any]:
        """The settings that decide which episodes come out, as JSON values. A run resumes only under equal ones."""
        names = [field.name for field in fields(PlaySettings) if field.name not in _NOT_IDENTITY]
        values = {name: getattr(self, name) for name in names}
        values["options"] = [pair for pair in self.options if pair.partition("=")[0] not in _ADDRESS]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


_ADDRESS = ("url", "token", "timeout")  # options that say where a world on a server is; one of them is a secret
_NOT_IDENTITY = ("slots", "overwrite", "max_failed")


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(PlaySettings):
    """Play a policy in a world and report success, score, turns and pass@k with 95% intervals.

    Writes episodes.jsonl and report.json to --out. The same command resumes where it stopped. Exits with 0, with 1 when
    more than --max-failed of the episodes failed, and with 2 when the command itself is wrong.
    """

    k: tuple[int, ...] = ()
    """Report pass@k for these; 1 and the powers of two up to --samples when not given."""
    out: Path | None = None
    """Folder of the run; runs/evaluate/WORLD-POLICY-SPLIT when not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for k in self.k:
            if not 1 <= k <= self.samples:
                raise UsageError(
                    f"pass@{k} needs 1 to --samples attempts, here {self.samples}: lower --k or add samples."
                )

    @property
    def ks(self) -> tuple[int, ...]:
        """The k of pass@k, ascending."""
        powers = (2**i for i in range(self.samples.bit_length()))
        return tuple(sorted(set(self.k or powers)))

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        world = re.sub(r".*[/:]|-v\d+$", "", self.env).lower()
        return self.out or Path("runs", "evaluate", re.sub(r"[^\w.]+", "-", f"{world}-{self.policy}-{self.split}"))

    def resolved(self) -> dict[str, Any]:
        """All settings as JSON values, with the defaults that depend on others filled in."""
        filled = {"k": list(self.ks), "out": str(self.folder), "slots": self.slots, "max_failed": self.max_failed}
        return self.identity() | filled


@dataclass(frozen=True, kw_only=True)
class CollectSettings(PlaySettings):
    """Play a policy in a world and keep the episodes as data, one JSON line each in the order of the tasks.

    Unfinished work lies in FILE.partial; the same command resumes it. Failed episodes are never data: they are
    counted and left out.
    """

    out: Path
    """File to write; it appears when all episodes are played."""
    split: Literal["train", "dev", "test"] = "train"
    """Split that the tasks are of."""
    keep: Literal["all", "success"] = "all"
    """Keep every episode, or those that reached the goal."""

    @property
    def folder(self) -> Path:
        """Where the unfinished run lies."""
        return self.out.with_name(f"{self.out.name}.partial")
