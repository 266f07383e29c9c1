"""Scenes of a recorded episode: its actions are replayed in the environment, which returns a scene after each step.

Only environments that implement `scene` are created, and only with options that a client of a server may set. A
recorded environment id never imports a module. So a folder from an untrusted source can't make this machine run a
program or read a file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from agentgym_envs import EnvFault, Episode, TextEnv
from agentgym_envs.episodes.replay import ReplayDeviation, replay

from agentgym_eval.runs.recorded_env import client_options, recorded_class, recorded_seed
from agentgym_eval.viewer.index.runs import Run

_CACHE_SIZE = 64
_SLOW_S = 0.005
"""Seconds per step above which an environment is replayed only on request."""

Scene = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenes:
    """The scenes of an episode."""

    before: tuple[Scene | None, ...] = ()
    """The scene at the start of each turn; None if it isn't available."""
    end: Scene | None = None
    note: str = ""
    """Why scenes are missing, as a sentence; empty if all are available, or the environment has no scenes."""

    def at(self, turn: int) -> Scene | None:
        """Return the scene at the start of a turn, from 0; after the last turn, the final scene."""
        return self.end if turn == len(self.before) else self.before[turn] if turn < len(self.before) else None


class SceneReplayer:
    """Replays recorded episodes, one at a time. The last environment stays open: a JVM takes a second to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[Any, ...], Scenes] = OrderedDict()
        self._open_env: tuple[tuple[str, str], TextEnv] | None = None

    def is_slow(self, episode: Episode) -> bool:
        """Return whether its environment is so slow that the page should load before the scenes."""
        env_class = _scene_class(episode.env)
        return env_class is not None and env_class.step_seconds > _SLOW_S

    def scenes(self, run: Run, episode: Episode) -> Scenes:
        """Return the scenes of an episode of `run`, up to where the replay deviates from the recording."""
        env_class = _scene_class(episode.env)
        if env_class is None or played_unseen(episode):
            return Scenes()
        options, seed = client_options(env_class, run.settings, episode.env), recorded_seed(run.settings)
        key = (episode.env, repr(options), seed, episode.task_id, episode.stop, episode.turns)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = self._replay(env_class, options, seed, episode)
                while len(self._cache) > _CACHE_SIZE:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return self._cache[key]

    def close(self) -> None:
        """Close the open environment."""
        with self._lock:
            self._close_env()

    def _replay(self, env_class: type[TextEnv], options: Mapping[str, Any], seed: int, episode: Episode) -> Scenes:
        scenes: list[Scene | None] = []
        try:
            env = self._env(env_class, options, episode.env)
            for _ in replay(env, episode, seed=seed):
                scenes.append(env.scene())
        except ReplayDeviation as deviation:
            scenes += [None] * (len(episode.turns) - len(scenes))
            return Scenes(tuple(scenes[: len(episode.turns)]), None, _deviation_note(deviation.turn))
        except (EnvFault, ValueError, KeyError, TypeError, ImportError, gymnasium.error.Error) as error:
            self._close_env()
            reason = error.args[0] if isinstance(error, KeyError) and error.args else error
            return Scenes((None,) * len(episode.turns), None, f"The scenes can't be rendered: {reason}")
        return Scenes(tuple(scenes[:-1]), scenes[-1])

    def _env(self, env_class: type[TextEnv], options: Mapping[str, Any], env_id: str) -> TextEnv:
        key = (env_id, repr(options))
        if self._open_env is None or self._open_env[0] != key:
            self._close_env()
            self._open_env = key, env_class(**options)
        return self._open_env[1]

    def _close_env(self) -> None:
        opened, self._open_env = self._open_env, None
        if opened is not None:
            opened[1].close()


def played_unseen(episode: Episode) -> bool:
    """Return whether a harness has played, an agent of another program whose actions aren't recorded."""
    acts = [turn for turn in episode.turns if turn.kind == "act" and turn.reply.finish != "length"]
    return bool(acts) and not episode.agent and all(turn.action is None and turn.valid for turn in acts)


def _deviation_note(turn: int) -> str:
    start = "the beginning" if not turn else f"turn {turn}"
    return (
        f"There are no scenes from {start} on: in the replay, the environment returned another observation than "
        "was recorded. The recording may be from another version, or from options that the run doesn't record."
    )


def _scene_class(env_id: str) -> type[TextEnv] | None:
    """Return the class of an environment with scenes; None for others, and if it isn't registered or installed."""
    env_class = recorded_class(env_id)
    return env_class if env_class is not None and env_class.scene is not TextEnv.scene else None
