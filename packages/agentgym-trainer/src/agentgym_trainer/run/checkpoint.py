"""Checkpoints: folders that `from_pretrained` loads directly, plus the state needed to resume exactly.

A checkpoint is written under a temporary name, sealed with a manifest of every file's size and SHA-256, and renamed. An
incomplete or damaged one is detected, and the one before it used instead. The state of environments and schedules is
stored as it is. The folder must be visible to all processes. Writing can go on in a thread while training continues.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_eval.util.errors import UsageError

from agentgym_trainer.curriculum.state import Best, TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.finite_checks import NotFinite, check_weights
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.run.checkpoint_files import (
    PROGRESS,
    HostState,
    LearnerState,
    copy_metrics,
    read_weights,
    write_small_files,
)
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.manifest import find_damage, seal, sync

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
        background: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Manage the checkpoints in `folder`, which need not exist yet.

        Args:
            folder: The folder of all checkpoints of the run.
            keep: The number of latest checkpoints that are kept, besides the best one.
            say: Called with a sentence for each checkpoint that is skipped.
            minutes: Minutes after a checkpoint until the next one is overdue; 0: never.
            background: Whether `save` only copies the state to host memory, and a thread writes it.
            clock: Returns the time in seconds.
        """
        self.folder = folder
        self.best = folder / "best"
        self._keep = keep
        self._say = say
        self._minutes = minutes
        self._clock = clock
        self._saved = clock()
        # Python waits for its thread at exit, so that an error elsewhere doesn't cost a checkpoint.
        self._thread = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._host: HostState | None = None
        self._pending: Future[None] | None = None

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
        with learner.accelerator.register_load_state_pre_hook(partial(read_weights, learner)):
            # On several GPUs, each process would load the optimizer's state there.
            learner.accelerator.load_state(str(path), map_location="cpu")
        return TrainingState.from_json(json.loads((path / PROGRESS).read_text(encoding="utf-8")))

    def save(self, learner: Learner, tokenizer: Any, progress: TrainingState, metrics: Path | None = None) -> Path:
        """Write a checkpoint, update the link `best`, and remove checkpoints that are no longer kept.

        In the background, this returns once the state is in host memory; the checkpoint exists after `finish`. One
        checkpoint is written at a time, so this first waits for the last one. Every process must call this.

        Args:
            learner: The learner to save.
            tokenizer: The tokenizer of its policy.
            progress: The training state to save.
            metrics: The file of the run's metrics, which is copied into the checkpoint.

        Raises:
            NotFinite: when the weights aren't finite. Nothing is written.
            OSError: when it can't be written, for example because the disk is full, or the one before couldn't. Other
                checkpoints stay untouched.
        """
        self.finish()
        final, accelerator, ranks = self.at(progress.step), learner.accelerator, Ranks()
        unfinished = final.with_name(f".{final.name}")
        check_weights(learner.actor.parameters(), accelerator)
        with ranks.errors_together(), self._writing(final):
            if ranks.is_main:
                self._start_writing(unfinished)
        with self._removing(unfinished), ranks.errors_together(), self._writing(final):
            write_small_files(unfinished, learner, tokenizer, progress, metrics)
        state = LearnerState.of(learner)
        if self._thread is not None:
            self._host = self._host or HostState(accelerator.device)
            self._pending = self._thread.submit(self._write, self._host.copied(state), unfinished, final, progress)
        else:
            with ranks.errors_together():
                self._write(state, unfinished, final, progress)
        self._saved = self._clock()
        return final

    def settle(self) -> None:
        """Raise the error with which a checkpoint in the background has failed. Every process must call this.

        Raises:
            OSError: as `save`.
        """
        if self._pending is not None and Ranks().broadcast(self._pending.done()):
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint in the background is whole. Every process must call this.

        Raises:
            OSError: as `save`.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with Ranks().errors_together():
                pending.result()

    def wait(self) -> None:
        """Wait until this process is writing nothing, whatever comes of it."""
        if self._pending is not None:
            wait([self._pending])

    def _write(self, state: LearnerState, unfinished: Path, final: Path, progress: TrainingState) -> None:
        """Write a checkpoint to its end, in any thread. Every process must call this; the main one seals it."""
        ranks = Ranks()
        with self._removing(unfinished), self._writing(final):
            state.write(unfinished)
            if ranks.is_main:
                seal(unfinished)
        if ranks.is_main:
            with self._writing(final):  # if it fails, `latest` names what is whole
                self._name(unfinished, final)
            self.tidy(progress.step, progress.best)

    def adopt(self, written: Path, step: int, best: Best | None, metrics: Path | None = None) -> Path:
        """Turn a folder written by another library into the checkpoint of this step, with a copy of `metrics`.

        Only one process may call this.

        Raises:
            OSError: when it can't be written, for example because the disk is full. Other checkpoints stay untouched.
        """
        with self._writing(self.at(step)):
            copy_metrics(metrics, written)
            seal(written)
            final = self._name(written, self.at(step))
        self.tidy(step, best)
        self._saved = self._clock()
        return final

    def tidy(self, step: int, at_best: Best | None) -> None:
        """Update the link `best` and remove checkpoints that are no longer kept; a killed process may not have.

        Raises:
            OSError: when the folder can't be changed, for example because the disk is full.
        """
        best = self.at(at_best.step) if at_best else None
        with self._writing(self.folder):
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
        sync(self.folder)
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

    @contextmanager
    def _removing(self, unfinished: Path) -> Generator[None]:
        """Remove what was written of a checkpoint if that fails: on the main process, as all processes raise then."""
        try:
            yield
        except OSError:
            if Ranks().is_main:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _writing(self, path: Path) -> AbstractContextManager[None]:
        """Turn errors on writing a checkpoint into a message for the user."""
        others = ", ".join(found.name for found in self._all() if found != path)
        return writing(path, then=f"continue with --resume. Other checkpoints are untouched ({others or 'none exist'})")

    def _all(self) -> list[Path]:
        return sorted((path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)), key=_age)


def _age(path: Path) -> tuple[int, bool]:
    """Return a sort key: by step, an unfinished checkpoint after the finished one of the same step."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1, path.name.startswith(".")
