"""What lies below a folder: runs of `evaluate` and `train`, collected data, and loose files of episodes.

A run is told by what its files say (`schema`), never by its folder's name. Nothing is written and nothing is kept here;
episodes themselves are the index's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym_eval.storage.store import STOPPED

Kind = Literal["evaluate", "train", "collect", "episodes"]
"""A run of `evaluate`, or unfinished work of `collect`; of `train`; collected data; any other file of episodes."""

Part = Literal["played", "evaluation", "rollouts", "data"]
"""Episodes that were played by the run as a whole; to evaluate it after a step; in a training step; learned from."""

State = Literal["done", "running", "waiting", "stopped"]
"""`done`: what a run leaves at its end is there, or all its episodes while others of the same command are played;
`running`: it wrote anything in the last `_ALIVE_S`, and no reason why it stopped; `waiting`: others of the same command
come first; else `stopped`.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)
STATES: tuple[State, ...] = get_args(State)

_ALIVE_S = 180.0
HUMAN = "human"
"""The policy of runs that hold games played by hand: each is whole when it is saved."""

_WRITTEN = ("run.json", "card.json", "metrics.jsonl", "replies.jsonl")
"""Files by which a run shows that it goes on, besides its episodes; the first of them is written when it begins."""
_PRUNED = {"checkpoints", "model", "start", "node_modules"}
_EPISODE = b'{"schema":"agentgym.episode/'
_STEP = re.compile(r"(?:step|test|iteration)-(\d+)")


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """A JSONL file with an episode on each line."""

    path: Path
    slug: str
    """Its name in addresses; unique in its run."""
    name: str
    """Its path in the run's folder, without the suffix."""
    part: Part
    step: int | None = None
    """Training steps (or iterations) done when its episodes were played; None outside training."""
    manner: str = ""
    """How they were sampled, `sampled` or `greedy`; empty where that isn't said."""
    split: str = ""
    """Of an evaluation in training, whose tasks they are of: `dev` or `train` in the course of a run, `test` at its
    end; empty of anything else."""


@dataclass(frozen=True, slots=True)
class Run:
    """A folder or file with episodes."""

    slug: str
    """Its name in addresses; unique below the folder that is viewed."""
    name: str
    """Its path below that folder, as a person reads it."""
    path: Path
    kind: Kind
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its run.json says, or the card of collected data; empty for loose files."""
    files: tuple[EpisodeFile, ...] = ()
    began: float = 0.0
    """When it began and when anything of it was last written, in seconds of the epoch, as the files have it."""
    changed: float = 0.0
    state: State = "done"
    reason: str = ""
    """Why it stopped, in a sentence; empty where it didn't, or nobody wrote that down."""
    trouble: str = ""
    """What of its folder can't be read, in a sentence; empty where all can."""

    @property
    def recipe(self) -> str:
        """What was trained, such as `sft-textcraft`; empty for anything but training."""
        return str(self.record.get("recipe", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The resolved settings or configuration; empty where nobody wrote them down."""
        found = self.record.get("settings") or self.record.get("config")
        return found if isinstance(found, dict) else {}

    @property
    def policy(self) -> str:
        """Who played, as the settings have it; the model that training began with."""
        return str(self.settings.get("policy") or self.settings.get("model") or "")

    @property
    def env(self) -> str:
        """The world, as the settings have it; empty where they don't say, or there are several."""
        world = self.settings.get("world")
        found = self.settings.get("env") or (world.get("env") if isinstance(world, dict) else "")
        return found if isinstance(found, str) else ""

    @property
    def split(self) -> str:
        """The split that training is evaluated on in its course; `test` of runs from before there was a choice."""
        evaluation = self.settings.get("evaluation")
        found = evaluation.get("split") if isinstance(evaluation, dict) else None
        return found if isinstance(found, str) else "test"

    @property
    def command(self) -> tuple[str, ...]:
        """The command that began it; empty where nobody wrote it down."""
        found = self.record.get("command")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def expected(self) -> int | None:
        """How many episodes an evaluation has at its end; None of other runs, and where its settings don't say."""
        if self.kind != "evaluate":
            return None
        resolved, samples = self.record.get("resolved"), self.settings.get("samples")
        counted = (resolved if isinstance(resolved, dict) else {}).get("tasks", self.settings.get("tasks"))
        named = self.settings.get("task")
        tasks = len(named) if named and isinstance(named, list) else counted
        return tasks * samples if isinstance(tasks, int) and isinstance(samples, int) else None

    def file(self, slug: str) -> EpisodeFile:
        """The file of this name. Raises `KeyError`."""
        for file in self.files:
            if file.slug == slug:
                return file
        raise KeyError(f"{self.name} has no file {slug}; there are {', '.join(each.slug for each in self.files)}.")


def slug_of(name: str) -> str:
    """A name for addresses and files of any system: unique for each `name`, readable, the same every time."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[-80:]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}".lstrip("-")


def discover(root: Path) -> list[Run]:
    """The runs in `root`, which is a folder or one file of episodes, by name."""
    if root.is_file():
        return [_loose(root, root.parent)] if _holds_episodes(root) else []
    claimed: dict[Path, list[Path]] = {}
    records: dict[Path, Mapping[str, Any]] = {}
    loose: list[Path] = []
    unread: dict[Path, str] = {}
    for folder, files in _walk(root):
        record = _record(folder, files)
        if not record and (name := _unread(folder, files)):
            unread[folder] = f"{name} can't be read, so that nothing but the episodes is known of this run."
        if record:
            records[folder] = record
            claimed[folder] = []
        owner = next((each for each in (folder, *folder.parents) if each in records), None)
        names = [name for name in files if name.endswith(".jsonl")]
        episodes = [
            folder / name for name in names if _holds_episodes(folder / name) or (owner and _is_due(folder, name))
        ]
        (loose if owner is None else claimed[owner]).extend(episodes)
    runs = [_run(folder, root, record, claimed[folder]) for folder, record in records.items()]
    for path in loose:
        folder = next((each for each in path.parents if each in unread), None)
        runs.append(replace(_loose(path, root), trouble=unread[folder] if folder else ""))
    return sorted(_in_turn(runs), key=lambda run: run.name)


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _PRUNED and not name.startswith("."))
        yield Path(folder), sorted(name for name in files if not name.startswith("."))


def _record(folder: Path, files: list[str]) -> Mapping[str, Any]:
    """What makes a folder a run."""
    for name in ("run.json", "card.json"):
        if name in files:
            record = read_json(folder / name)
            if str(record.get("schema", "")).startswith(("agentgym.run/", "agentgym.train/", "agentgym.card/")):
                return record
    return {}


def _unread(folder: Path, files: list[str]) -> str:
    """The file that would make a folder a run, were it whole; empty where there is none."""
    return next((name for name in ("run.json", "card.json") if name in files and not read_json(folder / name)), "")


def _is_due(folder: Path, name: str) -> bool:
    """Whether a file in a run's folder holds episodes by its name, whatever its first line is: damage is shown."""
    due = name == "episodes.jsonl" or (folder.name in ("evaluations", "rollouts") and name.count(".") == 1)
    try:
        return due and (folder / name).stat().st_size > 0
    except OSError:
        return False  # gone


def _run(folder: Path, root: Path, record: Mapping[str, Any], paths: list[Path]) -> Run:
    name = folder.relative_to(root).as_posix()
    kind = _kind(str(record["schema"]))
    settings = record.get("settings")
    by_hand = isinstance(settings, dict) and settings.get("policy") == HUMAN
    end = None if by_hand else {"train": "summary.json", "evaluate": "report.json"}.get(kind)
    marks = [path for path in (folder / name for name in _WRITTEN) if path.exists()]
    done = not end or (folder / end).exists()
    reason = "" if done else str(read_json(folder / STOPPED).get("reason") or "")
    times = [path.stat().st_mtime for path in (*marks, *paths)]
    run = Run(
        slug=slug_of(root.resolve().name if name == "." else name),
        name=root.resolve().name if name == "." else name,
        path=folder,
        kind=kind,
        record=record,
        began=times[0],
        changed=max(times),
        state="done" if done else "stopped" if reason else _state(max(times)),
        reason=reason,
    )
    return replace(run, files=tuple(_file(path, run) for path in paths))


def _in_turn(runs: Iterable[Run]) -> Iterator[Run]:
    """The runs, those of one command with the states that follow from being played one after the other."""
    commands: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        alone = run.kind != "evaluate" or run.state == "done" or not run.command
        commands.setdefault((run.path,) if alone else (run.path.parent, run.command), []).append(run)
    for together in commands.values():
        if len(together) == 1 or all(run.state == "stopped" for run in together):
            yield from together
            continue
        order = sorted(together, key=lambda run: (run.began, run.name))
        now = max((run for run in order if run.files), key=lambda run: run.changed, default=order[0])
        before = order[: order.index(now)]
        yield from (replace(run, state="done" if run.files else "stopped") for run in before)  # else it was left out
        yield replace(now, state="running")
        yield from (replace(run, state="waiting") for run in order[len(before) + 1 :])


def _state(changed: float) -> State:
    return "running" if time.time() - changed < _ALIVE_S else "stopped"


def _kind(schema: str) -> Kind:
    named: dict[str, Kind] = {"run": "evaluate", "train": "train", "card": "collect"}
    return named[schema.removeprefix("agentgym.").partition("/")[0]]


def _file(path: Path, run: Run) -> EpisodeFile:
    name = path.relative_to(run.path).as_posix()
    step = _STEP.search(name)
    part: Part = "played"
    if run.kind in ("train", "collect"):
        heads: dict[str, Part] = {"evaluations": "evaluation", "rollouts": "rollouts", "played.jsonl": "played"}
        part = heads.get(name.partition("/")[0], "data")
        part = "rollouts" if path.name == "sampled.jsonl" else part
    manner = split = ""
    if part == "evaluation":
        manner = path.stem.rpartition("-")[2]
        split = "test" if path.name.startswith("test-") else run.split
    name = name.removesuffix(".jsonl")
    return EpisodeFile(path, slug_of(name), name, part, int(step[1]) if step else None, manner, split)


def _loose(path: Path, root: Path) -> Run:
    """A file of episodes in no run's folder: collected data when its card lies beside it."""
    name = path.relative_to(root).as_posix()
    card = path.with_suffix(".card.json")
    record = read_json(card) if card.exists() else {}
    written = path.stat().st_mtime
    file = EpisodeFile(path, slug_of(path.stem), path.stem, "data" if record else "played")
    kind: Kind = "collect" if record else "episodes"
    return Run(slug_of(name), name, path, kind, record, (file,), written, written)


def _holds_episodes(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").replace(b" ", b"").startswith(_EPISODE)
    except OSError:
        return False  # gone, or not ours to read


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when it is damaged, gone or holds something else, which a viewer can bear."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
