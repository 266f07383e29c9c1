"""The law for worlds, on top of Gymnasium's `check_env`: what a third party runs against a world of their own."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from itertools import combinations, islice
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from agentgym_envs.agents.formats import Bare
from agentgym_envs.checks.processes import NotAlike, check_elsewhere
from agentgym_envs.core.action_schema import action_of, call_for
from agentgym_envs.core.feedback import InvalidFeedback
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.core.text_env import Malformed, TextEnv

INFO_KEYS = {"task_id", "success", "score", "valid", "available_actions", "state_key", "raw"}
_UNKNOWN = "xyzzy"
_NONSENSE = ("", " ", "\x00", _UNKNOWN, "🦆" * 50, "a\nb", "<|im_end|>", "9" * 4000, "\ud800")
_LISTED = 8
"""Available actions that are played in each task."""


class ContractError(AssertionError):
    """A world breaks the contract of `TextEnv`."""


def check_text_env(
    env: gymnasium.Env[str, str], *, tasks: int = 5, max_oracle_steps: int = 500, processes: bool = True
) -> None:
    """Check a world against the contract. Leaves the world open.

    Plays `tasks` tasks of each split with the oracle, twice, with nonsense, and with the actions that it lists as
    available; then again in two other processes, which have different hash seeds and list directories in opposite
    orders, and in which nothing may be written to stdout or stderr. A world that no other process can import, because
    it is defined in a script, a notebook or a function, is not played there: a warning says so.

    Args:
        env: As `gymnasium.make` returns it.
        tasks: How many tasks of each split are played, from the first on.
        max_oracle_steps: After how many actions an oracle counts as lost.
        processes: Whether to play in the other processes, too. Each starts the world's simulator once more.

    Raises:
        ContractError: naming the clause that is broken and the task it was broken on.
    """
    world = text_env(env)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(world)
        _check_tasks(world)
        listed = Counter[str]()
        for split in SPLITS:
            for task in islice(world.tasks.split(split), tasks):
                _check_repeatable(world, task.id)
                _check_oracle(world, task.id, max_oracle_steps)
                _check_nonsense(world, task.id)
                _check_available(world, task.id, listed)
        if processes:
            check_elsewhere(world, tasks)
    except (InvalidFeedback, NotAlike) as error:
        raise ContractError(str(error)) from error


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise ContractError(sentence)


def _check_tasks(world: TextEnv) -> None:
    tasks = world.tasks
    _demand(len(tasks.train) > 0 and len(tasks.test) > 0, "Both splits need at least one task.")
    for split, other in combinations(SPLITS, 2):
        shared = set(tasks.split(split).ids) & set(tasks.split(other).ids)
        _demand(not shared, f"{split.capitalize()} and {other} share tasks: {sorted(shared)[:3]}.")
    for split in SPLITS:
        ids = tasks.split(split).ids
        _demand(len(set(ids)) == len(ids), f"Task ids of the {split} split repeat.")
    _demand(tasks.train[:2].ids == tasks.train.ids[:2], "A slice of the tasks has other ids than the tasks.")
    for split in filter(tasks.split, SPLITS):
        task = tasks.split(split)[0]
        _demand(tasks[task.id] == task, f"{task.id}: looking the task up by its id gives another one.")
        _demand(task.split == split, f"{task.id} says it is of split {task.split}, not {split}.")
        _demand(bool(task.category), f"{task.id} has no category.")
    try:
        instructions = world.instructions
    except FileNotFoundError as error:
        raise ContractError(str(error)) from error
    _demand(instructions.strip() != "", "The world has no instructions.")


def _check_repeatable(world: TextEnv, task_id: str) -> None:
    first: list[Any] = [world.reset(seed=1, options={"task": task_id})]
    actions = [world.oracle(), _UNKNOWN]
    first.extend(map(world.step, actions))
    second = [world.reset(seed=1, options={"task": task_id}), *map(world.step, actions)]
    _demand(first == second, f"{task_id}: the same task, seed and actions gave two different transcripts.")
    observation, info = first[0]
    _demand(observation in world.observation_space, f"{task_id}: the first observation is not in observation_space.")
    _check_info(task_id, info)
    _demand(info["task_id"] == task_id, f"Asked for {task_id}, got {info['task_id']}.")


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
        is_line = parsed == action and not isinstance(parsed, Malformed)  # which equals the reply it was made of
        _demand(is_line, f"{task_id}: the oracle's action {action!r} isn't one line.")
        _demand(_is_call(world, action), f"{task_id}: none of the world's functions is the oracle's action {action!r}.")
        _, reward, terminated, truncated, info = world.step(action)
        _check_info(task_id, info)
        total += float(reward)
        _demand(info["valid"], f"{task_id}: the oracle's own action {action!r} was not understood.")
        _demand(math.isclose(total, info["score"], abs_tol=1e-9), f"{task_id}: rewards sum to {total}, not the score.")
        _demand(not (terminated and truncated), f"{task_id}: terminated and truncated at once.")
        if terminated or truncated:
            break
    _demand(info["success"], f"{task_id}: the oracle did not succeed within {limit} actions.")
    _, reward, *_ = world.step("after the end")
    _demand(reward == 0, f"{task_id}: {reward} was paid after the end.")


def _check_reasons(world: TextEnv, task_id: str, action: str) -> None:
    thought, plan = world.oracle_thought(), world.oracle_plan()
    _demand(len(thought.splitlines()) < 2, f"{task_id}: the oracle's thought {thought!r} isn't one line.")
    again = (world.oracle(), world.oracle_thought(), world.oracle_plan())
    _demand(again == (action, thought, plan), f"{task_id}: asking the oracle for its reasons changed what it says.")


def _check_scene(world: TextEnv, task_id: str, action: str) -> None:
    scene = world.scene()
    if scene is not None:
        _demand(_is_json(scene), f"{task_id}: the scene is not JSON: {scene}.")
        _demand(bool(scene.get("kind")), f"{task_id}: the scene doesn't say of which kind it is.")
    _demand(world.scene() == scene, f"{task_id}: two scenes of the same state differ.")
    _demand(world.oracle() == action, f"{task_id}: drawing the scene changed what the oracle says.")


def _is_call(world: TextEnv, action: str) -> bool:
    call = call_for(world.functions, action)
    return call.name in {function.name for function in world.functions} and action_of(world.functions, call) == action


def _check_nonsense(world: TextEnv, task_id: str) -> None:
    world.reset(seed=1, options={"task": task_id})
    for text in (*_NONSENSE, Malformed("no action here", "Say an action.")):
        observation, _, terminated, truncated, info = world.step(text)
        _demand(observation in world.observation_space, f"{task_id}: the answer to {text[:20]!r} is not in the space.")
        _demand(not info["valid"], f"{task_id}: {text[:20]!r} counts as a valid action.")
        _demand(len(observation.strip()) > 0, f"{task_id}: no word of help on {text[:20]!r}.")
        if terminated or truncated:
            return


def _check_available(world: TextEnv, task_id: str, played: Counter[str]) -> None:
    """Play listed actions, in each state the one that was `played` least often so far: all of them come up."""
    _, info = world.reset(seed=1, options={"task": task_id})
    for _ in range(_LISTED):
        if not info["available_actions"]:
            return
        action = min(info["available_actions"], key=played.__getitem__)
        played[action] += 1
        answer, _, terminated, truncated, info = world.step(action)
        if not info["valid"] and not (terminated or truncated):  # it may be short of something; but it is understood
            to_nonsense, _, terminated, truncated, info = world.step(_UNKNOWN)
            _demand(
                answer.replace(action, _UNKNOWN) != to_nonsense,
                f"{task_id}: {action!r} is in info['available_actions'], but the world doesn't understand it: "
                f"{answer[:200]!r}.",
            )
        if terminated or truncated:
            return
