"""Many worlds as one Gymnasium `VectorEnv`, which is what `gymnasium.make_vec` makes of a world of ours.

Environments are registered with `vector_entry_point="agentgym_envs.vector.vector_env:ID"`: to Gymnasium, the id is a
name in this module. Knows nothing about where worlds are held (`EnvPool` does), and nothing about policies.
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
    """What makes vectors of the world that is registered as `name`."""
    if name not in gymnasium.registry:
        raise AttributeError(f"There is neither a world nor anything in {__name__} with the name {name!r}.")
    return partial(TextVectorEnv, name)


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]]):
    """Worlds that are stepped together. `gymnasium.make_vec("agentgym/TextCraft-v0", num_envs=8)` makes one.

    Observations are a tuple of N strings; actions any sequence of N. `infos` are batched with masks, and an ended
    episode is followed by the next as `autoreset_mode` says, all as in Gymnasium's `SyncVectorEnv`; but that the next
    task is drawn from the split of the world's last `reset`, with the world's own generator.

    A world that breaks in a step doesn't raise: its episode ends there, truncated, with reward 0 and what happened
    under "fault" in its info, where `score` and `success` are then missing. It is nobody's score. The next reset
    builds the world anew; when that fails twice, it is an `EnvFault`. Whatever `step` raises leaves all worlds to be
    reset.
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
        """Make the worlds, wherever the backend holds them.

        Args:
            world: Gymnasium id.
            num_envs: How many.
            autoreset_mode: `NextStep`, `SameStep` or `Disabled`, as text or as Gymnasium's enum.
            backend: As for `EnvPool`; by default what suits the world.
            deadline: Seconds that a world may take for a call before that counts as a fault; `inline` can't be stopped.
            slot_options: Options for each of the worlds on top of those for all.
            **options: For `gymnasium.make`, `max_episode_steps` and `render_mode` among them.

        Raises:
            ValueError: for an unknown world, option, mode or backend, numbers that don't fit, or worlds whose spaces
                differ.
            EnvFault: when a world can't be made where the backend holds it.
            gymnasium.error.DependencyNotInstalled: when the world's extra is missing.
        """
        self._mode = _mode(autoreset_mode)
        self._pool = EnvPool(WorldSpec(world, options), num_envs, backend, options=slot_options, deadline=deadline)
        self._tidy = weakref.finalize(self, self._pool.close)
        self.num_envs = num_envs
        self._seen = [""] * num_envs
        self._splits: list[Split] = ["train"] * num_envs
        self._ready = [False] * num_envs
        self._over = [False] * num_envs  # to be reset instead of stepped: in mode NEXT_STEP only
        try:
            remote = backend is not None and "://" in backend
            about = self._remote_worlds(options) if remote else self._worlds()
        except BaseException:
            self.close()
            raise
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = about
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
        """Begin an episode in every world, or in some.

        Args:
            seed: One for each world; an int `s` stands for s, s + 1, s + 2, and so on.
            options: `task` and `split` as for a single world, each one for all or a list with one for each; and
                `reset_mask`, a boolean array of the worlds to be reset.

        Returns:
            All observations, and the infos of the worlds that were reset.

        Raises:
            ValueError, KeyError: for what doesn't exist or doesn't fit.
            EnvFault: when a world can't be brought up.
        """
        asked = dict(options or {})
        chosen = self._chosen(asked.pop("reset_mask", None))
        tasks = self._each(asked.pop("task", None), "task")
        splits = self._each(asked.pop("split", "train"), "split")
        if asked:
            raise ValueError(f"Unknown reset option {sorted(asked)}; reset takes 'task', 'split' and 'reset_mask'.")
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds = self._each(seed, "seed")
        for i in chosen:
            self._ready[i] = self._over[i] = False
        begun = self._play({i: Reset(tasks[i], splits[i], seeds[i]) for i in chosen})
        for i, result in begun.items():
            self._seen[i], self._splits[i], self._ready[i] = result.observation, splits[i], True
        return tuple(self._seen), batch_infos({i: result.info for i, result in begun.items()}, self.num_envs)

    def step(self, actions: Sequence[str] | NDArray[Any]) -> Batch:
        """Play an action in each world; where mode NEXT_STEP resets a world instead, its action is not looked at.

        Returns:
            Observations, rewards, terminations, truncations and infos of the N worlds. After the end of an episode in
            mode SAME_STEP, observation and info are the next one's, and the old one's are in `final_obs` and
            `final_info` of the infos.

        Raises:
            ResetNeeded: when a world wasn't reset yet, or its episode is over and the mode is DISABLED.
            ValueError, TypeError: when the actions aren't N strings.
            EnvFault: when a world that was to be reset can't be brought up.
        """
        said = _texts(actions, self.num_envs)
        if not all(self._ready):
            waiting = [i for i, ready in enumerate(self._ready) if not ready]
            raise ResetNeeded(
                f"Environments {waiting} of {self.num_envs} wait for a reset: call reset(), for some of them with "
                "options={'reset_mask': ...}."
            )
        self._ready = [False] * self.num_envs
        played = self._play(
            {i: Reset(split=self._splits[i]) if self._over[i] else Step(action) for i, action in enumerate(said)}
        )
        results = list(played.values())
        infos = {i: result.info for i, result in enumerate(results)}
        self._seen = [result.observation for result in results]
        ended = [result.over for result in results]
        if self._mode is AutoresetMode.SAME_STEP:
            next_ones = {i: Reset(split=self._splits[i]) for i, over in enumerate(ended) if over}
            for i, begun in self._play(next_ones).items():
                infos[i] = {"final_obs": self._seen[i], "final_info": infos[i], **begun.info}
                self._seen[i] = begun.observation
        elif self._mode is AutoresetMode.NEXT_STEP:
            self._over = ended
        self._ready = [self._mode is not AutoresetMode.DISABLED or not over for over in ended]
        return (
            tuple(self._seen),
            np.array([result.reward for result in results]),
            np.array([result.terminated for result in results]),
            np.array([result.truncated for result in results]),
            batch_infos(infos, self.num_envs),
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What each world has under `name`: the attribute, or what the method of that name returns.

        With backend `process`, arguments and values are copies, and must be things that can be pickled. A server can
        be asked for `functions`, `instructions`, `oracle`, `oracle_thought`, `oracle_plan`, `scene`, `render` and
        `tasks`.
        """
        played = self._play({i: Ask(name, args, kwargs) for i in range(self.num_envs)})
        return tuple(result.value for result in played.values())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of each world. See `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each world; a list or tuple holds one value for each, anything else is for all.

        A world that was built anew after a fault doesn't have it any more, and a server sets none.
        """
        each = self._each(values if isinstance(values, list | tuple) else [values] * self.num_envs, "value")
        self._play({i: Ask("set_wrapper_attr", (name, value)) for i, value in enumerate(each)})

    def render(self) -> tuple[Any, ...]:
        """What each world renders in its `render_mode`."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - as Gymnasium's
        """The seed of each world's generator."""
        return self.call("np_random_seed")

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Each world's generator; with backend `process` a copy."""
        return self.call("np_random")

    def close_extras(self, **kwargs: Any) -> None:
        """Close the worlds; `close` calls this once."""
        self._tidy()

    def _play(self, calls: Mapping[int, Call]) -> dict[int, Result]:
        """Results in the order of `calls`, carried out side by side; a reset that meets a fault is tried once more."""
        results = self._answers(calls)
        faults = [i for i, result in results.items() if isinstance(result.error, EnvFault)]
        if faults:
            results |= self._answers({i: calls[i] for i in faults if isinstance(calls[i], Reset)})
        played: dict[int, Result] = {}
        for i, call in calls.items():
            match results[i].error, call:
                case None, _:
                    played[i] = results[i]
                case EnvFault() as fault, Step():
                    played[i] = Result(i, self._seen[i], truncated=True, info={"fault": str(fault)})
                case EnvFault() as fault, _:
                    raise EnvFault(f"Environment {i} of {self.num_envs} broke at {call}: {fault}") from fault
                case error, _:
                    raise error
        return played

    def _answers(self, calls: Mapping[int, Call]) -> dict[int, Result]:
        results: dict[int, Result] = {}
        try:
            for i, call in calls.items():
                self._pool.submit(i, call)
            while len(results) < len(calls):
                results.update((result.slot, result) for result in self._pool.recv())
        except BaseException:  # Ctrl-C, a signal of the caller's: nobody will want these answers
            for i in calls:
                self._pool.replace(i)
            self._pool.recv(0)
            raise
        return results

    def _worlds(self) -> tuple[TextSpace, TextSpace, dict[str, Any], str | None]:
        """Spaces, metadata and render mode, once every world is made and they are found to be alike."""
        observations, actions = self.get_attr("observation_space"), self.get_attr("action_space")
        for spaces in (observations, actions):
            if different := [space for space in spaces if space != spaces[0]]:
                raise ValueError(f"The worlds of a vector have equal spaces, but here are {spaces[0]} and {different}.")
        return observations[0], actions[0], self.get_attr("metadata")[0], self.get_attr("render_mode")[0]

    def _remote_worlds(self, options: Mapping[str, Any]) -> tuple[TextSpace, TextSpace, dict[str, Any], str | None]:
        """The same where a server has the worlds: all under the contract, which says what a server can't be asked."""
        self.get_attr("instructions")
        spaces = TextSpace(MAX_OBSERVATION_CHARS), TextSpace(MAX_ACTION_CHARS)
        return *spaces, TextEnv.metadata, options.get("render_mode")

    def _chosen(self, mask: Any) -> list[int]:
        """The worlds of a `reset_mask`; without one, all."""
        if mask is None:
            return list(range(self.num_envs))
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise ValueError(f"A reset_mask is a numpy array of {self.num_envs} bool, not {mask!r}.")
        if not mask.any():
            raise ValueError("This reset_mask chooses no environment; set at least one to True.")
        return [int(i) for i in np.flatnonzero(mask)]

    def _each(self, values: Any, what: str) -> list[Any]:
        """One value for each world; a string or None is for all."""
        if values is None or isinstance(values, str):
            return [values] * self.num_envs
        if not isinstance(values, Sequence | np.ndarray) or len(values) != self.num_envs:
            raise ValueError(f"Give one {what} for all {self.num_envs} environments or a list of as many: {values!r}.")
        return list(values)


def _mode(mode: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        kinds = ", ".join(kind.value for kind in AutoresetMode)
        raise ValueError(f"There is no autoreset_mode {mode!r}; there are {kinds}.") from None


def _texts(actions: Any, count: int) -> list[str]:
    """The actions, if they are `count` strings."""
    if isinstance(actions, str) or not isinstance(actions, Sequence | np.ndarray):
        raise TypeError(f"Actions are a sequence of {count} strings, not {type(actions).__name__}.")
    if len(actions) != count:
        raise ValueError(f"There are {len(actions)} actions for {count} environments; give one for each.")
    texts: list[Any] = actions.tolist() if isinstance(actions, np.ndarray) else list(actions)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"An action is text (str), not {type(text).__name__}.")
    return texts
