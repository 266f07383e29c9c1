"""Replay of recorded episodes: their actions are played again, and the observations compared with the recorded ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_envs.core.feedback import Malformed
from agentgym_envs.core.text_env import TextEnv
from agentgym_envs.episodes.episode import Episode, Turn

_TURNS_LEFT = re.compile(r"\n\nTurns left: \d+\.\Z")
_LONGEST = 40
"""Length that such a line doesn't reach."""


class ReplayDeviation(Exception):
    """The replayed environment returned another observation than the recorded one."""

    def __init__(self, turn: int) -> None:
        """Name the turn, from 0, whose observation differs; the number of turns stands for the end."""
        super().__init__(f"In the replay, the environment returned another observation at turn {turn} than recorded.")
        self.turn = turn


def without_turns_left(observation: str) -> str:
    """Return an observation without the line that tells an agent how many turns it has left."""
    if "Turns left" not in observation[-_LONGEST:]:  # nearly always, and much faster than the pattern
        return observation
    return _TURNS_LEFT.sub("", observation)


def replay(env: TextEnv, episode: Episode, *, seed: int) -> Iterator[tuple[str, ...]]:
    """Play an episode again, and yield in each state: before each turn, and after the last one.

    Args:
        env: The environment itself, without wrappers, with the options of the recording.
        episode: The recorded episode. A reply that was cut off isn't played, as when it was recorded.
        seed: The seed of the recording.

    Yields:
        The actions that were taken in this trial so far.

    Raises:
        ReplayDeviation: if an observation differs from the recorded one.
        KeyError: if the environment has no such task.
        EnvFault: if the environment broke.
    """
    observation, taken, trial = _begin(env, episode, seed), list[str](), 0
    for number, turn in enumerate(episode.turns):
        if turn.trial > trial and turn.kind != "reflect":  # the reflection on the previous trial precedes the reset
            observation, taken, trial = _begin(env, episode, seed), list[str](), turn.trial
        _check(observation, turn.observation, number)
        yield tuple(taken)
        if turn.kind == "act" and not (episode.stop == "length" and number == len(episode.turns) - 1):
            taken.append(_action(turn, _next_observation(episode, number)))
            observation = str(env.step(taken[-1])[0])
    if episode.turns and episode.turns[-1].trial > trial and not _same(observation, episode.final_observation):
        observation, taken = _begin(env, episode, seed), []  # it failed after the reset, before the trial's first turn
    _check(observation, episode.final_observation, len(episode.turns))
    yield tuple(taken)


def _begin(env: TextEnv, episode: Episode, seed: int) -> str:
    return env.reset(seed=seed, options={"task": episode.task_id})[0]


def _next_observation(episode: Episode, number: int) -> str:
    following = episode.turns[number + 1 : number + 2]
    return without_turns_left(following[0].observation if following else episode.final_observation)


def _action(turn: Turn, hint: str) -> str:
    """Return the recorded action; for a reply without one, a `Malformed` that the environment answers with `hint`."""
    return Malformed(turn.reply.text, hint) if turn.action is None else turn.action


def _check(observation: str, recorded: str, number: int) -> None:
    if not _same(observation, recorded):
        raise ReplayDeviation(number)


def _same(observation: str, recorded: str) -> bool:
    return observation in (recorded, without_turns_left(recorded))
