"""A Gymnasium `VectorEnv` of text environments, which `gymnasium.make_vec` returns.

Environments are registered with `vector_entry_point="agentgym_envs.vector.vector_env:ID"`, so Gymnasium looks up the id
as an attribute of this module. `EnvPool` manages the environments and their processes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS, EnvFault, TextEnv
from agentgym_envs.core.text_space import TextSpace
from agentgym_envs.pool import Ask, Call, EnvPool, Reset, Result, Step, WorldSpec
from agentgym_envs.vector.vector_infos import batch_infos

Batch = tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def __getattr__(name: str) -> Any:
    """Return the constructor of vector environments for the environment that is registered as `name`."""
    if name not in gymnasium.registry:
        raise AttributeError(f"There is neither an environment {name!r} nor an attribute of {__name__} with that name.")
    return partial(TextVectorEnv, name)


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]]):
    """N text environments that step together, as `gymnasium.make_vec("agentgym/TextCraft-v0", num_envs=8)` makes them.

    Observations are a tuple of N strings, actions any sequence of N strings. `infos` are batched with masks, and
    `autoreset_mode` controls resets at the end of an episode, as in Gymnasium's `SyncVectorEnv`. One difference: the
    next task is drawn from the split of the environment's last `reset`, with the environment's own generator.

    An environment that breaks in a step doesn't raise. Its episode is truncated with reward 0, and its info has the
    message under "fault" and no `score` and `success`, since the episode has none. The next reset rebuilds the
    environment and raises `EnvFault` if that fails twice. After any exception of `step`, all environments need a reset.
    """

    def __init__(
        self,
        world: str,
        *,
        num_envs: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        backend: str | None = None,
        deadline: float = 120.0,
        slot_options: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> None:
        """Make the environments on the given backend.

        Args:
            world: The Gymnasium id.
            num_envs: The number of environments.
            autoreset_mode: `NextStep`, `SameStep` or `Disabled`, as text or as Gymnasium's enum.
            backend: As for `EnvPool`; by default one that suits the environment.
            deadline: The timeout of a call in seconds, after which it counts as a fault. `inline` has no timeout.
            slot_options: Options for each of the environments in addition to the common ones.
            **options: Options for `gymnasium.make`, including `max_episode_steps` and `render_mode`.

        Raises:
            ValueError: if the environment, an option, the mode or the backend is unknown, there are to be no
                environments, numbers don't match, or the environments' spaces differ.
            EnvFault: if the backend can't make an environment.
            gymnasium.error.DependencyNotInstalled: if the environment's extra is missing.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}.")
        self._mode = _mode(autoreset_mode)
        self._pool = EnvPool(WorldSpec(world, options), num_envs, backend, options=slot_options, deadline=deadline)
        self._tidy = weakref.finalize(self, self._pool.close)
        self.num_envs = num_envs
        self._observations = [""] * num_envs
        self._splits: list[Split] = ["train"] * num_envs
        self._ready = [False] * num_envs
        self._over = [False] * num_envs  # in mode NEXT_STEP: the next step resets instead
        try:
            remote = backend is not None and "://" in backend
            description = self._remote_worlds(options) if remote else self._worlds()
        except BaseException:
            self.close()
            raise
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = description
        self.metadata = {**metadata, "autoreset_mode": self._mode}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def __enter__(self) -> TextVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in all environments or some of them.

        Args:
            seed: A seed for each environment; an int `s` means s, s + 1, s + 2, and so on.
            options: `task` and `split` as for a single environment, each either one value for all or a list with one
                per environment, and `reset_mask`, a boolean array (num_envs,) of the environments to reset.

        Returns:
            All observations, and the infos of the environments that were reset.

        Raises:
            ValueError, KeyError: if an option, task or split doesn't exist, or a shape or length doesn't match.
            EnvFault: if an environment can't be started.
        """
        remaining = dict(options or {})
        chosen = self._chosen(remaining.pop("reset_mask", None))
        tasks = self._each(remaining.pop("task", None), "task")
        splits = self._each(remaining.pop("split", "train"), "split")
        if remaining:
            raise ValueError(f"Unknown reset option {sorted(remaining)}; reset takes 'task', 'split' and 'reset_mask'.")
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds = [int(each) if isinstance(each, np.integer) else each for each in self._each(seed, "seed")]
        for i in chosen:
            self._ready[i] = self._over[i] = False
        results = self._play({i: Reset(tasks[i], splits[i], seeds[i]) for i in chosen})
        for i, result in results.items():
            self._observations[i], self._splits[i], self._ready[i] = result.observation, splits[i], True
        return tuple(self._observations), batch_infos({i: result.info for i, result in results.items()}, self.num_envs)

    def step(self, actions: Sequence[str] | NDArray[Any]) -> Batch:
        """Play an action in each environment. If mode NEXT_STEP resets an environment instead, its action is ignored.

        Returns:
            Observations, rewards, terminations, truncations and infos of the N environments. When an episode ends in
            mode SAME_STEP, observation and info are those of the next episode, and the infos have those of the old one
            in `final_obs` and `final_info`.

        Raises:
            ResetNeeded: if an environment wasn't reset yet, or its episode is over and the mode is DISABLED.
            ValueError, TypeError: if the actions aren't N strings.
            EnvFault: if an environment can't be started at a reset.
        """
        texts = _texts(actions, self.num_envs)
        if not all(self._ready):
            not_ready = [i for i, ready in enumerate(self._ready) if not ready]
            raise ResetNeeded(
                f"Environments {not_ready} of {self.num_envs} need a reset: call reset(), with "
                "options={'reset_mask': ...} to reset only some."
            )
        self._ready = [False] * self.num_envs
        calls = {i: Reset(split=self._splits[i]) if self._over[i] else Step(action) for i, action in enumerate(texts)}
        results = list(self._play(calls).values())
        infos = {i: result.info for i, result in enumerate(results)}
        self._observations = [result.observation for result in results]
        ended = [result.over for result in results]
        if self._mode is AutoresetMode.SAME_STEP:
            resets = {i: Reset(split=self._splits[i]) for i, over in enumerate(ended) if over}
            for i, result in self._play(resets).items():
                infos[i] = {"final_obs": self._observations[i], "final_info": infos[i], **result.info}
                self._observations[i] = result.observation
        elif self._mode is AutoresetMode.NEXT_STEP:
            self._over = ended
        self._ready = [self._mode is not AutoresetMode.DISABLED or not over for over in ended]
        return (
            tuple(self._observations),
            np.array([result.reward for result in results]),
            np.array([result.terminated for result in results]),
            np.array([result.truncated for result in results]),
            batch_infos(infos, self.num_envs),
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `name` of each environment, or get the attribute of that name.

        With backend `process`, arguments and values are copies and must be picklable. A server supports `functions`,
        `instructions`, `oracle`, `oracle_thought`, `oracle_plan`, `scene`, `render` and `tasks`.
        """
        results = self._play({i: Ask(name, args, kwargs) for i in range(self.num_envs)})
        return tuple(result.value for result in results.values())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each environment. A list or tuple contains one value each; any other value is for all.

        An environment that is rebuilt after a fault loses the attribute. A server doesn't support this.
        """
        each = self._each(values if isinstance(values, list | tuple) else [values] * self.num_envs, "value")
        self._play({i: Ask("set_wrapper_attr", (name, value)) for i, value in enumerate(each)})

    def render(self) -> tuple[Any, ...]:
        """Render each environment in its `render_mode`."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - as Gymnasium's
        """The seed of each environment's generator."""
        return self.call("np_random_seed")

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Each environment's generator; with backend `process` a copy."""
        return self.call("np_random")

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments; `close` calls this once."""
        self._tidy()

    def _play(self, calls: Mapping[int, Call]) -> dict[int, Result]:
        """Carry out `calls` concurrently and return the results in their order. Retries a reset once after a fault."""
        results = self._carry_out(calls)
        faults = [i for i, result in results.items() if isinstance(result.error, EnvFault)]
        if faults:
            results |= self._carry_out({i: calls[i] for i in faults if isinstance(calls[i], Reset)})
        played: dict[int, Result] = {}
        for i, call in calls.items():
            match results[i].error, call:
                case None, _:
                    played[i] = results[i]
                case EnvFault() as fault, Step():
                    played[i] = Result(i, self._observations[i], truncated=True, info={"fault": str(fault)})
                case EnvFault() as fault, _:
                    raise EnvFault(f"Environment {i} of {self.num_envs} broke at {call}: {fault}") from fault
                case error, _:
                    raise error
        return played

    def _carry_out(self, calls: Mapping[int, Call]) -> dict[int, Result]:
        results: dict[int, Result] = {}
        try:
            for i, call in calls.items():
                self._pool.submit(i, call)
            while len(results) < len(calls):
                results.update((result.slot, result) for result in self._pool.recv())
        except BaseException:  # Ctrl-C or a signal: these results are stale
            for i in calls:
                self._pool.replace(i)
            self._pool.recv(0)
            raise
        return results

    def _worlds(self) -> tuple[TextSpace, TextSpace, dict[str, Any], str | None]:
        """Make every environment, check that their spaces are equal, and return spaces, metadata and render mode."""
        observations, actions = self.get_attr("observation_space"), self.get_attr("action_space")
        for spaces in (observations, actions):
            if different := [space for space in spaces if space != spaces[0]]:
                raise ValueError(
                    f"The environments of a vector must have equal spaces, but these have {spaces[0]} and {different}."
                )
        return observations[0], actions[0], self.get_attr("metadata")[0], self.get_attr("render_mode")[0]

    def _remote_worlds(self, options: Mapping[str, Any]) -> tuple[TextSpace, TextSpace, dict[str, Any], str | None]:
        """Return the same for environments on a server, which all have the spaces and metadata of the contract."""
        self.get_attr("instructions")
        spaces = TextSpace(MAX_OBSERVATION_CHARS), TextSpace(MAX_ACTION_CHARS)
        return *spaces, TextEnv.metadata, options.get("render_mode")

    def _chosen(self, mask: Any) -> list[int]:
        """Return the indices that `mask` selects, or all without a mask."""
        if mask is None:
            return list(range(self.num_envs))
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise ValueError(f"A reset_mask must be a numpy array of {self.num_envs} bool, not {mask!r}.")
        if not mask.any():
            raise ValueError("This reset_mask selects no environment. Set at least one element to True.")
        return [int(i) for i in np.flatnonzero(mask)]

    def _each(self, values: Any, what: str) -> list[Any]:
        """Return one value per environment; a string or None is for all."""
        if values is None or isinstance(values, str):
            return [values] * self.num_envs
        if not isinstance(values, Sequence | np.ndarray) or len(values) != self.num_envs:
            raise ValueError(
                f"Give one {what} for all {self.num_envs} environments or a list of {self.num_envs}, not {values!r}."
            )
        return list(values)


def _mode(mode: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        kinds = ", ".join(kind.value for kind in AutoresetMode)
        raise ValueError(f"There is no autoreset_mode {mode!r}; there are {kinds}.") from None


def _texts(actions: Any, count: int) -> list[str]:
    """Return the actions as a list, after checking that they are `count` strings."""
    if isinstance(actions, str) or not isinstance(actions, Sequence | np.ndarray):
        raise TypeError(f"Actions must be a sequence of {count} strings, not {type(actions).__name__}.")
    if len(actions) != count:
        raise ValueError(f"There are {len(actions)} actions for {count} environments; give one for each.")
    texts: list[Any] = actions.tolist() if isinstance(actions, np.ndarray) else list(actions)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"An action must be text (str), not {type(text).__name__}.")
    return texts
