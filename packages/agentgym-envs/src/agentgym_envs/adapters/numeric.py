"""Worlds as numbers, for agents that are no language models: an action is an index, an observation a vector of counts.

Knows no world's grammar and no learner: which actions and words there are is handed in, or looked for by `survey`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from agentgym_envs.core.text_env import MAX_OBSERVATION_CHARS

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was met in some episodes, sorted."""

    actions: tuple[str, ...]
    """Every action that was available at some point."""
    words: tuple[str, ...]
    """Every word of an observation, in lower case."""


def survey(env: gymnasium.Env[str, str], *, episodes: int = 100, seed: int = 0) -> Survey:
    """Play `episodes` training tasks with random available actions, and note the actions and words that are met.

    The same environment, number and seed give the same survey.

    Raises:
        ValueError: where the world doesn't list its available actions, or no episode is asked for.
    """
    if episodes < 1:
        raise ValueError(f"A survey takes 1 episode or more, not {episodes}.")
    draw = np.random.default_rng(seed)
    actions, words = set[str](), set[str]()
    for number in range(episodes):
        observation, info = env.reset(seed=seed if number == 0 else None)
        over = False
        while True:
            words.update(_words(observation))
            if over:
                break
            available = _available(info)
            if available is None:
                raise ValueError(
                    "This world doesn't list its available actions, so they can't be surveyed; where it has an option "
                    "that lists them, set it, or hand DiscreteActions a list of your own."
                )
            actions.update(available)
            observation, _, terminated, truncated, info = env.step(str(draw.choice(available)))
            over = terminated or truncated
    return Survey(tuple(sorted(actions)), tuple(sorted(words)))


class DiscreteActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A world with a finite list of actions: action `n` plays the text `actions[n]`.

    One that isn't possible now is answered as a world answers it: it costs a turn, and `info["valid"]` is False.
    """

    def __init__(self, env: gymnasium.Env[Any, str], actions: Sequence[str]) -> None:
        """Wrap a world.

        Args:
            env: The world.
            actions: The texts, each once; `survey` finds those of a world that lists what is available.

        Raises:
            ValueError: when there are none, or one comes twice.
        """
        super().__init__(env)
        self.actions = tuple(actions)
        if not self.actions:
            raise ValueError("DiscreteActions takes at least one action; survey(env).actions finds those of a world.")
        if twice := sorted({action for action in self.actions if self.actions.count(action) > 1}):
            raise ValueError(f"Each action stands once in the list; {twice[0]!r} stands there more often.")
        self.action_space = Discrete(len(self.actions))
        self._available: frozenset[str] | None = None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the world's."""
        observation, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        self._note(info)
        return observation, info

    def step(self, action: np.int64 | int) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the action with this index; its text is `info["action"]`.

        Raises:
            IndexError: when there is none with this index.
        """
        if not 0 <= action < len(self.actions):
            raise IndexError(f"There is no action {action}; there are {len(self.actions)}, counted from 0.")
        text = self.actions[int(action)]
        observation, reward, terminated, truncated, info = self.env.step(text)
        self._note(info)
        return observation, reward, terminated, truncated, info | {"action": text}

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are possible now, (actions,); all where the world doesn't say, or none of the list is.

        Learners that mask actions, such as sb3-contrib's MaskablePPO, look for this name.
        """
        if self._available is None:
            return np.ones(len(self.actions), np.bool_)
        possible = np.array([action in self._available for action in self.actions])
        return possible if possible.any() else np.ones_like(possible)

    def _note(self, info: dict[str, Any]) -> None:
        available = _available(info)
        self._available = None if available is None else frozenset(available)


class BagOfWords(gymnasium.ObservationWrapper[NDArray[np.float32], Any, str]):
    """A world whose observation is how often each of `words` is said, (words,) float32; with `goal` (2 * words,).

    What isn't on the list isn't counted, and the order of the words is lost.
    """

    def __init__(self, env: gymnasium.Env[str, Any], words: Sequence[str], *, goal: bool = False) -> None:
        """Wrap a world; `DiscreteActions` goes inside or outside of this.

        Args:
            env: The world.
            words: In lower case, each once; `survey` finds them.
            goal: Go on saying the episode's first observation, which is where worlds tell the goal: its counts come
                after those of the last one. Of no use where the goal is always the same.

        Raises:
            ValueError: when there is no word, or one that can't be met, or one twice.
        """
        super().__init__(env)
        self._places = {word: place for place, word in enumerate(words)}
        if not words or len(self._places) < len(words):
            raise ValueError("The words are a list of at least one, each of them once; survey(env).words finds them.")
        if strange := [word for word in words if _words(word) != [word]]:
            raise ValueError(f"{strange[0]!r} is no word in lower case, so it is never met.")
        self._goal: NDArray[np.float32] | None = None
        self._tells_goal = goal
        size = len(words) * (2 if goal else 1)
        self.observation_space = Box(0.0, MAX_OBSERVATION_CHARS, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """As the world's, in numbers."""
        self._goal = None
        return super().reset(seed=seed, options=None if options is None else dict(options))

    def observation(self, observation: str) -> NDArray[np.float32]:
        """The counts."""
        counts = np.zeros(len(self._places), np.float32)
        for word in _words(observation):
            if word in self._places:
                counts[self._places[word]] += 1
        if not self._tells_goal:
            return counts
        if self._goal is None:
            self._goal = counts
        return np.concatenate([counts, self._goal])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _available(info: Mapping[str, Any]) -> list[str] | None:
    return info["available_actions"]
