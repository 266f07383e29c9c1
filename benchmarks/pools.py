"""What `EnvPool` costs per step in each backend, and which backend suits which world; `worlds.py` runs both.

`overhead` plays the same TextCraft actions in a bare loop and through the pool. `suits` plays the expert's games of
each world in SLOTS slots of each local backend, each slot as soon as it can, and compares what a step takes with what
the world says of itself in `step_seconds`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import agentgym_envs
import gymnasium
import psutil
import server  # the file beside this one
from agentgym_envs import RegisteredWorld
from agentgym_envs.pool import EnvPool, WorldSpec
from agentgym_envs.pool.backends import default_backend

SLOTS = 8
LOCAL = ("inline", "thread", "process")
CHEAP = "agentgym/TextCraft-v0"
_ENDLESS = {"max_episode_steps": 10**9}
_ROUNDS = 20
_TURNS = 8
"""Turns of a game at most: all slots play games of one length, so that none is left over at the end."""


Game = tuple[str, list[str]]
"""A task and the expert's actions."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a step takes beyond the world's own time."""

    backend: str
    slots: int
    us_per_step: float
    us_of_pool: float
    """Of it, what a bare loop over the same actions doesn't take."""


@dataclass(frozen=True, slots=True)
class Suits:
    """How fast a world is in each backend."""

    world: str
    declared_ms: float
    measured_ms: float
    """A step of one world in this thread."""
    steps_per_second: dict[str, float]
    megabytes: dict[str, float]
    """Memory that SLOTS slots need."""
    default: str

    @property
    def wrong(self) -> str:
        """What the world should say of itself, if it says something else."""
        found = [] if 1 / 3 < self.measured_ms / self.declared_ms < 3 else ["step_seconds is off"]
        best = max(self.steps_per_second, key=lambda backend: self.steps_per_second[backend])
        slow = self.steps_per_second[self.default] < 0.7 * self.steps_per_second[best]
        return ", ".join(found + [f"{best} is faster"] * slow)


# Overhead.


def overhead(seconds: float) -> list[Overhead]:
    """Each backend with 1 and 16 slots, and the bare loop; the best of some rounds, in which all take turns."""
    found: list[Overhead] = []
    for slots in (1, 16):
        with ExitStack() as stack:
            bare = _bare(stack, slots)
            url, _ = stack.enter_context(server.ours(0))
            backends: dict[str, str] = {**{backend: backend for backend in LOCAL}, "http": url}
            ways = {name: _pooled(stack, slots, backend) for name, backend in backends.items()}
            took: dict[str, list[float]] = {name: [] for name in ("bare", *ways)}
            for _ in range(_ROUNDS):
                for name, way in {"bare": bare, **ways}.items():
                    took[name].append(_us_per_step(way, slots, seconds / _ROUNDS / len(took)))
        best = {name: min(times) for name, times in took.items()}
        found += [Overhead(name, slots, us, us - best["bare"]) for name, us in best.items()]
    return found


def _actions() -> tuple[str, list[str]]:
    """A task, and actions that don't end it."""
    with closing(agentgym_envs.make(CHEAP)) as env:
        task = agentgym_envs.text_env(env).tasks.train[0]
        _, info = env.reset(options={"task": task.id})
        goal = f" {task.payload['goal']} using"
        return task.id, [action for action in info["available_actions"] if goal not in action]


def _bare(stack: ExitStack, slots: int) -> Callable[[int], None]:
    """A round of so many turns in each of some worlds, in a loop."""
    task, actions = _actions()
    envs = [stack.enter_context(closing(agentgym_envs.make(CHEAP, **_ENDLESS))) for _ in range(slots)]
    for env in envs:
        env.reset(options={"task": task})

    def play(turns: int) -> None:
        for action in itertools.islice(itertools.cycle(actions), turns):
            for env in envs:
                env.step(action)

    return play


def _pooled(stack: ExitStack, slots: int, backend: str) -> Callable[[int], None]:
    """The same through a pool: all slots are sent an action, all results are received."""
    task, actions = _actions()
    pool = stack.enter_context(EnvPool(CHEAP, slots, backend, options=_ENDLESS))
    for slot in range(slots):
        pool.reset(slot, task)
    _receive(pool, slots)

    def play(turns: int) -> None:
        for action in itertools.islice(itertools.cycle(actions), turns):
            for slot in range(slots):
                pool.send(slot, action)
            _receive(pool, slots)

    return play


def _receive(pool: EnvPool, count: int) -> None:
    while count:
        results = pool.recv()
        count -= len(results)
        for result in results:
            if result.error is not None:
                raise result.error


def _us_per_step(play: Callable[[int], None], slots: int, seconds: float) -> float:
    turns, until = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while (now := time.perf_counter()) < until or not turns:
        play(20)
        turns += 20
    return 1e6 * (now - began) / (turns * slots)


# Which backend suits a world.


def suits(world: RegisteredWorld, seconds: float) -> Suits:
    """Play the world's games in each local backend, for about `seconds` each."""
    with closing(agentgym_envs.make(world.id)) as env:
        tasks = agentgym_envs.text_env(env).tasks.train.ids[:SLOTS]
        games = [(task, list(itertools.islice(_expert(env, task), _TURNS))) for task in tasks]
        declared = agentgym_envs.text_env(env).step_seconds
    length = min(len(actions) for _, actions in games)
    games = [(task, actions[:length]) for task, actions in games]
    alone, _ = _apart(world.id, games[:1], "inline", seconds)
    figures = {backend: _apart(world.id, games, backend, seconds) for backend in LOCAL}
    return Suits(
        world.id,
        1000 * declared,
        1000 / alone,
        {backend: rate for backend, (rate, _) in figures.items()},
        {backend: megabytes for backend, (_, megabytes) in figures.items()},
        default_backend(WorldSpec(world.id)),
    )


def _expert(env: gymnasium.Env[str, str], task: str) -> Iterator[str]:
    env.reset(options={"task": task})
    over = False
    while not over:
        action = agentgym_envs.text_env(env).oracle()
        yield action
        _, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated


def _apart(world: str, games: Sequence[Game], backend: str, seconds: float) -> tuple[float, float]:
    """`_rate` in a fresh process, so that none inherits another's memory or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_rate, world, games, backend, seconds).result()


def _rate(world: str, games: Sequence[Game], backend: str, seconds: float) -> tuple[float, float]:
    """Steps per second of all slots together, resets not counted, and the megabytes they need. Of many rounds the best
    one counts: whatever else the machine does only takes away.
    """
    best, spent, before = 0.0, 0.0, memory()
    with EnvPool(world, len(games), backend) as pool:
        while spent < seconds:
            for slot, (task, _) in enumerate(games):
                pool.reset(slot, task)
            _receive(pool, len(games))
            began = time.perf_counter()
            steps = _play(pool, games)
            took = time.perf_counter() - began
            best, spent = max(best, steps / took), spent + took
        needed = memory() - before
    return best, needed / 2**20


def _play(pool: EnvPool, games: Sequence[Game]) -> int:
    """The games, each slot as soon as it can; how many steps they were."""
    left = [iter(actions) for _, actions in games]
    for slot, actions in enumerate(left):
        pool.send(slot, next(actions))
    steps, on_their_way = 0, len(games)
    while on_their_way:
        for result in pool.recv():
            if result.error is not None:
                raise result.error
            steps += 1
            action = next(left[result.slot], None)
            if action is None:
                on_their_way -= 1
            else:
                pool.send(result.slot, action)
    return steps


def memory() -> int:
    """Resident bytes of this process and its descendants."""
    this = psutil.Process()
    return sum(process.memory_info().rss for process in (this, *this.children(recursive=True)))
