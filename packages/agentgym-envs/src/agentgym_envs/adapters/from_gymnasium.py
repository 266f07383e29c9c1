"""Environments of Gymnasium with any spaces, as text environments: `gymnasium:Blackjack-v1`.

Text stays text; other observations are shown as JSON, or as the environment renders them in the mode `ansi`. Actions
are names, numbers or JSON.
"""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from agentgym_envs.adapters.external import ExternalEnv, plain
from agentgym_envs.core.feedback import Feedback
from agentgym_envs.core.json_actions import read_json
from agentgym_envs.core.tasks import Task
from agentgym_envs.core.text_env import TextEnv
from agentgym_envs.util.importing import import_named

_MOST_LISTED = 200  # actions
_SECTIONS = ("description", "action space", "observation space", "starting state", "rewards", "episode end")
"""Parts of an environment's docstring that an agent is shown."""
_HIGHLIGHT = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumEnv(ExternalEnv):
    """An environment that is registered with Gymnasium, by id or MODULE:ID. Its own limit of turns applies, too."""

    scheme: ClassVar[str] = "gymnasium"

    def __init__(
        self,
        source: str,
        *,
        actions: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Create the environment without starting it.

        Args:
            source: Its id, or MODULE:ID.
            actions: Names of the actions of a `Discrete` space, in order.
            settings: Keyword arguments of `gymnasium.make`.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if options are out of range, or the environment is one of this package.
            gymnasium.error.Error: if there is no such environment.
        """
        super().__init__(source, **options)
        self._names, self._settings = tuple(actions), dict(settings or {})
        self._inner: gymnasium.Env[Any, Any] | None = None
        self._latest: dict[str, Any] = {}
        module, _, self._id = source.rpartition(":")
        if module:
            import_named(module, f"the environment {self.name}")
        gymnasium.spec(self._id)  # fails now if there is none

    def close(self) -> None:
        """Close the environment. May be called twice."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    @property
    def _env(self) -> gymnasium.Env[Any, Any]:
        if self._inner is None:
            self._inner = self._make()
        return self._inner

    def _make(self) -> gymnasium.Env[Any, Any]:
        settings = {"disable_env_checker": True, **self._settings}
        env = gymnasium.make(self._id, **settings)
        drawn = "ansi" in (env.metadata.get("render_modes") or ()) and env.render_mode is None
        if drawn and not isinstance(env.observation_space, spaces.Text):
            env.close()
            env = gymnasium.make(self._id, render_mode="ansi", **settings)
        space, why = env.action_space, ""
        if isinstance(env.unwrapped, TextEnv):
            why = f"is a text environment itself: leave out {self.scheme}:"
        elif len(env.observation_space.shape or ()) > 2 and env.render_mode != "ansi":
            why = "shows images, and agents here read text: wrap it in an environment with text"
        elif self._names and (not isinstance(space, spaces.Discrete) or len(self._names) != space.n):
            why = f"has the actions {space}, which {len(self._names)} names don't fit"
        elif not _has_json(space):
            why = f"has the actions {space}, which can't be written as JSON: wrap it in an environment with other ones"
        if why:
            env.close()
            raise ValueError(f"{self.source} {why}.")
        return env

    def _described(self) -> str:
        about = _sections(inspect.getdoc(type(self._env.unwrapped)) or "")
        return f"You act in the environment {self.source}.\n\n{about}\n\n{self._form()}".replace("\n\n\n\n", "\n\n")

    def _form(self) -> str:
        """Return the sentence that says how actions are written."""
        space = self._env.action_space
        if isinstance(space, spaces.Text):
            return "Your action is a text."
        if isinstance(space, spaces.Discrete):
            listed = ", ".join(self._all_actions())
            last = space.start + space.n - 1
            return (
                f"Your action is one of: {listed}." if listed else f"Your action is a number, {space.start} to {last}."
            )
        return f"Your action is JSON for the space {space}."

    def _all_actions(self) -> list[str]:
        space = self._env.action_space
        if not isinstance(space, spaces.Discrete) or space.n > _MOST_LISTED:
            return []
        return list(self._names) or [str(space.start + i) for i in range(int(space.n))]

    def _available_actions(self) -> list[str] | None:
        actions, mask = self._all_actions(), self._latest.get("action_mask")
        if not actions:
            return None
        if mask is None or len(mask) != len(actions):
            return actions
        return [action for action, possible in zip(actions, mask, strict=True) if possible]

    def _begin(self, task: Task) -> str:
        self.close()  # a fault may have left it in any state
        observation, self._latest = self._env.reset(seed=task.payload["seed"])
        return self._shown(observation)

    def _take(self, action: str) -> Feedback:
        try:
            parsed = self._parsed(action)
        except (ValueError, TypeError, LookupError, OverflowError):
            return Feedback(f"{action[:100]!r} is not an action here. {self._form()}", valid=False)
        observation, reward, terminated, truncated, self._latest = self._env.step(parsed)
        solved = self._latest.get("is_success", self._latest.get("success"))
        self._earn(float(reward), solved=solved)
        return Feedback(self._shown(observation), terminated=bool(terminated), truncated=bool(truncated))

    def _parsed(self, action: str) -> Any:
        """Return the action that a text stands for. Raises ValueError, among others, if there is none."""
        space, text = self._env.action_space, action.strip()
        if isinstance(space, spaces.Discrete):
            named = [name.lower() for name in self._names]
            return space.dtype.type(
                space.start + named.index(text.lower()) if text.lower() in named else _checked(space, int(text))
            )
        if isinstance(space, spaces.Text):
            return _checked(space, action)
        return _checked(space, _from_json(space, read_json(text)))

    def _shown(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        value = json.dumps(plain(observation), ensure_ascii=False)
        drawn = self._env.render() if self._env.render_mode == "ansi" else None
        if not isinstance(drawn, str):
            return value
        highlighted = _HIGHLIGHT.sub(r"[\1]", drawn)
        return f"{_ESCAPE.sub('', highlighted).strip()}\nObservation: {value}"


def _checked(space: gymnasium.Space[Any], value: Any) -> Any:
    if not space.contains(value):
        raise ValueError(f"{value!r} is not in {space}.")
    return value


def _from_json(space: gymnasium.Space[Any], value: Any) -> Any:
    """Return the element of a space that JSON values stand for. Raises ValueError, among others, if there is none."""
    if isinstance(space, spaces.Dict):
        return {key: _from_json(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_from_json(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Sequence):
        return tuple(_from_json(space.feature_space, each) for each in value)
    if isinstance(space, spaces.OneOf):
        number, chosen = value
        return np.int64(number), _from_json(space.spaces[operator.index(number)], chosen)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        given = np.asarray(value, dtype=np.float64)
        if not np.isfinite(given).all():
            raise ValueError(f"{value!r} is not in {space}.")
        element = np.asarray(value, dtype=space.dtype)
        if np.issubdtype(space.dtype, np.integer) and (element != given).any():  # a fraction, or out of its range
            raise ValueError(f"{value!r} is not in {space}.")
        return element
    return value


def _has_json(space: gymnasium.Space[Any]) -> bool:
    """Return whether `_from_json` knows the elements of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.OneOf):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(_has_json, parts))
    if isinstance(space, spaces.Sequence):
        return not space.stack and _has_json(space.feature_space)
    return not isinstance(space, spaces.Graph)


def _sections(doc: str) -> str:
    """Return the parts of a docstring in the form of Gymnasium's that an agent needs."""
    parts = re.split(r"^## +(.+)$", doc, flags=re.MULTILINE)
    titled = cast("list[tuple[str, str]]", list(zip(parts[1::2], parts[2::2], strict=True)))
    return "\n\n".join(f"{title}: {text.strip()}" for title, text in titled if title.strip().lower() in _SECTIONS)
