"""The folder of a training run: what it was told, how it went, what it left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

from agentgym_envs import Episode, read_episodes
from agentgym_envs.core.registry import full_id, world_class
from agentgym_envs.core.tasks import Split
from agentgym_envs.util.files import write_whole
from agentgym_envs.util.redaction import redacted_option
from agentgym_eval.storage.lock import NAME as LOCK
from agentgym_eval.storage.provenance import provenance
from agentgym_eval.util.errors import UsageError
from gymnasium.error import DependencyNotInstalled

from agentgym_trainer.config import KINDS, BaseConfig
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.learner.finite_checks import without_nonfinite
from agentgym_trainer.plugins import nearest
from agentgym_trainer.run.disk import remove, writing

SCHEMA = "agentgym.train/3"
_EVALUATED = {False: "step", True: "test"}
"""What the names of evaluations begin with: in the course of the run, and of test tasks at its end."""


Manner = Literal["sampled", "greedy"]
MANNERS: tuple[Manner, ...] = ("sampled", "greedy")
"""How replies are sampled in evaluations."""


def played_splits(config: BaseConfig) -> tuple[Split, ...]:
    """The splits that a run is evaluated on: in its course, and at its end."""
    return (config.evaluation.split, "test") if config.evaluation.test else (config.evaluation.split,)


class RunFolder:
    """Names and files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.start = path / "start"
        """The model that reinforcement learning began with, when it was made here."""
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        """The model at the end."""
        self.data = path / "data.jsonl"
        """The episodes that a run learns from which learns from data."""
        self.evaluations = path / "evaluations"
        self.rollouts = path / "rollouts"
        """The episodes that reinforcement learning played, and some of their tokens, by step."""
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        """Told every line of the metrics once it is written, and the figures of the test."""
        self.keeps_data = False
        """Whether the episodes took a model to play: then they stay when the run is refused."""
        self._resumes = False

    @classmethod
    def create(cls, path: Path, config: BaseConfig, recipe: str) -> RunFolder:
        """Begin a run.

        Raises:
            UsageError: as `check` does.
        """
        cls.check(path, config)
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        record = {
            "schema": SCHEMA,
            "id": uuid4().hex,
            "kind": next(kind for kind, noun in KINDS.items() if noun is type(config)),
            "recipe": recipe,
            **provenance(),
            "config": to_json(config),
        }
        try:
            _write(folder.settings, json.dumps(record, indent=2) + "\n", then="give the same command again")
        except OSError:
            remove(path)  # else the same command would be refused
            raise
        return folder

    @staticmethod
    def check(path: Path, config: BaseConfig) -> None:
        """Raise `UsageError` when there is something in the folder already, beside what a process leaves that is killed
        before it has written the settings; or when the configuration holds a secret, which the folder would have to
        keep for --resume, or a setting of another package that can't be read back.
        """
        _check_readable(config)
        _refuse_secrets(config)
        if path.exists() and (not path.is_dir() or not all(map(_is_left_unfinished, path.iterdir()))):
            raise UsageError(f"{path} is not an empty folder; choose another --out, or go on with --resume {path}.")

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, BaseConfig, str]:
        """A run begun before, its configuration and the name of its recipe.

        Raises:
            UsageError: when the folder holds no run, one of another version, or one with settings that don't exist.
        """
        folder = cls(path)
        if not folder.settings.is_file():
            raise UsageError(f"{path} holds no training run ({folder.settings.name} is missing).")
        try:
            record = json.loads(folder.settings.read_text())
            if record["schema"] != SCHEMA:
                raise UsageError(
                    f"The run in {path} was begun by a version of AgentGym with other evaluations and checkpoints "
                    f"({record['schema']}, and this one has {SCHEMA}): go on with that version, or begin a new run."
                )
            folder._resumes = True
            return folder, from_json(_noun(record["kind"]), record["config"]), record["recipe"]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{folder.settings} can't be used: {error}") from error

    @property
    def id(self) -> str:
        """What no other run is called, however often this one is moved and resumed."""
        return json.loads(self.settings.read_text())["id"]

    def discard(self) -> None:
        """Remove the folder of a run that was refused, so that it can be asked for again: unless something has come of
        it (a checkpoint, a metric, an evaluation), or somebody else has put something there.
        """
        if self.keeps_data and self.data.exists():
            return
        if all(_is_preparation(path, self.path) for path in self.path.rglob("*")):
            for path in self.path.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            with suppress(OSError):  # it is a link to a folder, a mounted one, or the current one
                self.path.rmdir()

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Append one line to the metrics, in which a number that isn't finite is null."""
        line = without_nonfinite(metrics)
        with writing(self.metrics), self.metrics.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line, allow_nan=False) + "\n")
        self.tell(line)

    def tell(self, figures: Mapping[str, Any]) -> None:
        """Pass the figures of a step on to whoever follows the run."""
        if self.listener:
            self.listener(figures)

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics; half a line at the end, left by a killed process, is passed over.

        Raises:
            UsageError: when any other line is damaged; the message has its number.
        """
        yield from _read_lines(self.metrics)

    @property
    def whole_lines(self) -> int:
        """How many lines of the metrics there are before one is damaged, or is of another step than its place says."""
        count = 0
        with suppress(UsageError):
            for line in self.read_metrics():
                if line["step"] != count + 1:
                    break
                count += 1
        return count

    def rewind(self, step: int, kept: Path | None = None) -> str | None:
        """Take back lines and evaluations behind `step`: a resumed run makes them again, with weights of its own.

        That another sitting begins is noted, with what it comes from: versions and commit may be others by now.

        Args:
            step: The last one that counts.
            kept: The metrics as the checkpoint has them that the run goes on from, where it has any.

        Returns:
            A sentence when the metrics were damaged, or lacked steps, and those of the checkpoint took their place.

        Raises:
            UsageError: when they are, and there is no such copy.
        """
        if self._resumes:
            record = json.loads(self.settings.read_text())
            record.setdefault("resumed", []).append(provenance())
            _write(self.settings, json.dumps(record, indent=2) + "\n")
            self._resumes = False
        told, lines = None, list[dict[str, Any]]()
        if step and kept is not None and kept.exists():
            lines, found = list(islice(_read_lines(kept), step)), list[dict[str, Any]]()
            with suppress(UsageError):
                found = list(islice(self.read_metrics(), step))
            # A line may have been added to since.
            if len(found) == len(lines) and all(now | then == now for now, then in zip(found, lines, strict=True)):
                lines = found
            else:
                told = (
                    f"{self.metrics} is damaged or lacks steps up to {step}; the copy in {kept.parent} takes its place."
                )
        elif step:
            lines = list(islice(self.read_metrics(), step))
            if [line["step"] for line in lines] != list(range(1, step + 1)):
                raise UsageError(
                    f"{self.metrics} has not one line for each of the {step} steps that were taken; put it back from a "
                    "copy, or remove the run's last checkpoints to go on from an earlier one."
                )
        _write(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))
        for path in self.evaluations.glob("*-*.jsonl"):
            if _step(path) > step:
                path.unlink()
        return told

    def amend(self, step: int, figures: Mapping[str, Any]) -> None:
        """Add figures to the line of a step."""
        added = without_nonfinite(figures)
        amended = [{**line, **(added if line["step"] == step else {})} for line in self.read_metrics()]
        _write(self.metrics, "".join(json.dumps(line, allow_nan=False) + "\n" for line in amended))
        self.tell({"step": step, **added})

    def forget_rollouts(self, step: int) -> None:
        """Take back the rollouts behind `step`, likewise."""
        for path in self.rollouts.glob("step-*.jsonl"):
            if _step(path) > step:
                path.unlink()

    def save_rollouts(self, step: int, episodes: Sequence[str], tokens: Sequence[str]) -> None:
        """Keep what a step learns from.

        Args:
            step: Number of the step.
            episodes: A line of each episode.
            tokens: Lines of the tokens of some of them; without any there is no such file.
        """
        for kind, lines in (("", episodes), (".tokens", tokens)):
            if lines:
                path = self.rollouts / f"step-{step:06d}{kind}.jsonl"
                with writing(path):
                    self.rollouts.mkdir(exist_ok=True)
                    write_whole(path, "".join(f"{line}\n" for line in lines))

    def save_data(self, episodes: Sequence[Episode]) -> None:
        """Keep the episodes that the run learns from."""
        _write(self.data, "".join(f"{episode.to_json()}\n" for episode in episodes))

    def read_data(self) -> list[Episode]:
        """The episodes that the run learns from."""
        return list(read_episodes(self.data))

    def save_evaluation(self, step: int, manner: str, episodes: Sequence[Episode], *, test: bool = False) -> None:
        """Keep the episodes of an evaluation: of one in the course of the run, or of `test` tasks at its end."""
        path = self._evaluation(step, manner, test)
        with writing(path):
            self.evaluations.mkdir(exist_ok=True)
        _write(path, "".join(f"{episode.to_json()}\n" for episode in episodes))

    def read_evaluation(self, step: int, manner: str, *, test: bool = False) -> list[Episode] | None:
        """The episodes of an evaluation, or None when it hasn't been made."""
        path = self._evaluation(step, manner, test)
        return list(read_episodes(path)) if path.exists() else None

    def evaluated_steps(self, manner: str, *, test: bool = False) -> list[int]:
        """The steps at which there was an evaluation, ascending; of the test, those of the models that it played."""
        return sorted(_step(path) for path in self.evaluations.glob(f"{_EVALUATED[test]}-*-{manner}.jsonl"))

    def _evaluation(self, step: int, manner: str, test: bool) -> Path:
        return self.evaluations / f"{_EVALUATED[test]}-{step:06d}-{manner}.jsonl"


def _is_preparation(path: Path, folder: Path) -> bool:
    """Whether this lies in the folder of a run before its first step: folders with nothing in them do, too."""
    name, *below = path.relative_to(folder).parts
    if path.is_dir() and not path.is_symlink():
        return True
    if re.fullmatch(r"iteration-\d+", name) and below[:1] == ["sft"]:
        name, *below = below[1:]
    if name == "metrics.jsonl":
        return path.stat().st_size == 0
    if below:
        return name in {"start", ".start", "wandb"}
    return name in {LOCK, "run.json", "data.jsonl"} or re.fullmatch(r"vllm-\d+\.log", name) is not None


def _is_left_unfinished(path: Path) -> bool:
    """Whether a process that was killed before a run began may have left this."""
    return path.name == LOCK or (path.name.startswith(".run.json.") and path.suffix == ".new")


def _check_readable(config: BaseConfig) -> None:
    """Refuse a configuration that --resume could not read back as it is."""
    try:
        again = from_json(type(config), json.loads(json.dumps(to_json(config))))
    except Exception as error:  # what the types and values of other packages may raise
        raise UsageError(f"A run's folder has to hold all settings, and these can't be read back: {error}") from error
    if again != config:
        raise UsageError(
            "A run's folder has to hold all settings, and these come back as others: fields of your own have to hold "
            "what their types say, which are numbers, texts, tuples and frozen dataclasses of such."
        )


def _refuse_secrets(config: BaseConfig) -> None:
    for world in config.worlds:
        with suppress(ValueError, ImportError, DependencyNotInstalled):  # told when the world is made
            world_class(full_id(world.env))
    for told in _texts(to_json(config)):
        if (shown := redacted_option(told)) != told:
            raise UsageError(
                f"A run's folder holds all settings and no secrets, and {shown} is one: export it as a variable, such "
                "as WORLD_TOKEN, and write '${WORLD_TOKEN}' in its place. --resume reads the variable again."
            )


def _texts(value: Any) -> Iterator[str]:
    """All texts within JSON values."""
    match value:
        case str():
            yield value
        case list() | dict():
            for part in cast("list[Any]", value if isinstance(value, list) else list(value.values())):
                yield from _texts(part)
        case _:
            pass


def _noun(kind: str) -> type[BaseConfig]:
    """The configuration of this kind of run."""
    if kind not in KINDS:
        raise ValueError(f"There is no kind of run {kind!r}. {nearest(kind, KINDS)}")
    return KINDS[kind]


def _step(path: Path) -> int:
    """The step in the name of a file."""
    return int(re.split(r"[-.]", path.name)[1])


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics; half a line at the end is passed over."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError("it is not the record of a step")
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise UsageError(f"{path}, line {number} is damaged: {error}. Put the file back from a copy.") from error
        if line.endswith(b"\n"):
            yield record


def _write(path: Path, text: str, *, then: str = "go on with --resume") -> None:
    """All of it or nothing, also when the power fails."""
    with writing(path, then=then):
        write_whole(path, text, durable=True)
