"""Scenes of a recorded episode: its actions are played again in the world, and the world says what there is to draw.

Only worlds that draw scenes are made, and only with options that a client of a server may set. A recorded name never
imports a module. So a folder that came from somewhere else can't have this machine run a program or read a file.
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

_KEPT = 64
_SLOW_S = 0.005
"""A world whose steps take longer is played only when somebody asks."""

Scene = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenes:
    """What there is to draw of an episode."""

    before: tuple[Scene | None, ...] = ()
    """What there was when each turn began; None where nothing can be drawn."""
    end: Scene | None = None
    note: str = ""
    """Why scenes are missing, in a sentence; empty where none are, or the world draws none."""

    def at(self, turn: int) -> Scene | None:
        """The scene at the beginning of a turn, from 0; behind the last one that of the end."""
        return self.end if turn == len(self.before) else self.before[turn] if turn < len(self.before) else None


class Stage:
    """Plays recorded episodes again, one at a time. The last world stays open: a JVM takes a second to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], Scenes] = OrderedDict()
        self._made: tuple[tuple[str, str], TextEnv] | None = None

    def is_slow(self, episode: Episode) -> bool:
        """Whether its world takes long enough that a page should come first, and its scenes later."""
        kind = _drawing(episode.env)
        return kind is not None and kind.step_seconds > _SLOW_S

    def scenes(self, run: Run, episode: Episode) -> Scenes:
        """The scenes of an episode of `run`, as far as the world answers as it did."""
        kind = _drawing(episode.env)
        if kind is None:
            return Scenes()
        options, seed = world_options(run, episode.env), _seed(run)
        options = {name: value for name, value in options.items() if name in kind.client_options}
        key = (episode.env, repr(options), seed, episode.task_id, episode.stop, episode.turns)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._play(kind, options, seed, episode)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def close(self) -> None:
        """Close the world that is open."""
        with self._lock:
            self._shut()

    def _play(self, kind: type[TextEnv], options: Mapping[str, Any], seed: int, episode: Episode) -> Scenes:
        drawn: list[Scene | None] = []
        try:
            for scene in _scenes(self._world(kind, options, episode.env), seed, episode):
                drawn.append(scene)
        except _OtherwiseError as otherwise:
            drawn += [None] * (len(episode.turns) - len(drawn))
            return Scenes(tuple(drawn[: len(episode.turns)]), None, str(otherwise))
        except (EnvFault, ValueError, KeyError, TypeError, ImportError, gymnasium.error.Error) as error:
            self._shut()
            reason = error.args[0] if isinstance(error, KeyError) and error.args else error
            return Scenes((None,) * len(episode.turns), None, f"The scenes can't be drawn: {reason}")
        return Scenes(tuple(drawn[:-1]), drawn[-1])

    def _world(self, kind: type[TextEnv], options: Mapping[str, Any], env: str) -> TextEnv:
        key = (env, repr(options))
        if self._made is None or self._made[0] != key:
            self._shut()
            self._made = key, kind(**options)
        return self._made[1]

    def _shut(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made[1].close()


class _OtherwiseError(Exception):
    """The world answers otherwise than it did when the episode was played."""


def _scenes(world: TextEnv, seed: int, episode: Episode) -> Iterator[Scene | None]:
    """The scene before each turn, and that of the end."""
    shown, _ = world.reset(seed=seed, options={"task": episode.task_id})
    trial = 0
    for number, turn in enumerate(episode.turns):
        if turn.trial > trial and turn.kind != "reflect":  # the look back at the trial before comes ahead of the reset
            trial = turn.trial
            shown, _ = world.reset(seed=seed, options={"task": episode.task_id})
        _compare(shown, turn.observation, number)
        yield world.scene()
        if turn.kind == "act" and not (episode.stop == "length" and number == len(episode.turns) - 1):
            shown = str(world.step(_action(turn, _after(episode, number)))[0])
    _compare(shown, episode.final_observation, len(episode.turns))
    yield world.scene()


def _after(episode: Episode, number: int) -> str:
    after = episode.turns[number + 1 : number + 2]
    return after[0].observation if after else episode.final_observation


def _action(turn: Turn, after: str) -> str:
    """What was played: an action, or a reply without one, which the world answered with the hint it was given."""
    return Malformed(turn.reply.text, after) if turn.action is None else turn.action


def _compare(shown: str, recorded: str, number: int) -> None:
    if shown != recorded:
        where = "the beginning" if not number else f"turn {number}"
        raise _OtherwiseError(
            f"From {where} on nothing is drawn: played again, the world answers otherwise than was recorded. "
            "It may have been another version, or made with options that the run doesn't tell."
        )


def _drawing(env: str) -> type[TextEnv] | None:
    """The class of a world that draws scenes; None of others, and of those that aren't registered or installed here."""
    if ":" in env:
        return None
    try:
        point = find_spec(env).entry_point
        kind = load_env_creator(point) if isinstance(point, str) else point
    except (ValueError, ImportError, AttributeError, gymnasium.error.Error):
        return None
    if isinstance(kind, type) and issubclass(kind, TextEnv) and kind.scene is not TextEnv.scene:
        return kind
    return None


def world_options(run: Run, env: str) -> dict[str, Any]:
    """With which options the run's world of this id was made, as far as the run tells."""
    return dict(map(read_option, written_options(run, env)))


def written_options(run: Run, env: str) -> list[str]:
    """The same as they were given, KEY=VALUE."""
    settings = run.settings
    worlds = [settings, settings.get("world"), *(settings.get("others") or ())]
    for world in worlds:
        if isinstance(world, dict) and isinstance(world.get("env"), str):
            options: list[str] = [pair for pair in world.get("options") or () if _is_option(pair)]
            if env in (full_id(world["env"]), full_id(str(dict(map(read_option, options)).get("env", "")))):
                return options
    return []


def _is_option(pair: Any) -> bool:
    return isinstance(pair, str) and pair.partition("=")[0].isidentifier() and "=" in pair


def _seed(run: Run) -> int:
    seed = run.settings.get("seed")
    return seed if isinstance(seed, int) and seed >= 0 else 0
