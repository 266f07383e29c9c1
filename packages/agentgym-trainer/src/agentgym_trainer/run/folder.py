"""The folder of a training run: its settings, metrics, episodes, checkpoints and models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from agentgym_envs import Episode, read_episodes
from agentgym_envs.core.tasks import Split
from agentgym_envs.util.files import write_whole
from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey
from agentgym_eval.runs.oracle_distances import saved_distances
from agentgym_eval.storage.distances import distances_file
from agentgym_eval.storage.lock import NAME as LOCK
from agentgym_eval.storage.metrics_file import read_metrics
from agentgym_eval.storage.provenance import provenance
from agentgym_eval.storage.vocabulary_file import vocabulary_file
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.config_files import SCHEMA, SETTINGS, read_run
from agentgym_trainer.kinds import kind_of
from agentgym_trainer.learner.finite_checks import without_nonfinite
from agentgym_trainer.run.disk import remove, writing
from agentgym_trainer.run.evaluation_files import load_evaluation, write_evaluation
from agentgym_trainer.run.stored_config import check_storable

_EVALUATED = {False: "step", True: "test"}
"""Prefix of the names of evaluation files: during training, and on test tasks at the end."""
_EVALUATION = re.compile(r"(?:step|test)-(\d+)-(?:sampled|greedy)(?:\.\w+)?\.jsonl")
"""Names of the files of an evaluation: its episodes, and what was measured of them or noted on them."""


Decoding = Literal["sampled", "greedy"]
DECODINGS: tuple[Decoding, ...] = ("sampled", "greedy")
"""How replies are sampled in evaluations."""


def played_splits(config: BaseConfig) -> tuple[Split, ...]:
    """Return the splits that a run is evaluated on, during training and at the end."""
    return (config.evaluation.split, "test") if config.evaluation.test else (config.evaluation.split,)


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / SETTINGS
        self.metrics = path / "metrics.jsonl"
        self.start = path / "start"
        """The initial model, if the run created it."""
        self.warm_start = path / "warm_start"
        """The episodes of DAgger rounds, and the models of all but the last until the warm start is complete."""
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        """The final model."""
        self.data = path / "data.jsonl"
        """The episodes that a run on data trains on."""
        self.evaluations = path / "evaluations"
        self.rollouts = path / "rollouts"
        """The episodes of RL rollouts, and some of their tokens, by step."""
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        """Called with every line of metrics after it is written, and with the metrics of the test."""
        self.keeps_data = False
        """Whether a model generated the episodes in `data`; they are then kept when the run is rejected."""
        self._resumes = False

    @classmethod
    def create(
        cls,
        path: Path,
        config: BaseConfig,
        recipe: str,
        tags: Sequence[str] = (),
        *,
        then: str = "run the same command again",
    ) -> RunFolder:
        """Create the folder of a new run.

        Args:
            path: The folder.
            config: The configuration of the run.
            recipe: Name of its recipe.
            tags: For the viewer.
            then: What to do once there is space again, if the disk is full.

        Raises:
            UsageError: as `check`.
        """
        cls.check(path, config)
        with writing(path, then=then):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        record = {
            "schema": SCHEMA,
            "id": uuid4().hex,
            "kind": kind_of(config).name,
            "recipe": recipe,
            **({"tags": list(tags)} if tags else {}),
            **provenance(),
            "config": to_json(config),
        }
        try:
            _write(folder.settings, json.dumps(record, indent=2) + "\n", then=then)
        except OSError:
            remove(path)  # otherwise the same command would be rejected
            raise
        return folder

    @staticmethod
    def check(path: Path, config: BaseConfig) -> None:
        """Check that a new run with this configuration can use the folder.

        Raises:
            UsageError: when the folder isn't empty (except for leftovers of a process that was killed before it wrote
                the settings); when the configuration contains a secret, which the folder would have to store for
                --resume; or when it has a setting of another package that can't be read back.
        """
        check_storable(config)
        if path.exists() and (not path.is_dir() or not all(map(_is_left_unfinished, path.iterdir()))):
            raise UsageError(
                f"{path} is not an empty folder; choose another --out, or continue that run with --resume {path}."
            )

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, BaseConfig, str]:
        """Open the folder of an existing run; return it, the configuration and the name of the recipe.

        Raises:
            UsageError: when the folder holds no run, one of another version, or one with unknown settings.
        """
        config, recipe = read_run(path)
        folder = cls(path)
        folder._resumes = True
        return folder, config, recipe

    @property
    def id(self) -> str:
        """A unique id of the run, which stays the same when the run is moved or resumed."""
        return json.loads(self.settings.read_text())["id"]

    def discard(self) -> None:
        """Remove the folder of a rejected run, so that the same command can be given again.

        The folder is kept if the run has produced anything (a trained start, a checkpoint, a metric, an evaluation), or
        if it contains files that don't belong to the run.
        """
        if (self.keeps_data and self.data.exists()) or self.has_trained_start:
            return
        if all(_is_preparation(path, self.path) for path in self.path.rglob("*")):
            for path in self.path.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            with suppress(OSError):  # a link to a folder, a mount point, or the working directory
                self.path.rmdir()

    @property
    def has_trained_start(self) -> bool:
        """Whether the initial model is the result of a warm start."""
        if not self.start.exists():
            return False
        config = json.loads(self.settings.read_text(encoding="utf-8"))["config"]
        return config.get("warm_start", {}).get("episodes", 0) > 0

    @property
    def progress(self) -> str:
        """What the message of a run that ends early says of its progress, without a period."""
        prepared = all(_is_preparation(path, self.path) for path in self.path.rglob("*"))
        lasting = self.data.exists() or self.demonstrations.exists() or self.has_trained_start or not prepared
        return "Progress is saved" if lasting else "There was no progress to save yet"

    def check_prompts(self, texts: Mapping[str, str]) -> None:
        """Record what the run's prompts write in the settings, or compare it with what they wrote before.

        Args:
            texts: System messages, by prompt and environment.

        Raises:
            UsageError: when a prompt writes another text than when the run began.
        """
        record = json.loads(self.settings.read_text())
        found = {name: sha256(bytes(text, "utf-8")).hexdigest() for name, text in texts.items()}
        if "prompts" not in record:
            _write(self.settings, json.dumps({**record, "prompts": found}, indent=2) + "\n")
        for name, digest in record.get("prompts", {}).items():
            if found.get(name) != digest:
                raise UsageError(
                    f"The prompt {name} has another text than when the run in {self.path} began. Restore it to "
                    "continue the run, or start a new one with the changed prompt (--like)."
                )

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Append one line to the metrics and notify the listener. Numbers that aren't finite become null."""
        line = without_nonfinite(metrics)
        with writing(self.metrics), self.metrics.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line, allow_nan=False) + "\n")
        self.notify(line)

    def notify(self, metrics: Mapping[str, Any]) -> None:
        """Pass the metrics of a step to the listener."""
        if self.listener:
            self.listener(metrics)

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the metrics. An incomplete last line, left by a killed process, is ignored.

        Raises:
            UsageError: when any other line is damaged; the message has its number.
        """
        yield from read_metrics(self.metrics)

    @property
    def whole_lines(self) -> int:
        """The number of lines of metrics before the first that is damaged or out of sequence."""
        count = 0
        with suppress(UsageError):
            for line in self.read_metrics():
                if line["step"] != count + 1:
                    break
                count += 1
        return count

    def rewind(self, step: int, kept: Path | None = None, *, evaluated: int | None = None) -> str | None:
        """Remove metrics and evaluations after `step`, which a resumed run will produce again.

        For a resumed run, the current provenance (versions and commit) is added to the settings.

        Args:
            step: The last step to keep.
            kept: The checkpoint's copy of the metrics, if there is one.
            evaluated: The last step whose evaluation is kept, as far as it was played; None: `step`.

        Returns:
            A message if the metrics were damaged or lacked steps and were replaced by the checkpoint's copy.

        Raises:
            UsageError: when they are damaged or lack steps, and there is no copy.
        """
        if self._resumes:
            record = json.loads(self.settings.read_text())
            record.setdefault("resumed", []).append(provenance())
            _write(self.settings, json.dumps(record, indent=2) + "\n")
            self._resumes = False
        message, lines = None, list[dict[str, Any]]()
        if step and kept is not None and kept.exists():
            lines, found = list(islice(read_metrics(kept), step)), list[dict[str, Any]]()
            with suppress(UsageError):
                found = list(islice(self.read_metrics(), step))
            # `amend` may have added metrics to a line since the copy was made.
            if len(found) == len(lines) and all(now | then == now for now, then in zip(found, lines, strict=True)):
                lines = found
            else:
                message = (
                    f"{self.metrics} is damaged or lacks steps up to {step}; it was replaced by the copy in "
                    f"{kept.parent}."
                )
        elif step:
            lines = list(islice(self.read_metrics(), step))
            if [line["step"] for line in lines] != list(range(1, step + 1)):
                raise UsageError(
                    f"{self.metrics} doesn't have exactly one line for each of the {step} completed steps; restore it "
                    "from a backup, or remove the run's last checkpoints to continue from an earlier one."
                )
        _write(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))
        for path in self.evaluations.iterdir() if self.evaluations.exists() else ():
            if (ours := _EVALUATION.fullmatch(path.name)) and int(ours[1]) > (step if evaluated is None else evaluated):
                path.unlink()
        return message

    def amend(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add metrics to the line of a step."""
        added = without_nonfinite(metrics)
        amended = [{**line, **(added if line["step"] == step else {})} for line in self.read_metrics()]
        _write(self.metrics, "".join(json.dumps(line, allow_nan=False) + "\n" for line in amended))
        self.notify({"step": step, **added})

    def forget_rollouts(self, step: int) -> None:
        """Remove the rollouts after `step`."""
        for path in self.rollouts.glob("step-*.jsonl"):
            if _step(path) > step:
                path.unlink()

    def save_rollouts(self, step: int, episodes: Sequence[str], tokens: Sequence[str]) -> None:
        """Save the rollouts of a step.

        Args:
            step: Number of the step.
            episodes: One line of JSON per episode.
            tokens: Lines with the tokens of some of them; if empty, no tokens file is written.
        """
        for kind, lines in (("", episodes), (".tokens", tokens)):
            if lines:
                path = self.rollouts / f"step-{step:06d}{kind}.jsonl"
                with writing(path):
                    self.rollouts.mkdir(exist_ok=True)
                    write_whole(path, "".join(f"{line}\n" for line in lines))

    def save_data(self, episodes: Sequence[Episode]) -> None:
        """Save the episodes that the run trains on."""
        _write(self.data, "".join(f"{episode.to_json()}\n" for episode in episodes))

    def read_data(self) -> list[Episode]:
        """Return the episodes that the run trains on."""
        return list(read_episodes(self.data))

    @property
    def demonstrations(self) -> Path:
        """The file of the experts' episodes that the warm start begins with."""
        return self.warm_start / "demonstrations.jsonl"

    def save_demonstrations(self, episodes: Sequence[Episode]) -> None:
        """Save the experts' episodes that the warm start begins with."""
        with writing(self.warm_start):
            self.warm_start.mkdir(exist_ok=True)
        _write(self.demonstrations, "".join(f"{episode.to_json()}\n" for episode in episodes))

    def evaluation_file(self, step: int, decoding: str, *, test: bool = False) -> Path:
        """Return the path of the episodes of an evaluation; it may not exist."""
        return self.evaluations / f"{_EVALUATED[test]}-{step:06d}-{decoding}.jsonl"

    def save_evaluation(self, step: int, decoding: str, episodes: Sequence[Episode], *, test: bool = False) -> None:
        """Save the episodes of an evaluation, during training or (`test`) on test tasks at the end."""
        path = self.evaluation_file(step, decoding, test=test)
        with writing(path):
            distances_file(path).unlink(missing_ok=True)  # those of other episodes
            write_evaluation(path, episodes)

    def read_evaluation(self, step: int, decoding: str, *, test: bool = False) -> list[Episode] | None:
        """Return the episodes of an evaluation, or None if it doesn't exist or is damaged."""
        path = self.evaluation_file(step, decoding, test=test)
        if not path.exists():
            return None
        episodes, damage = load_evaluation(path)
        return None if damage else episodes

    def evaluation_damage(self, step: int, decoding: str, *, test: bool = False) -> str | None:
        """Return what is wrong with the file of an evaluation, without a period; None if it is whole or not there."""
        path = self.evaluation_file(step, decoding, test=test)
        return load_evaluation(path)[1] if path.exists() else None

    def evaluation_distances(
        self, step: int, decoding: str, episodes: Sequence[Episode], check: Callable[[], object], *, test: bool
    ) -> tuple[dict[EpisodeKey, Distances], str]:
        """Measure and save the expert's distances of an evaluation; see `saved_distances`."""
        return saved_distances(self.evaluation_file(step, decoding, test=test), episodes, check)

    def evaluated_steps(self, decoding: str, *, test: bool = False) -> list[int]:
        """Return the evaluated steps in ascending order, also those of damaged files; with `test`, those of the tested
        models.
        """
        found = self.evaluations.glob(f"{_EVALUATED[test]}-*-{decoding}.jsonl")
        return sorted(int(ours[1]) for path in found if (ours := _EVALUATION.fullmatch(path.name)))


def _is_preparation(path: Path, folder: Path) -> bool:
    """Whether a run creates this path in its folder before the first step; any folder counts as well."""
    name, *below = path.relative_to(folder).parts
    if path.is_dir() and not path.is_symlink():
        return True
    if re.fullmatch(r"iteration-\d+", name) and below[:1] == ["sft"]:
        name, *below = below[1:]
    if name == "metrics.jsonl":
        return path.stat().st_size == 0
    if below:
        return name in {"start", ".start", "wandb"} or path == RunFolder(folder).demonstrations
    return (
        name in {LOCK, "run.json", "data.jsonl", vocabulary_file(folder).name}
        or re.fullmatch(r"vllm-\d+\.log", name) is not None
    )


def _is_left_unfinished(path: Path) -> bool:
    """Whether this may be left from a process that was killed before it wrote the settings."""
    return path.name == LOCK or (path.name.startswith(".run.json.") and path.suffix == ".new")


def _step(path: Path) -> int:
    """Return the step in the name of a file."""
    return int(re.split(r"[-.]", path.name)[1])


def _write(path: Path, text: str, *, then: str = "continue with --resume") -> None:
    """Write a file atomically and durably, also in case of a power failure."""
    with writing(path, then=then):
        write_whole(path, text, durable=True)
