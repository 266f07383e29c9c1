"""Overhead of `EnvPool` per step by backend, and the fastest backend of each environment, for `worlds.py`."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import agentgym_envs
import gymnasium
from agentgym_envs import RegisteredWorld
from agentgym_envs.pool import EnvPool, WorldSpec
from agentgym_envs.pool.backends import default_backend
from harness import isolated, process_tree, resident_mb

SLOTS = 8
LOCAL = ("inline", "thread", "process")
ENV = "agentgym/TextCraft-v0"
_ENDLESS = {"max_episode_steps": 10**9}
_ROUNDS = 20
_TURNS = 8
"""Maximum number of turns in `compare_backends`, the same in all slots, so that all end together."""

Plan = tuple[str, list[str]]
"""A task and the expert's actions."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time of a step beyond the environment's own."""

    backend: str
    slots: int
    us_per_step: float
    us_of_pool: float
    """Its part that a loop without pool doesn't take."""


@dataclass(frozen=True, slots=True)
class BackendSpeeds:
    """Speed of an environment with each backend."""

    world: str
    declared_ms: float
    measured_ms: float
    """Time of a step in the caller's thread."""
    steps_per_second: dict[str, float]
    megabytes: dict[str, float]
    """Memory of SLOTS slots."""
    default: str

    @property
    def mismatch(self) -> str:
        """How the measurements contradict what the environment declares."""
        found = [] if 1 / 3 < self.measured_ms / self.declared_ms < 3 else ["step_seconds is off"]
        best = max(self.steps_per_second, key=lambda backend: self.steps_per_second[backend])
        slow = self.steps_per_second[self.default] < 0.7 * self.steps_per_second[best]
        return ", ".join(found + [f"{best} is faster"] * slow)


# Overhead.


def measure_overhead(seconds: float) -> list[Overhead]:
    """Measure a loop without pool and each backend with 1 and 16 slots: the best of alternating rounds."""
    found: list[Overhead] = []
    for slots in (1, 16):
        with ExitStack() as stack:
            url = stack.enter_context(serve())
            backends = {backend: backend for backend in LOCAL} | {"http": url}
            loops = {"bare": _bare_loop(stack, slots)}
            loops |= {name: _pool_loop(stack, slots, backend) for name, backend in backends.items()}
            best = dict.fromkeys(loops, float("inf"))
            for _ in range(_ROUNDS):
                for name, loop in loops.items():
                    best[name] = min(best[name], _us_per_step(loop, slots, seconds / _ROUNDS / len(loops)))
        found += [Overhead(name, slots, us, us - best["bare"]) for name, us in best.items()]
    return found


@contextmanager
def serve() -> Generator[str]:
    """Run `serve` in a process, and yield its URL."""
    command = [str(Path(sys.executable).parent / "serve"), "--port", "0", "--workers", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            if found is None:
                raise RuntimeError(f"{' '.join(command)} printed no URL.")
            yield found[0]
        finally:
            process.terminate()


def _endless_plan() -> Plan:
    """Return a task, and actions that don't end it."""
    with closing(agentgym_envs.make(ENV)) as env:
        task = agentgym_envs.text_env(env).tasks.train[0]
        _, info = env.reset(options={"task": task.id})
        goal = f" {task.payload['goal']} using"
        return task.id, [action for action in info["available_actions"] if goal not in action]


def _bare_loop(stack: ExitStack, slots: int) -> Callable[[int], None]:
    """Return a function that plays a number of turns in environments without a pool."""
    task, actions = _endless_plan()
    envs = [stack.enter_context(closing(agentgym_envs.make(ENV, **_ENDLESS))) for _ in range(slots)]
    for env in envs:
        env.reset(options={"task": task})

    def play(turns: int) -> None:
        for action in itertools.islice(itertools.cycle(actions), turns):
            for env in envs:
                env.step(action)

    return play


def _pool_loop(stack: ExitStack, slots: int, backend: str) -> Callable[[int], None]:
    """Return the same for a pool: an action is sent to all slots, and all results are received."""
    task, actions = _endless_plan()
    pool = stack.enter_context(EnvPool(ENV, slots, backend, options=_ENDLESS))
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
    turns, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not turns:
        play(20)
        turns += 20
    return 1e6 * passed / (turns * slots)


def overhead_table(found: Sequence[Overhead]) -> list[dict[str, str]]:
    """Return a row for each backend and number of slots."""
    return [
        {
            "backend": row.backend,
            "slots": str(row.slots),
            "us/step": f"{row.us_per_step:.1f}",
            "of the pool": f"{row.us_of_pool:.1f}",
            "x bare": f"{row.us_per_step / (row.us_per_step - row.us_of_pool):.2f}",
        }
        for row in found
    ]


# Comparison of backends.


def compare_backends(world: RegisteredWorld, seconds: float) -> BackendSpeeds:
    """Play the expert's actions with each local backend, for about `seconds` each in a process of its own."""
    with closing(agentgym_envs.make(world.id)) as env:
        tasks = agentgym_envs.text_env(env).tasks.train.ids[:SLOTS]
        plans = [(task, list(itertools.islice(_expert(env, task), _TURNS))) for task in tasks]
        declared = agentgym_envs.text_env(env).step_seconds
    turns = min(len(actions) for _, actions in plans)
    plans = [(task, actions[:turns]) for task, actions in plans]
    alone, _ = isolated(_measure_backend, world.id, plans[:1], "inline", seconds)
    found = {backend: isolated(_measure_backend, world.id, plans, backend, seconds) for backend in LOCAL}
    return BackendSpeeds(
        world.id,
        1000 * declared,
        1000 / alone,
        {backend: rate for backend, (rate, _) in found.items()},
        {backend: megabytes for backend, (_, megabytes) in found.items()},
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


def _measure_backend(world: str, plans: Sequence[Plan], backend: str, seconds: float) -> tuple[float, float]:
    """Return the steps per second of all slots in the best round, without resets, and the memory of the slots in MB."""
    best, spent, before = 0.0, 0.0, resident_mb(process_tree())
    with EnvPool(world, len(plans), backend) as pool:
        while spent < seconds:
            for slot, (task, _) in enumerate(plans):
                pool.reset(slot, task)
            _receive(pool, len(plans))
            began = time.perf_counter()
            steps = _play(pool, plans)
            passed = time.perf_counter() - began
            best, spent = max(best, steps / passed), spent + passed
        return best, resident_mb(process_tree()) - before


def _play(pool: EnvPool, plans: Sequence[Plan]) -> int:
    """Play the actions, each slot independently of the others; return the number of steps."""
    left = [iter(actions) for _, actions in plans]
    for slot, actions in enumerate(left):
        pool.send(slot, next(actions))
    steps, open_slots = 0, len(plans)
    while open_slots:
        for result in pool.recv():
            if result.error is not None:
                raise result.error
            steps += 1
            action = next(left[result.slot], None)
            if action is None:
                open_slots -= 1
            else:
                pool.send(result.slot, action)
    return steps


def backend_table(found: Sequence[BackendSpeeds]) -> list[dict[str, str]]:
    """Return a row for each environment."""
    rows: list[dict[str, str]] = []
    for row in found:
        columns = {"environment": row.world, "declared ms": f"{row.declared_ms:.3g}", "ms": f"{row.measured_ms:.3g}"}
        for backend in LOCAL:
            columns |= {f"{backend} steps/s": f"{row.steps_per_second[backend]:,.0f}"}
            columns |= {f"{backend} MB": f"{row.megabytes[backend]:,.0f}"}
        rows.append(columns | {"default": row.default, "remark": row.mismatch})
    return rows
