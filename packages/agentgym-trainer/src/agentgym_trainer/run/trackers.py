"""Experiment trackers that receive a run's metrics under the names of its own folder: trackio and Weights & Biases.

Each is an optional extra, imported only when requested. The trackers read destination and credentials from their own
environment variables and logins; this package never handles keys. Trackers never receive text: no episodes,
observations or replies.

accelerate's trackers aren't used: its `WandBTracker.finish` passes no exit code, so that a failed run would be shown as
finished, and neither of the two says where a run can be viewed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any, Protocol

from agentgym_envs.util.installation import command, install
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.run.folder import RunFolder


class MetricsTracker(Protocol):
    """A run in an experiment tracker."""

    @property
    def where(self) -> str:
        """Where the user finds the run, as the end of a sentence."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the metrics of a step. A resumed run may log a step again."""
        ...

    def close(self, *, done: bool) -> None:
        """Send remaining data, and record whether the session completed."""
        ...


class Trackio:
    """A run in trackio's database: on this machine, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says otherwise."""

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        """Start or resume the run."""
        import trackio

        options: dict[str, Any] = {"config": to_json(config), "auto_log_cpu": False, "auto_log_gpu": False}
        with redirect_stdout(io.StringIO()):  # stdout is reserved for results
            self._run: Any = trackio.init(config.project, _name(folder), resume="allow", embed=False, **options)
        self.where = f"as {_name(folder)}; to view it: {command('trackio', ours=False)} show --project {config.project}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the metrics of a step. The step itself is a separate field in trackio."""
        self._run.log({name: value for name, value in figures.items() if name != "step"}, step=step)

    def close(self, *, done: bool) -> None:
        """Write remaining data. Trackio can't record whether the session completed."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


class Wandb:
    """A run at Weights & Biases, or in the run's folder `wandb` if WANDB_MODE is offline."""

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        """Start or resume the run."""
        import wandb

        self._run: Any = wandb.init(
            project=config.project,
            name=_name(folder),
            id=folder.id,
            resume="allow",
            dir=folder.path,
            config=to_json(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        # The built-in step counter can't go back, as a resumed run does.
        self._run.define_metric("*", step_metric="step")
        offline = f"offline; to upload it: {command('wandb', ours=False)} sync {folder.path / 'wandb'}/offline-run-*"
        self.where = offline if self._run.offline else f"at {self._run.url}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the metrics of a step, including its number."""
        self._run.log({**figures, "step": step})

    def close(self, *, done: bool) -> None:
        """Send remaining data and the exit code."""
        self._run.finish(exit_code=0 if done else 1)


_KNOWN: dict[str, Callable[[BaseConfig, RunFolder], MetricsTracker]] = {"trackio": Trackio, "wandb": Wandb}


@contextmanager
def open_trackers(config: BaseConfig, folder: RunFolder, say: Callable[[str], None]) -> Generator[None]:
    """Send every line of metrics, and the metrics of the final test, to the trackers of `config` within the block.

    A tracker that fails is reported and dropped. The run continues, and its folder has all metrics.

    Args:
        config: The configuration of the run.
        folder: The folder of the run, whose listener is set.
        say: Called with messages for the user.

    Raises:
        UsageError: when a tracker isn't installed or can't be started.
    """
    trackers, done = dict[str, MetricsTracker](), False

    def log(line: Mapping[str, Any]) -> None:
        metrics = flat(line)
        for name, tracker in list(trackers.items()):
            with _dropping_on_error(name, trackers, say):
                tracker.log(int(line["step"]), metrics)

    try:
        for name in dict.fromkeys(config.track):
            trackers[name] = _opened(name, config, folder)
            say(f"{name} tracks this run {trackers[name].where}")
        folder.listener = log
        yield
        done = True
    finally:
        folder.listener = None
        for name, tracker in list(trackers.items()):
            with _dropping_on_error(name, trackers, say):
                tracker.close(done=done)


def flat(line: Mapping[str, Any], within: str = "") -> dict[str, float]:
    """Flatten a line of metrics: nested names are joined with slashes, and lists, such as warnings, become a count."""
    metrics: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            metrics |= flat(value, f"{within}{name}/")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list):
            metrics[f"{within}{name}"] = len(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, int | float):
            metrics[f"{within}{name}"] = value
    return metrics


def _opened(name: str, config: BaseConfig, folder: RunFolder) -> MetricsTracker:
    if find_spec(name) is None:
        raise UsageError(
            f"The tracker {name} isn't installed: {install(f'agentgym-trainer[{name}]')}. "
            "Without --track, metrics are only written to the run folder."
        )
    try:
        return _KNOWN[name](config, folder)
    except Exception as error:  # trackers raise anything when there is no key, network or disk space
        hint = " WANDB_MODE=offline keeps the metrics on this machine." if name == "wandb" else ""
        why = str(error).strip().rstrip(".")
        raise UsageError(f"The tracker {name} can't track this run: {why}.{hint}") from error


@contextmanager
def _dropping_on_error(name: str, trackers: dict[str, MetricsTracker], say: Callable[[str], None]) -> Generator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a failing tracker must not end a run of days
        del trackers[name]
        say(f"The tracker {name} failed and no longer tracks this run ({error}); metrics.jsonl has all metrics.")


def _name(folder: RunFolder) -> str:
    """Return a readable and unique name of the run."""
    return f"{folder.path.resolve().name}-{folder.id[:8]}"
