"""Scenes of a recorded episode: its actions are replayed in the environment, which returns a scene after each step.

Only environments that implement `scene` are created, and only with options that a client of a server may set. A
recorded environment id never imports a module. So a folder from an untrusted source can't make this machine run a
program or read a file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from agentgym_envs import EnvFault, Episode, Malformed, TextEnv, Turn
from agentgym_envs.core.registry import find_spec, full_id, read_option
from gymnasium.envs.registration import load_env_creator

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
        env_class = _env_class(episode.env)
        return env_class is not None and env_class.step_seconds > _SLOW_S

    def scenes(self, run: Run, episode: Episode) -> Scenes:
        """Return the scenes of an episode of `run`, up to where the replay deviates from the recording."""
        env_class = _env_class(episode.env)
        if env_class is None or _played_unseen(episode):
            return Scenes()
        options, seed = env_options(run, episode.env), _seed(run)
        options = {name: value for name, value in options.items() if name in env_class.client_options}
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
            for scene in _scenes(self._env(env_class, options, episode.env), seed, episode):
                scenes.append(scene)
        except _DeviationError as deviation:
            scenes += [None] * (len(episode.turns) - len(scenes))
            return Scenes(tuple(scenes[: len(episode.turns)]), None, str(deviation))
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


class _DeviationError(Exception):
    """The replayed environment returned another observation than the recorded one."""


def _scenes(env: TextEnv, seed: int, episode: Episode) -> Iterator[Scene | None]:
    """Yield the scene before each turn and the final scene."""
    observation, _ = env.reset(seed=seed, options={"task": episode.task_id})
    trial = 0
    for number, turn in enumerate(episode.turns):
        if turn.trial > trial and turn.kind != "reflect":  # the reflection on the previous trial precedes the reset
            trial = turn.trial
            observation, _ = env.reset(seed=seed, options={"task": episode.task_id})
        _check(observation, turn.observation, number)
        yield env.scene()
        if turn.kind == "act" and not (episode.stop == "length" and number == len(episode.turns) - 1):
            observation = str(env.step(_action(turn, _next_observation(episode, number)))[0])
    _check(observation, episode.final_observation, len(episode.turns))
    yield env.scene()


def _next_observation(episode: Episode, number: int) -> str:
    following = episode.turns[number + 1 : number + 2]
    return following[0].observation if following else episode.final_observation


def _played_unseen(episode: Episode) -> bool:
    """Return whether a harness has played, an agent of another program whose actions aren't recorded."""
    acts = [turn for turn in episode.turns if turn.kind == "act" and turn.reply.finish != "length"]
    return bool(acts) and not episode.agent and all(turn.action is None and turn.valid for turn in acts)


def _action(turn: Turn, hint: str) -> str:
    """Return the recorded action; for a reply without one, a `Malformed` that the environment answers with `hint`."""
    return Malformed(turn.reply.text, hint) if turn.action is None else turn.action


def _check(observation: str, recorded: str, number: int) -> None:
    if observation != recorded:
        start = "the beginning" if not number else f"turn {number}"
        raise _DeviationError(
            f"There are no scenes from {start} on: in the replay, the environment returned another observation than "
            "was recorded. The recording may be from another version, or from options that the run doesn't record."
        )


def _env_class(env_id: str) -> type[TextEnv] | None:
    """Return the class of an environment with scenes; None for others, and if it isn't registered or installed."""
    if ":" in env_id:
        return None
    try:
        entry_point = find_spec(env_id).entry_point
        env_class = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ValueError, ImportError, AttributeError, gymnasium.error.Error):
        return None
    if isinstance(env_class, type) and issubclass(env_class, TextEnv) and env_class.scene is not TextEnv.scene:
        return env_class
    return None


def env_options(run: Run, env_id: str) -> dict[str, Any]:
    """Return the recorded options of the run's environment with this id."""
    return dict(map(read_option, raw_env_options(run, env_id)))


def raw_env_options(run: Run, env_id: str) -> list[str]:
    """Return the recorded options of the run's environment with this id, as KEY=VALUE strings."""
    settings = run.settings
    candidates = [settings, settings.get("world"), *(settings.get("extra_worlds") or ())]
    for candidate in candidates:
        if isinstance(candidate, dict) and isinstance(candidate.get("env"), str):
            options: list[str] = [pair for pair in candidate.get("options") or () if _is_option(pair)]
            if env_id in (full_id(candidate["env"]), full_id(str(dict(map(read_option, options)).get("env", "")))):
                return options
    return []


def _is_option(pair: Any) -> bool:
    return isinstance(pair, str) and pair.partition("=")[0].isidentifier() and "=" in pair


def _seed(run: Run) -> int:
    seed = run.settings.get("seed")
    return seed if isinstance(seed, int) and seed >= 0 else 0
