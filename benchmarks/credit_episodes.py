"""Episodes of policies that mix an expert with random actions, the expert's distances to the goal, and a critic."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from agentgym_envs import EpisodeSpec, Policy, Reply, TurnContext, make, play_many, text_env
from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_trainer.algorithms.types import TokenBatch
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from numpy.typing import NDArray

Values = NDArray[np.float64]
Distance = Callable[[gymnasium.Env[str, str], Mapping[str, Any]], "int | None"]

GROUP = 8
"""Episodes of a group."""
_FEATURES = 512


def commands_left(env: gymnasium.Env[str, str], info: Mapping[str, Any]) -> int | None:
    """Return how many commands TextCraft's planner needs from the current inventory."""
    held = tuple(sorted(info["raw"]["inventory"].items()))
    return 0 if info["success"] else _plan_length(text_env(env).task.payload["goal"], held)


@cache
def _plan_length(goal: str, held: tuple[tuple[str, int], ...]) -> int:
    return len(plan(goal, dict(held)))


def turns_left(env: gymnasium.Env[str, str], info: Mapping[str, Any]) -> int | None:
    """Return how many turns the expert takes from the current state, or None if it doesn't reach the goal."""
    if info["success"]:
        return 0
    world = copy.deepcopy(text_env(env))
    for turn in range(1, _LONGEST + 1):
        _, _, terminated, truncated, after = world.step(world.oracle())
        if terminated or truncated:
            return turn if after["success"] else None
    return None


_LONGEST = 64


@dataclass(frozen=True, slots=True)
class World:
    """An environment with the distance to the goal that its expert knows."""

    env: str
    options: dict[str, Any]
    distance: Distance
    horizons: tuple[int, ...]
    groups: int
    """Groups of each condition."""


WORLDS = {
    "TextCraft": World("agentgym/TextCraft-v0", {"depth": (2, 4)}, commands_left, (8, 16), 32),
    "BabyAI": World(
        "agentgym/BabyAI-v0",
        {"levels": ("UnlockLocal", "OpenRedBlueDoors", "UnlockPickup"), "available_actions_in_text": False},
        turns_left,
        (10, 20),
        12,
    ),
}


# Episodes.


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn, with the expert's distance before and after it; None where it is unknown."""

    observation: str
    state: str
    action: str
    reward: float
    before: int | None
    after: int | None


class Mixture(Policy):
    """The expert with a probability of `rate`, and otherwise a random available action. Measures distances."""

    needs_env = True

    def __init__(self, rate: float, distance: Distance | None) -> None:
        self.name = f"mixture:{rate:g}"
        self._rate, self._distance = rate, distance
        self.distances: list[int | None] = []

    async def reply(self, context: TurnContext) -> Reply:
        """Draw an action. The number of random numbers doesn't depend on the state."""
        env = context.env
        assert env is not None
        self.distances.append(self._distance(env, context.info) if self._distance else None)
        lucky, place = context.rng.random(2)
        actions: list[str] = context.info["available_actions"]
        action = text_env(env).oracle() if lucky < self._rate else actions[int(place * len(actions))]
        return Reply(env.get_wrapper_attr("format")(action))


Group = list[list[PlayedTurn]]


def play_groups(
    world: World, rate: float, horizon: int, count: int, *, seed: int, measured: bool = True
) -> tuple[list[Group], float]:
    """Play `count` groups of random training tasks; also return the success rate. Distances are optional."""
    env = make(world.env, **world.options)
    tasks = text_env(env).tasks.train
    chosen = np.random.default_rng([seed, 7]).choice(len(tasks), size=count, replace=False)
    policy, groups, successes = Mixture(rate, world.distance if measured else None), list[Group](), list[bool]()
    for number in chosen:
        group: Group = []
        for sample in range(GROUP):
            policy.distances.clear()
            spec = EpisodeSpec(tasks[int(number)].id, sample, seed)
            (episode,) = play_many(env, policy, [spec], horizon=horizon)
            successes.append(bool(episode.success))
            # Without the last state of the simulator, the distance after the last turn is only known at the goal.
            ends = [*policy.distances[1:], 0 if episode.success else None]
            group.append(
                [
                    PlayedTurn(turn.observation, turn.state_key, turn.action or "", turn.reward, before, after)
                    for turn, before, after in zip(episode.turns, policy.distances, ends, strict=True)
                ]
            )
        groups.append(group)
    env.close()
    return groups, float(np.mean(successes))


def token_batch(groups: Sequence[Group]) -> TokenBatch:
    """Return the episodes as a batch in which each word of an action is a completion token."""
    trajectories: list[Trajectory] = []
    for number, group in enumerate(groups):
        for episode in group:
            turns = tuple(k for k, turn in enumerate(episode) for _ in turn.action.split())
            size = len(turns)
            trajectories.append(
                Trajectory(
                    (Segment((0,) * size, (True,) * size, (0.0,) * size, turns),),
                    rewards=tuple(turn.reward for turn in episode),
                    states=tuple(turn.state for turn in episode),
                    observations=tuple(("act", turn.observation) for turn in episode),
                    group=str(number),
                )
            )
    return make_batch(trajectories).tokens


# The critic: linear in hashed words of the first and the last observation, the turn and the action so far.


def features(groups: Sequence[Group], horizon: int) -> tuple[Values, Values]:
    """Return the features of the state before each completion token, N x F, and the return from there, N."""
    rows, returns = list[Values](), list[float]()
    for episode in (episode for group in groups for episode in group):
        for k, turn in enumerate(episode):
            words = [f"goal {word}" for word in episode[0].observation.splitlines()[-1].split()]
            words += [f"now {word}" for word in turn.observation.split()] + [f"turn {k}", f"left {horizon - k}"]
            acted = {word for earlier in episode[:k] for word in (f"did {earlier.action}",)}
            state = _hashed([*words, *acted])
            said = turn.action.split()
            rows += [state + _hashed([f"says {' '.join(said[:n])}"]) for n in range(len(said))]
            returns += [sum(later.reward for later in episode[k:])] * len(said)
    return np.array(rows), np.array(returns)


def _hashed(words: Sequence[str]) -> Values:
    row = np.zeros(_FEATURES)
    for word in words:
        row[zlib.crc32(word.encode()) % _FEATURES] += 1.0
    return row


def critic_values(groups: Sequence[Group], practice: Sequence[Group], horizon: int) -> Values:
    """Return the value before each completion token of `groups`, by ridge regression on episodes of `practice`."""
    known_NF, return_N = features(practice, horizon)
    known_NF, x_NF = (np.hstack([f, np.ones((len(f), 1))]) for f in (known_NF, features(groups, horizon)[0]))
    weights_F = np.linalg.solve(known_NF.T @ known_NF + 10.0 * np.eye(_FEATURES + 1), known_NF.T @ return_N)
    return np.asarray(x_NF @ weights_F, dtype=np.float64)
