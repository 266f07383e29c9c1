"""Training from Python: runs in folders, as the command `train` makes them, and reading these.

The command trains with the same `open_new`, `open_existing` and `train_in`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from accelerate.state import AcceleratorState, PartialState, is_initialized
from agentgym_envs import EnvFault
from agentgym_envs.core.feedback import ends_caller
from agentgym_envs.util.importing import described
from agentgym_eval.api.training_run import TrainingRun
from agentgym_eval.storage.labels import checked_tags
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import RunStopped, UsageError
from rich.console import Console
from rich.text import Text
from transformers.utils import logging as transformers_logging

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config_files import read_run
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.kinds import kind_of
from agentgym_trainer.learner.finite_checks import NotFinite
from agentgym_trainer.recipes import check_first_run, find_recipe
from agentgym_trainer.rollout.environments import prompt_texts
from agentgym_trainer.rollout.failures import TooManyFailed
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.summary import show_results
from agentgym_trainer.run.trackers import open_trackers
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.setup import init_processes, release_memory
from agentgym_trainer.trainers.test_split import play_test

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentgym_trainer.curriculum.state import Reached

__all__ = ["Run", "load_run", "resume", "train"]

_logger = logging.getLogger("agentgym_trainer")
_CUSTOM = "custom"
"""The recipe that the folder of a run names whose configuration was passed as an object."""


class Run(TrainingRun):
    """A training run in its folder: metrics, checkpoints, evaluations, and the final model."""

    @property
    def config(self) -> BaseConfig:
        """The configuration: an `RLConfig`, `SFTConfig`, `DPOConfig` or `AgentEvolConfig`.

        Raises:
            UsageError: if it is of another version, or a plug-in that it names doesn't exist any more.
        """
        return read_run(self.folder)[0]


def train(
    config: BaseConfig | str, *, out: str | PathLike[str], tags: Sequence[str] = (), progress: bool = False
) -> Run:
    """Train, as the command `train` does: with reinforcement learning or from data, as the type of the configuration
    says. In a script that accelerate's launcher starts, all processes call this.

    Training seeds the global random generators of Python, NumPy and torch, and sets torch's number of threads.

    Args:
        config: The configuration, or a recipe's name: one of this package, of an installed package, or MODULE:NAME.
        out: The run folder, which is created. It must not hold a run; see `resume`.
        tags: Tags of the run, by which the viewer groups and filters runs.
        progress: Whether to show the progress on stderr. Otherwise nothing is printed; the logger `agentgym_trainer`
            gets what the command would print.

    Raises:
        TypeError: if `config` is neither a configuration nor a name.
        UsageError: if the recipe, model, environment or one of its options doesn't exist, a setting is wrong, or the
            folder isn't empty.
        RunStopped: if the engine, the environments or the numbers failed. The progress is saved; see `resume`.
        KeyboardInterrupt: on Ctrl-C. `resume` continues from the last checkpoint.
    """
    recipe = config if isinstance(config, str) else _CUSTOM
    given = find_recipe(config).config if isinstance(config, str) else config
    # Callers without a type checker may pass anything.
    if not isinstance(given, BaseConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"train takes a configuration such as RLConfig(), or the name of a recipe, not {given!r}.")
    with _accelerate_state(), ExitStack() as locks:
        folder = open_new(Path(out), given, recipe, locks, checked_tags(tags))
        try:
            return _trained(given, folder, progress=progress)
        except UsageError:
            if init_processes(given).is_main:
                folder.discard()
            raise


def resume(folder: str | PathLike[str], *, progress: bool = False) -> Run:
    """Continue the interrupted run in a folder, to the same end as without the interruption.

    Args:
        folder: The run folder.
        progress: As in `train`.

    Raises:
        UsageError: if the folder holds no training run, or one of another version.
        RunStopped, KeyboardInterrupt: as in `train`.
    """
    with _accelerate_state(), ExitStack() as locks:
        opened, config, _ = open_existing(Path(folder), locks)
        return _trained(config, opened, progress=progress)


def load_run(folder: str | PathLike[str]) -> Run:
    """Return the training run in a folder, finished or not.

    Raises:
        UsageError: if the folder holds no training run, or one of another version.
    """
    read_run(Path(folder))
    return Run(Path(folder))


def open_new(path: Path, config: BaseConfig, recipe: str, locks: ExitStack, tags: Sequence[str] = ()) -> RunFolder:
    """Create the folder of a run with tags in all of its processes. It stays locked until `locks` is closed.

    Raises:
        UsageError: as `RunFolder.check` and `check_first_run`.
        OSError: if the folder can't be created or written to.
    """
    ranks = init_processes(config)
    path = ranks.broadcast(path)  # a default name has the time, and the clocks of processes differ
    with ranks.errors_together():
        if ranks.is_main:
            check_first_run(config)
            RunFolder.check(path, config)
            with writing(path, then="run the same command again"):
                locks.enter_context(FolderLock(path))
            return RunFolder.create(path, config, recipe, tags)
    return RunFolder(path)


def open_existing(path: Path, locks: ExitStack) -> tuple[RunFolder, BaseConfig, str]:
    """Open the folder of a run in all of its processes, with its configuration and the name of its recipe. It stays
    locked until `locks` is closed.

    Raises:
        UsageError: as `RunFolder.open`.
        OSError: if the folder can't be written to.
    """
    folder, config, recipe = RunFolder.open(path)
    ranks = init_processes(config)
    with ranks.errors_together():
        if ranks.is_main:
            with writing(path):
                locks.enter_context(FolderLock(folder.path))
    return folder, config, recipe


def train_in(folder: RunFolder, config: BaseConfig, console: RunConsole, stopping: Stopping) -> tuple[Reached, bool]:
    """Start or continue the run in a folder, and play the test tasks at its end. All processes of the run call this.

    Returns:
        How far the run got, and whether it is complete with its test.

    Raises:
        EnvFault: if an environment, or other code that isn't this package's, ends the process with `sys.exit`.
        Exception: as `agentgym_trainer.trainers.rl.train`.
    """
    ranks = init_processes(config)
    with ExitStack() as stack:
        stack.enter_context(_no_exit())
        stack.enter_context(_no_progress_bars())
        with ranks.errors_together():
            if ranks.is_main:
                if texts := prompt_texts(config):
                    folder.check_prompts(texts)
                stack.enter_context(open_trackers(config, folder, console.say))
        start: Callable[[Any, RunFolder, RunConsole, Stopping], Reached] = resolve_name(kind_of(config).train)
        reached = start(config, folder, console, stopping)
        if reached.done and (best := reached.best):
            console.say(
                f"The final model is that after update {best.step} of {reached.of}: the best on "
                f"{config.evaluation.split} tasks, with {best.success:.1%}."
            )
        release_memory()  # accelerate makes cycles of what it prepares, and the test loads models of its own
        return reached, reached.done and play_test(config, folder, console, stopping, steps=reached.model_step)


def _trained(config: BaseConfig, folder: RunFolder, *, progress: bool) -> Run:
    started, ranks = time.monotonic(), init_processes(config)
    console = Console(stderr=True, quiet=not (progress and ranks.is_main))
    shown = RunConsole(console) if progress else _LoggedRun(console)
    try:
        reached, _ = train_in(folder, config, shown, Stopping())  # without handlers: signals are the program's
    except NotFinite as error:
        raise RunStopped(str(error)) from error
    except (EngineError, EnvFault, TooManyFailed) as error:
        raise RunStopped(
            f"{error} {folder.progress} in {folder.path}; agentgym_trainer.resume continues it."
        ) from error
    if ranks.is_main:
        console = Console(stderr=True, quiet=not progress)
        show_results(config, folder, console, model_step=reached.model_step, seconds=time.monotonic() - started)
    return Run(folder.path)


class _LoggedRun(RunConsole):
    """Logs what a run would print."""

    def _print(self, markup: str) -> None:
        _logger.info("%s", Text.from_markup(markup).plain)

    def _warn(self, markup: str) -> None:
        _logger.warning("%s", Text.from_markup(markup).plain)


@contextmanager
def _accelerate_state() -> Generator[None]:
    """Forget accelerate's settings of the process at the end, unless the program had made some: they can't be changed,
    and another run in this process may have another precision or device.
    """
    before = is_initialized()
    try:
        yield
    finally:
        if is_initialized() and not before:
            alone = PartialState().num_processes == 1  # else the process group stays
            # accelerate has no public function for it; transformers' TrainingArguments call this one, too.
            AcceleratorState._reset_state(reset_partial_state=alone)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def _no_exit() -> Generator[None]:
    """Turn `sys.exit` into an error: this package doesn't call it, and the process would end as if the run had."""
    try:
        yield
    except SystemExit as error:
        if ends_caller(error):
            raise
        raise EnvFault(
            f"An environment or a plugin ended the process: {described(error)}. Let it raise an error instead."
        ) from error


@contextmanager
def _no_progress_bars() -> Generator[None]:
    """Hide the progress bars of transformers, which would break those of the run."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
