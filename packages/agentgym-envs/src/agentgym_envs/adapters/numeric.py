"""Numeric wrappers for agents without a language model: actions are indices, observations are vectors of word counts.

The wrappers don't depend on an environment's grammar. The caller supplies the actions and words, or collects them with
`survey`.
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
    """The actions and words that occurred in some episodes, sorted."""

    actions: tuple[str, ...]
    """Every action that was available at some point."""
    words: tuple[str, ...]
    """Every word of the observations, in lower case."""


def survey(env: gymnasium.Env[str, str], *, episodes: int = 100, seed: int = 0) -> Survey:
    """Play `episodes` training tasks with random available actions, and collect the actions and words that occur.

    The same environment, number of episodes and seed give the same survey.

    Raises:
        ValueError: if the environment doesn't list its available actions, or `episodes` is below 1.
    """
    if episodes < 1:
        raise ValueError(f"A survey needs at least 1 episode, not {episodes}.")
    rng = np.random.default_rng(seed)
    actions, words = set[str](), set[str]()
    for episode in range(episodes):
        observation, info = env.reset(seed=seed if episode == 0 else None)
        over = False
        while True:
            words.update(_words(observation))
            if over:
                break
            available = _available(info)
            if available is None:
                raise ValueError(
                    "This environment doesn't list its available actions, so they can't be surveyed. Set its option "
                    "that lists them, if it has one, or pass your own list to DiscreteActions."
                )
            actions.update(available)
            observation, _, terminated, truncated, info = env.step(str(rng.choice(available)))
            over = terminated or truncated
    return Survey(tuple(sorted(actions)), tuple(sorted(words)))


class DiscreteActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with a finite list of actions: action `n` plays the text `actions[n]`.

    An action that is currently impossible costs a turn, and `info["valid"]` is False.
    """

    def __init__(self, env: gymnasium.Env[Any, str], actions: Sequence[str]) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            actions: The distinct texts of the actions. `survey` collects them if the environment lists the available
                actions.

        Raises:
            ValueError: if the list is empty or contains duplicates.
        """
        super().__init__(env)
        self.actions = tuple(actions)
        if not self.actions:
            raise ValueError("DiscreteActions needs at least one action. Collect them with survey(env).actions.")
        if duplicates := sorted({action for action in self.actions if self.actions.count(action) > 1}):
            raise ValueError(f"The actions must be distinct, but {duplicates[0]!r} occurs more than once.")
        self.action_space = Discrete(len(self.actions))
        self._available: frozenset[str] | None = None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a task as the environment's `reset` does."""
        observation, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        self._update_available(info)
        return observation, info

    def step(self, action: np.int64 | int) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the action with this index; its text is `info["action"]`.

        Raises:
            IndexError: if the index is out of range.
        """
        if not 0 <= action < len(self.actions):
            raise IndexError(f"There is no action {action}; actions are 0 to {len(self.actions) - 1}.")
        text = self.actions[int(action)]
        observation, reward, terminated, truncated, info = self.env.step(text)
        self._update_available(info)
        return observation, reward, terminated, truncated, info | {"action": text}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask of currently possible actions, (actions,) bool.

        All are True if the environment doesn't list available actions, or none of them is in `actions`. Libraries that
        mask actions, such as sb3-contrib's MaskablePPO, call this method by name.
        """
        if self._available is None:
            return np.ones(len(self.actions), np.bool_)
        possible = np.array([action in self._available for action in self.actions])
        return possible if possible.any() else np.ones_like(possible)

    def _update_available(self, info: dict[str, Any]) -> None:
        available = _available(info)
        self._available = None if available is None else frozenset(available)


class BagOfWords(gymnasium.ObservationWrapper[NDArray[np.float32], Any, str]):
    """An environment whose observation is the count of each of `words`, (words,) float32; with `goal` (2 * words,).

    Other words are not counted, and the order of the words is lost.
    """

    def __init__(self, env: gymnasium.Env[str, Any], words: Sequence[str], *, goal: bool = False) -> None:
        """Wrap an environment; `DiscreteActions` may be inside or outside of this wrapper.

        Args:
            env: The environment.
            words: The distinct words in lower case; `survey` collects them.
            goal: Append the counts of the episode's first observation, in which environments state the goal, to every
                observation. Useless if the goal is always the same.

        Raises:
            ValueError: if the list is empty, or contains duplicates or entries that aren't words in lower case.
        """
        super().__init__(env)
        self._positions = {word: position for position, word in enumerate(words)}
        if not words or len(self._positions) < len(words):
            raise ValueError(
                "BagOfWords needs at least one word and no duplicates. Collect them with survey(env).words."
            )
        if invalid := [word for word in words if _words(word) != [word]]:
            raise ValueError(f"{invalid[0]!r} is not a single word in lower case, so it would never be counted.")
        self._goal: NDArray[np.float32] | None = None
        self._append_goal = goal
        size = len(words) * (2 if goal else 1)
        self.observation_space = Box(0.0, MAX_OBSERVATION_CHARS, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a task and return the counts of its first observation."""
        self._goal = None
        return super().reset(seed=seed, options=None if options is None else dict(options))

    def observation(self, observation: str) -> NDArray[np.float32]:
        """Return the counts of an observation."""
        counts = np.zeros(len(self._positions), np.float32)
        for word in _words(observation):
            if word in self._positions:
                counts[self._positions[word]] += 1
        if not self._append_goal:
            return counts
        if self._goal is None:
            self._goal = counts
        return np.concatenate([counts, self._goal])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _available(info: Mapping[str, Any]) -> list[str] | None:
    return info["available_actions"]
