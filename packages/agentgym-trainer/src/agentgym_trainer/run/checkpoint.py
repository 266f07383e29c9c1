"""Checkpoints: folders that `from_pretrained` loads directly, plus the state needed to resume exactly.

A checkpoint is written under a temporary name, sealed with a manifest of every file's size and SHA-256, and renamed. An
incomplete or damaged one is detected, and the one before it used instead. The state of environments and schedules is
stored as it is. The folder must be visible to all processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from agentgym_eval.util.errors import UsageError
from peft import set_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_trainer.curriculum.state import Best, TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.finite_checks import NotFinite, check_weights
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.optimizer import compute_dtype
from agentgym_trainer.run.disk import writing

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
METRICS = "metrics.jsonl"
"""A copy of the run's metrics up to the checkpoint, sealed with it."""
CRITIC = "critic.safetensors"
_NAME = re.compile(r"\.?step-(\d{6,})")


class Checkpoints:
    """The checkpoints of one run, such as `step-000100`, and `best`, a symbolic link to the best of them."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        say: Callable[[str], None],
        minutes: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Manage the checkpoints in `folder`, which need not exist yet.

        Args:
            folder: The folder of all checkpoints of the run.
            keep: The number of latest checkpoints that are kept, besides the best one.
            say: Called with a sentence for each checkpoint that is skipped.
            minutes: Minutes after a checkpoint until the next one is overdue; 0: never.
            clock: Returns the time in seconds.
        """
        self.folder = folder
        self.best = folder / "best"
        self._keep = keep
        self._say = say
        self._minutes = minutes
        self._clock = clock
        self._saved = clock()

    def at(self, step: int) -> Path:
        """Return the path of the checkpoint of this step, which need not exist."""
        return self.folder / f"step-{step:06d}"

    @property
    def overdue(self) -> bool:
        """Whether `minutes` have passed since the last checkpoint of this process, or since its start."""
        return self._minutes > 0 and self._clock() - self._saved >= 60 * self._minutes

    def latest(self) -> Path | None:
        """Return the last whole checkpoint, or None when none was ever finished.

        Raises:
            UsageError: when all existing checkpoints are damaged. Restarting would discard the metrics and the parts
                of checkpoints that may be recoverable, so the user has to decide.
        """
        damage: list[str] = []
        for path in sorted(self.folder.glob("*step-*"), key=_age, reverse=True):
            if not _NAME.fullmatch(path.name):
                continue
            problem = find_damage(path)
            if path.name.startswith(".") and not problem:
                return self._name(path, path.with_name(path.name[1:]))
            if path.name.startswith("."):
                self._say(f"Skipping checkpoint {path.name[1:]}: it was never finished.")
            elif problem:
                damage.append(f"{path.name} ({problem})")
                self._say(f"Skipping checkpoint {damage[-1]}: it is damaged.")
            else:
                return path
        if damage:
            raise UsageError(
                f"All checkpoints in {self.folder} are damaged: {'; '.join(damage)}. Nothing was changed. Restore one "
                f"from a backup, or remove {self.folder} to train from the start."
            )
        return None

    def resume(self, learner: Learner) -> TrainingState | None:
        """Restore the learner from the last whole checkpoint; return None when there is none.

        Raises:
            UsageError: as `latest`.
        """
        ranks, found = Ranks(), None
        with ranks.errors_together():  # otherwise the other processes would wait for the broadcast forever
            if ranks.is_main:
                found = self.latest()
        path = ranks.broadcast(found)
        if path is None:
            return None
        progress = self.load(path, learner)
        if learner.accelerator.is_main_process:
            self.tidy(progress.step, progress.best)
        return progress

    @staticmethod
    def load(path: Path, learner: Learner) -> TrainingState:
        """Restore the learner from this checkpoint."""
        with learner.accelerator.register_load_state_pre_hook(partial(_read_weights, learner)):
            learner.accelerator.load_state(str(path))
        return TrainingState.from_json(json.loads((path / PROGRESS).read_text(encoding="utf-8")))

    def save(self, learner: Learner, tokenizer: Any, progress: TrainingState, metrics: Path | None = None) -> Path:
        """Write a checkpoint, update the link `best`, and remove checkpoints that are no longer kept.

        Every process must call this.

        Args:
            learner: The learner to save.
            tokenizer: The tokenizer of its policy.
            progress: The training state to save.
            metrics: The file of the run's metrics, which is copied into the checkpoint.

        Raises:
            NotFinite: when the weights aren't finite. Nothing is written.
            OSError: when it can't be written, for example because the disk is full. Other checkpoints stay untouched.
        """
        final = self.at(progress.step)
        unfinished = final.with_name(f".{final.name}")
        accelerator = learner.accelerator
        check_weights(learner.actor.parameters(), accelerator)
        if accelerator.is_main_process:
            with self._writing(final):
                self._start_writing(unfinished)
        accelerator.wait_for_everyone()
        try:
            with self._writing(final):
                _write(unfinished, learner, tokenizer, progress)
                if accelerator.is_main_process:
                    _copy_metrics(metrics, unfinished)
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    seal(unfinished)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        if accelerator.is_main_process:
            self._name(unfinished, final)
            self.tidy(progress.step, progress.best)
        accelerator.wait_for_everyone()
        self._saved = self._clock()
        return final

    def adopt(self, written: Path, step: int, best: Best | None, metrics: Path | None = None) -> Path:
        """Turn a folder written by another library into the checkpoint of this step, with a copy of `metrics`.

        Only one process may call this.

        Raises:
            OSError: when it can't be written, for example because the disk is full. Other checkpoints stay untouched.
        """
        with self._writing(self.at(step)):
            _copy_metrics(metrics, written)
            seal(written)
            final = self._name(written, self.at(step))
        self.tidy(step, best)
        self._saved = self._clock()
        return final

    def tidy(self, step: int, at_best: Best | None) -> None:
        """Update the link `best` and remove checkpoints that are no longer kept; a killed process may not have."""
        best = self.at(at_best.step) if at_best else None
        if best and best.exists():
            link = self.folder / ".best"
            link.unlink(missing_ok=True)
            link.symlink_to(best.name)
            link.replace(self.best)
        # Checkpoints of later steps were skipped as damaged. They don't count and will be written again.
        past = [path for path in self._all() if _age(path)[0] <= step]
        for old in past[: -self._keep]:
            if old != best:
                shutil.rmtree(old)

    @staticmethod
    def step_of(checkpoint: Path) -> int:
        """Return the number of updates at a checkpoint."""
        return _age(checkpoint)[0]

    def _start_writing(self, unfinished: Path) -> None:
        for leftover in self.folder.glob(".step-*"):
            shutil.rmtree(leftover)
        unfinished.mkdir(parents=True)

    def _name(self, sealed: Path, final: Path) -> Path:
        """Rename a sealed checkpoint to its final name.

        One of that name may exist already, if it was damaged or written before the evaluation of its step.
        """
        shutil.rmtree(final, ignore_errors=True)
        sealed.rename(final)
        _sync(self.folder)
        return final

    @contextmanager
    def naming_last(self) -> Generator[None]:
        """Add the last healthy checkpoint to the message of a NotFinite error."""
        try:
            yield
        except NotFinite as error:
            found = self._all()
            last = f"The last healthy checkpoint is {found[-1]}" if found else "No checkpoint was written before that"
            raise NotFinite(f"{error} {last}, and nothing was saved since.") from error

    def _writing(self, path: Path) -> AbstractContextManager[None]:
        """Turn errors on writing a checkpoint into a message for the user."""
        others = ", ".join(found.name for found in self._all() if found != path)
        return writing(path, then=f"continue with --resume. Other checkpoints are untouched ({others or 'none exist'})")

    def _all(self) -> list[Path]:
        return sorted((path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)), key=_age)


def seal(folder: Path) -> None:
    """Write the manifest with the size and SHA-256 of every file, and sync everything to disk."""
    found = _files(folder)
    with ThreadPoolExecutor() as threads:
        fingerprints = threads.map(_fingerprint, found)
        files = {path.relative_to(folder).as_posix(): each for path, each in zip(found, fingerprints, strict=True)}
    for path in folder.rglob("*"):
        _sync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None when all files match the manifest. Reads all of them."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, sealed in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != sealed["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {sealed['size']}"
        with ThreadPoolExecutor() as threads:
            fingerprints = threads.map(_fingerprint, [folder / name for name in files])
            for (name, sealed), found in zip(files.items(), fingerprints, strict=True):
                if found != sealed:
                    return f"{name} has other content than was written"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"it can't be read: {error}"
    return None


def _copy_metrics(metrics: Path | None, folder: Path) -> None:
    if metrics is not None and metrics.exists():
        shutil.copyfile(metrics, folder / METRICS)


def _write(folder: Path, learner: Learner, tokenizer: Any, progress: TrainingState) -> None:
    """Write weights, optimizer, schedule, scaler, random states, tokenizer and training state."""
    accelerator = learner.accelerator
    with accelerator.register_save_state_pre_hook(partial(_write_weights, learner)):
        accelerator.save_state(str(folder))
    if accelerator.is_main_process:
        tokenizer.save_pretrained(folder)
        (folder / PROGRESS).write_text(json.dumps(progress.to_json(), indent=1) + "\n", encoding="utf-8")


def _write_weights(learner: Learner, models: list[Any], weights: list[Any], folder: str) -> None:
    """Save hook: write the policy or its adapter in Hugging Face's format, and the critic, in place of accelerate's."""
    weights.clear()
    accelerator = learner.accelerator
    # accelerate has written the shards in full precision; beside them, the model is for other programs to load.
    state: Any = _gather(learner) if accelerator.is_fsdp2 else accelerator.get_state_dict(learner.actor)
    if accelerator.is_main_process:
        policy: Any = accelerator.unwrap_model(learner.actor).policy
        policy.save_pretrained(folder, state_dict=_part(state, "policy."))
        if critic := _part(state, "critic."):
            save_file({name: tensor.contiguous() for name, tensor in critic.items()}, Path(folder, CRITIC))


@torch.no_grad()
def _gather(learner: Learner) -> dict[str, Tensor]:
    """Return the sharded weights, in the main process; others get none.

    Whole models are in the data type of the computation. Of a model with an adapter, only what trains is returned, in
    float32, since the final model is merged from it.
    """
    gathered: dict[str, Tensor] = {}
    actor: Any = learner.accelerator.unwrap_model(learner.actor)
    state, dtype = learner.actor.state_dict(), compute_dtype(learner.accelerator)
    if actor.has_adapter:
        state, dtype = {name: state[name] for name, weight in actor.named_parameters() if weight.requires_grad}, None
    for name, tensor in state.items():
        cast = tensor if dtype is None else tensor.to(dtype)
        whole = cast.full_tensor() if isinstance(cast, DTensor) else cast
        if learner.accelerator.is_main_process:
            gathered[name] = whole.cpu()
    return gathered


def _read_weights(learner: Learner, models: list[Any], folder: str) -> None:
    """Load hook: read the weights; `models` is empty when accelerate has already read its own sharded copies."""
    if not models:
        return
    models.clear()
    actor: Any = learner.accelerator.unwrap_model(learner.actor)
    if actor.has_adapter:
        set_peft_model_state_dict(actor.policy, load_file(Path(folder, SAFETENSORS_WEIGHTS_NAME)))
    else:
        stored = type(actor.policy).from_pretrained(folder, dtype=actor.policy.dtype)
        actor.policy.load_state_dict(stored.state_dict())
    if actor.critic is not None:
        actor.critic.load_state_dict(load_file(Path(folder, CRITIC)))


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age(path: Path) -> tuple[int, bool]:
    """Return a sort key: by step, an unfinished checkpoint after the finished one of the same step."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1, path.name.startswith(".")
