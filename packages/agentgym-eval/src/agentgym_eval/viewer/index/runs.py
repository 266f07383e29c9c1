"""The data of a run without its episodes: its record, its episode files and its state. `discovery` creates it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym_eval.storage.store import expected_episodes

Kind = Literal["evaluate", "train", "collect", "episodes"]
"""`evaluate`: a run of `evaluate`, or an unfinished run of `collect`; `train`: a training run; `collect`: collected
data; `episodes`: any other file of episodes.
"""

Part = Literal["played", "evaluation", "rollouts", "data"]
"""`played`: episodes of the run as a whole; `evaluation`: of an evaluation during training; `rollouts`: of a training
step; `data`: training data.
"""

State = Literal["done", "running", "waiting", "stopped"]
"""`done`: the run's final output exists, or its command has moved on to its next run; `running`: it wrote something in
the last three minutes and recorded no reason for stopping; `waiting`: its command has other runs to finish first;
`stopped`: none of these.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)
STATES: tuple[State, ...] = get_args(State)

HUMAN = "human"
"""The policy name of runs with interactively played episodes, which are always complete."""


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """A JSONL file with one episode per line."""

    path: Path
    slug: str
    """Its name in URLs; unique in its run."""
    name: str
    """Its path relative to the run's folder, without the suffix."""
    part: Part
    step: int | None = None
    """The number of training steps (or iterations) before these episodes; None outside training."""
    decoding: str = ""
    """The decoding method, `sampled` or `greedy`; empty if unknown."""
    split: str = ""
    """The split of an evaluation during training: `dev` or `train` in the course of a run, `test` at its end; empty for
    other files.
    """


@dataclass(frozen=True, slots=True)
class Run:
    """A folder or file with episodes."""

    slug: str
    """Its name in URLs; unique below the viewed folder."""
    name: str
    """Its path relative to the viewed folder, for display."""
    path: Path
    kind: Kind
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The content of its run.json, or of the card of collected data; empty for single files."""
    files: tuple[EpisodeFile, ...] = ()
    began: float = 0.0
    """When it began, in Unix seconds: as its record says, otherwise from the modification times of its files."""
    changed: float = 0.0
    """When any of its files was last written, in Unix seconds."""
    state: State = "done"
    reason: str = ""
    """Why it stopped, as a sentence; empty if it didn't stop or recorded no reason."""
    read_error: str = ""
    """Which part of its folder can't be read, as a sentence; empty if everything can."""
    title: str = ""
    """The name that a user gave it; empty if none."""
    note: str = ""
    """What a user noted about it."""
    tags: tuple[str, ...] = ()
    """Its tags, sorted: those that a user gave it, otherwise those of its command line."""

    @property
    def label(self) -> str:
        """The name to show: the one that a user gave it, or `name`. Several runs can have the same."""
        return self.title or self.name

    @property
    def full_label(self) -> str:
        """The name to show where it must be unambiguous: `label`, followed by `name` if a user gave it another."""
        return f"{self.title} ({self.name})" if self.title else self.name

    @property
    def recipe(self) -> str:
        """The training recipe, such as `sft-textcraft`; empty for other runs."""
        return str(self.record.get("recipe", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The resolved settings or configuration; empty if not recorded."""
        settings = self.record.get("settings") or self.record.get("config")
        return settings if isinstance(settings, dict) else {}

    @property
    def policy(self) -> str:
        """The policy in the settings, for training the initial model; with the harness that it plays in, if any."""
        policy = str(self.settings.get("policy") or self.settings.get("model") or "")
        harness = self.settings.get("harness") or self.settings.get("harness_command")
        return f"{policy} in {harness}" if policy and harness else policy

    @property
    def env(self) -> str:
        """The environment in the settings; empty if there is none, or several."""
        world = self.settings.get("world")
        env = self.settings.get("env") or (world.get("env") if isinstance(world, dict) else "")
        return env if isinstance(env, str) else ""

    @property
    def split(self) -> str:
        """The split of evaluations during training; `test` for older runs, which did not record it."""
        evaluation = self.settings.get("evaluation")
        split = evaluation.get("split") if isinstance(evaluation, dict) else None
        return split if isinstance(split, str) else "test"

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that started it; empty if not recorded."""
        command = self.record.get("command")
        return tuple(map(str, command)) if isinstance(command, list) else ()

    @property
    def shell_command(self) -> str:
        """The command line that started it, quoted for a shell; empty if not recorded."""
        return shlex.join(self.command)

    @property
    def working_folder(self) -> str:
        """The working folder of its command; empty if not recorded."""
        return str(self.record.get("folder") or "")

    @property
    def expected(self) -> int | None:
        """The number of episodes of a complete evaluation; None for other runs, and if the settings don't give it."""
        if self.kind != "evaluate":
            return None
        return expected_episodes(self.record)

    def file(self, slug: str) -> EpisodeFile:
        """Return the file with this slug. Raises `KeyError`."""
        for file in self.files:
            if file.slug == slug:
                return file
        raise KeyError(f"{self.name} has no file {slug}; it has {', '.join(each.slug for each in self.files)}.")


def printable(name: str) -> str:
    r"""Return the name of a file as text that pages and the index can hold: bytes that aren't UTF-8 become `\xe9`."""
    text = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:x}", name)
    return text.encode(errors="replace").decode()


def path_key(path: Path) -> str | bytes:
    """Return a path as the index stores it: as text, or as bytes if it isn't UTF-8."""
    text = str(path)
    return text if text == printable(text) else os.fsencode(path)


def slug_of(name: str) -> str:
    """Derive a readable slug that is valid in URLs and file names; deterministic, and distinct for distinct names,
    including those of files that aren't UTF-8.
    """
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[-80:]
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return plain if plain == name else f"{plain}-{digest[:6]}".lstrip("-")
