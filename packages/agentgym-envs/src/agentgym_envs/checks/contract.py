"""Checks of the `TextEnv` contract on top of Gymnasium's `check_env`, also for third-party environments."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from agentgym_envs.agents.formats import Bare
from agentgym_envs.checks.functions import call_problem, function_problems
from agentgym_envs.checks.processes import NotAlike, check_elsewhere
from agentgym_envs.core.feedback import InvalidFeedback
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.core.text_env import Malformed, TextEnv

INFO_KEYS = {"task_id", "success", "score", "valid", "available_actions", "state_key", "raw"}
_UNKNOWN = "xyzzy"
_INVALID_ACTIONS = ("", " ", "\x00", _UNKNOWN, "🦆" * 50, "a\nb", "<|im_end|>", "9" * 4000, "\ud800")
_LISTED = 8
"""The number of available actions to play per task."""


class ContractError(AssertionError):
    """A violation of the contract of `TextEnv`."""


@dataclass(frozen=True, slots=True)
class Check:
    """A part of the contract."""

    name: str
    """What is checked, as in "the oracle solves its tasks"."""
    run: Callable[[], None]
    """Checks it. Raises ContractError, or any exception of the environment."""


def check_text_env(
    env: gymnasium.Env[str, str], *, tasks: int = 5, max_oracle_steps: int = 500, processes: bool = True
) -> None:
    """Check an environment against the contract, and leave it open.

    Plays the first tasks of each split with the oracle, twice, with invalid actions, and with the actions that the
    environment lists as available. The functions must be mentioned in the instructions, have valid schemas, and express
    all of these actions. Then plays the tasks in two other processes, which have different hash seeds and list
    directories in opposite orders, and in which nothing may be written to stdout or stderr. For an environment that no
    other process can import, because it is defined in a script, a notebook or a function, a warning replaces this part.

    Args:
        env: An environment from `gymnasium.make`.
        tasks: The number of tasks to play per split, from the first on.
        max_oracle_steps: The number of actions within which the oracle must succeed.
        processes: Whether to run the checks in other processes. Each process starts the simulator once more.

    Raises:
        ContractError: if the contract is violated; the message names the rule and the task.
    """
    for check in contract_checks(env, tasks=tasks, max_oracle_steps=max_oracle_steps, processes=processes):
        try:
            check.run()
        except (InvalidFeedback, NotAlike) as error:
            raise ContractError(str(error)) from error


def contract_checks(
    env: gymnasium.Env[str, str], *, tasks: int = 5, max_oracle_steps: int = 500, processes: bool = True
) -> list[Check]:
    """Return the parts of `check_text_env`, to run one after the other; the arguments are the same."""
    world = text_env(env)

    def gymnasium_check() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(world)

    def each(check: Callable[[str], None]) -> Callable[[], None]:
        def run() -> None:
            for split in SPLITS:
                for task_id in islice(world.tasks.split(split).ids, tasks):
                    check(task_id)

        return run

    played, written = Counter[str](), set[str]()
    checks = [
        Check("Gymnasium's check_env passes without warnings", gymnasium_check),
        Check("tasks have unique ids in disjoint splits, and instructions", lambda: _check_tasks(world)),
        Check("a task repeats byte for byte", each(lambda task: _check_repeatable(world, task))),
        Check("the oracle solves its tasks", each(lambda task: _check_oracle(world, task, max_oracle_steps))),
        Check("any text is an action", each(lambda task: _check_invalid_actions(world, task))),
        Check("available actions are understood", each(lambda task: _check_available(world, task, played))),
        Check("functions have valid schemas, and the instructions mention them", lambda: _check_functions(world)),
        Check("available actions are function calls and back", each(lambda task: _check_calls(world, task, written))),
    ]
    if processes:
        checks.append(Check("other processes see the same, on other hash seeds", lambda: check_elsewhere(world, tasks)))
    return checks


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)


def _check_tasks(world: TextEnv) -> None:
    tasks = world.tasks
    _demand(len(tasks.train) > 0 and len(tasks.test) > 0, "The train and test splits need at least one task each.")
    for split, other in combinations(SPLITS, 2):
        shared = set(tasks.split(split).ids) & set(tasks.split(other).ids)
        _demand(not shared, f"{split.capitalize()} and {other} share tasks: {sorted(shared)[:3]}.")
    for split in SPLITS:
        ids = tasks.split(split).ids
        _demand(len(set(ids)) == len(ids), f"The {split} split has duplicate task ids.")
    _demand(tasks.train[:2].ids == tasks.train.ids[:2], "A slice of the tasks has different ids from the tasks.")
    for split in filter(tasks.split, SPLITS):
        task = tasks.split(split)[0]
        _demand(tasks[task.id] == task, f"{task.id}: looking up this id returns a different task.")
        _demand(task.split == split, f"{task.id} has split {task.split!r} instead of {split!r}.")
        _demand(bool(task.category), f"{task.id} has no category.")
    try:
        instructions = world.instructions
    except FileNotFoundError as error:
        raise ContractError(str(error)) from error
    _demand(instructions.strip() != "", "The environment has no instructions.")


def _check_repeatable(world: TextEnv, task_id: str) -> None:
    first: list[Any] = [world.reset(seed=1, options={"task": task_id})]
    actions = [world.oracle(), _UNKNOWN]
    first.extend(map(world.step, actions))
    second = [world.reset(seed=1, options={"task": task_id}), *map(world.step, actions)]
    _demand(first == second, f"{task_id}: the same task, seed and actions produced two different transcripts.")
    observation, info = first[0]
    _demand(observation in world.observation_space, f"{task_id}: the first observation is not in observation_space.")
    _check_info(task_id, info)
    _demand(info["task_id"] == task_id, f"reset was called with task {task_id} but started {info['task_id']}.")


def _check_info(task_id: str, info: dict[str, Any]) -> None:
    _demand(info.keys() >= INFO_KEYS, f"{task_id}: info lacks {sorted(INFO_KEYS - info.keys())}.")
    _demand(isinstance(info["state_key"], str), f"{task_id}: state_key is not a str.")
    _demand(_is_json(info["raw"]), f"{task_id}: raw is not JSON: {info['raw']}.")


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_oracle(world: TextEnv, task_id: str, limit: int) -> None:
    _, info = world.reset(seed=1, options={"task": task_id})
    total = 0.0
    for _ in range(limit):
        action = world.oracle()
        _check_reasons(world, task_id, action)
        _check_scene(world, task_id, action)
        parsed = Bare(world).parse(action)
        is_line = parsed == action and not isinstance(parsed, Malformed)  # Malformed compares equal to its reply
        _demand(is_line, f"{task_id}: the oracle's action {action!r} isn't one line.")
        problem = call_problem(world, action)
        _demand(not problem, f"{task_id}, the oracle's action: {problem}.")
        _, reward, terminated, truncated, info = world.step(action)
        _check_info(task_id, info)
        total += float(reward)
        _demand(info["valid"], f"{task_id}: the oracle's own action {action!r} was not understood.")
        _demand(math.isclose(total, info["score"], abs_tol=1e-9), f"{task_id}: rewards sum to {total}, not the score.")
        _demand(not (terminated and truncated), f"{task_id}: both terminated and truncated are True.")
        if terminated or truncated:
            break
    _demand(info["success"], f"{task_id}: the oracle did not succeed within {limit} actions.")
    _, reward, *_ = world.step("after the end")
    _demand(reward == 0, f"{task_id}: the reward after the end was {reward} instead of 0.")


def _check_reasons(world: TextEnv, task_id: str, action: str) -> None:
    thought, plan = world.oracle_thought(), world.oracle_plan()
    _demand(len(thought.splitlines()) < 2, f"{task_id}: the oracle's thought {thought!r} isn't one line.")
    again = (world.oracle(), world.oracle_thought(), world.oracle_plan())
    _demand(
        again == (action, thought, plan), f"{task_id}: oracle_thought or oracle_plan changed what the oracle returns."
    )


def _check_scene(world: TextEnv, task_id: str, action: str) -> None:
    scene = world.scene()
    if scene is not None:
        _demand(_is_json(scene), f"{task_id}: the scene is not JSON: {scene}.")
        _demand(bool(scene.get("kind")), f"{task_id}: the scene has no kind.")
    _demand(world.scene() == scene, f"{task_id}: two scenes of the same state differ.")
    _demand(world.oracle() == action, f"{task_id}: scene changes the oracle's action.")


def _check_invalid_actions(world: TextEnv, task_id: str) -> None:
    world.reset(seed=1, options={"task": task_id})
    for text in (*_INVALID_ACTIONS, Malformed("no action here", "Say an action.")):
        observation, _, terminated, truncated, info = world.step(text)
        _demand(
            observation in world.observation_space,
            f"{task_id}: the observation after {text[:20]!r} is not in observation_space.",
        )
        _demand(not info["valid"], f"{task_id}: {text[:20]!r} counts as a valid action.")
        _demand(len(observation.strip()) > 0, f"{task_id}: the observation after {text[:20]!r} is empty.")
        if terminated or truncated:
            return


def _check_available(world: TextEnv, task_id: str, played: Counter[str]) -> None:
    """Play available actions, in each state the one that was `played` least often, so that all get their turn."""
    _, info = world.reset(seed=1, options={"task": task_id})
    _demand(
        world.lists_actions or info["available_actions"] is None,
        f"{task_id}: info['available_actions'] is a list, but lists_actions is False.",
    )
    for _ in range(_LISTED):
        if not info["available_actions"]:
            return
        action = min(info["available_actions"], key=played.__getitem__)
        played[action] += 1
        observation, _, terminated, truncated, info = world.step(action)
        if not info["valid"] and not (terminated or truncated):  # impossible now, but it must have been understood
            after_unknown, _, terminated, truncated, info = world.step(_UNKNOWN)
            _demand(
                observation.replace(action, _UNKNOWN) != after_unknown,
                f"{task_id}: {action!r} is in info['available_actions'], but the environment doesn't understand it: "
                f"{observation[:200]!r}.",
            )
        if terminated or truncated:
            return


def _check_functions(world: TextEnv) -> None:
    problems = list(function_problems(world.functions, world.instructions))
    _demand(not problems, " ".join(problems))


def _check_calls(world: TextEnv, task_id: str, written: set[str]) -> None:
    """Write the actions that are available on the oracle's way as calls, each one once: `written` has those before."""
    _, info = world.reset(seed=1, options={"task": task_id})
    for _ in range(_LISTED):
        for action in info["available_actions"] or ():
            if action not in written:
                written.add(action)
                problem = call_problem(world, action)
                _demand(not problem, f"{task_id}, info['available_actions']: {problem}.")
        if not world.has_oracle:
            return
        _, _, terminated, truncated, info = world.step(world.oracle())
        if terminated or truncated:
            return
