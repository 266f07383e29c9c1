"""Trackers that get a run's figures beside its own folder, under the same names: trackio and Weights & Biases.

Each is an extra, imported only where it is asked for. Where figures go and who may send them, the trackers read from
their own environment variables and logins; keys never pass through here. What they don't get is text: no episode, no
observation, no reply.
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
    """A run at a tracker."""

    @property
    def where(self) -> str:
        """Where a person finds it, as the end of a sentence."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step. After a run was resumed, a step may come again."""
        ...

    def close(self, *, done: bool) -> None:
        """Send what is left, and note whether the sitting came to its end."""
        ...


class Trackio:
    """A run in trackio's database: on this machine, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says otherwise."""

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        """Begin the run, or go on with it."""
        import trackio

        known: dict[str, Any] = {"config": to_json(config), "auto_log_cpu": False, "auto_log_gpu": False}
        with redirect_stdout(io.StringIO()):  # which is for results
            self._run: Any = trackio.init(config.project, _name(folder), resume="allow", embed=False, **known)
        self.where = f"as {_name(folder)}; to see it: {command('trackio', ours=False)} show --project {config.project}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step. Steps have a place of their own in trackio."""
        self._run.log({name: value for name, value in figures.items() if name != "step"}, step=step)

    def close(self, *, done: bool) -> None:
        """Write what is left. Trackio notes no more of an end than that it came."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


class Wandb:
    """A run at Weights & Biases, or in its folder `wandb` where WANDB_MODE is offline."""

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        """Begin the run, or go on with it."""
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
        # Its own count of steps can't go back, as a resumed run does.
        self._run.define_metric("*", step_metric="step")
        offline = f"offline; to send it: {command('wandb', ours=False)} sync {folder.path / 'wandb'}/offline-run-*"
        self.where = offline if self._run.offline else f"at {self._run.url}"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step, of which one is its number."""
        self._run.log({**figures, "step": step})

    def close(self, *, done: bool) -> None:
        """Send what is left, and the exit code."""
        self._run.finish(exit_code=0 if done else 1)


_KNOWN: dict[str, Callable[[BaseConfig, RunFolder], MetricsTracker]] = {"trackio": Trackio, "wandb": Wandb}


@contextmanager
def open_trackers(config: BaseConfig, folder: RunFolder, say: Callable[[str], None]) -> Generator[None]:
    """While this is open, every line of the run's metrics goes to the trackers of `config`, too, and what came of the
    test at its end.

    A tracker that fails under way is told of and let go of: a run doesn't end for it, and its folder has all figures.

    Raises:
        UsageError: when a tracker isn't installed, or can't be had as things are.
    """
    followers, done = dict[str, MetricsTracker](), False

    def tell(line: Mapping[str, Any]) -> None:
        figures = flat(line)
        for name, follower in list(followers.items()):
            with _letting_go(name, followers, say):
                follower.log(int(line["step"]), figures)

    try:
        for name in dict.fromkeys(config.track):
            followers[name] = _opened(name, config, folder)
            say(f"{name} follows this run {followers[name].where}")
        folder.listener = tell
        yield
        done = True
    finally:
        folder.listener = None
        for name, follower in list(followers.items()):
            with _letting_go(name, followers, say):
                follower.close(done=done)


def flat(line: Mapping[str, Any], within: str = "") -> dict[str, float]:
    """The figures of a line of metrics by their names in it, with slashes where one record lies in another; of a list,
    such as the warnings, how many it has.
    """
    figures: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            figures |= flat(value, f"{within}{name}/")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list):
            figures[f"{within}{name}"] = len(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, int | float):
            figures[f"{within}{name}"] = value
    return figures


def _opened(name: str, config: BaseConfig, folder: RunFolder) -> MetricsTracker:
    if find_spec(name) is None:
        raise UsageError(
            f"The tracker {name} isn't installed: {install(f'agentgym-trainer[{name}]')}. "
            "Without --track, figures go to the run's folder alone."
        )
    try:
        return _KNOWN[name](config, folder)
    except Exception as error:  # whatever a tracker says when it has no key, no network, no disk
        hint = " WANDB_MODE=offline keeps the figures on this machine." if name == "wandb" else ""
        why = str(error).strip().rstrip(".")
        raise UsageError(f"The tracker {name} can't follow this run: {why}.{hint}") from error


@contextmanager
def _letting_go(name: str, followers: dict[str, MetricsTracker], say: Callable[[str], None]) -> Generator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a run of days doesn't end for a tracker's sake
        del followers[name]
        say(f"The tracker {name} follows this run no more ({error}); metrics.jsonl has all figures.")


def _name(folder: RunFolder) -> str:
    """What a person calls the run, and no other run is called."""
    return f"{folder.path.resolve().name}-{folder.id[:8]}"
