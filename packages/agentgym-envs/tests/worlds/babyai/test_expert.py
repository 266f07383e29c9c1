"""Tests of BabyAI's expert: recovery from random actions, and exploration without hidden knowledge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.babyai import tasks

# Levels where no move is irrevocable as long as no box is opened.
REVERSIBLE = ("GoToLocal", "GoToRedBall", "PickupLoc", "GoToDoor", "UnlockLocal", "PutNextLocal", "Open", "GoToSeqS5R2")

# Levels of these with narrow rooms, or with much to put next to each other in little space.
CRAMPED = ("KeyCorridorS3R1", "KeyCorridorS3R2", "PutNextLocalS5N3", "PutNextS4N1", "SynthS5R2", "MiniBossLevel")


@pytest.mark.parametrize("level", REVERSIBLE)
def test_oracle_recovers_from_random_actions(level: str) -> None:
    """Every third action is random; the oracle recovers from any state that it leads to."""
    env = make("agentgym/BabyAI-v0", levels=level)
    rng = np.random.default_rng(3)
    for task in text_env(env).tasks.train[:8]:
        _, info = env.reset(options={"task": task.id})
        terminated = truncated = False
        turn = 0
        while not (terminated or truncated):
            turn += 1
            candidates = [action for action in info["available_actions"] if action != "toggle"]
            action = candidates[rng.integers(len(candidates))] if turn % 3 == 0 else text_env(env).oracle()
            *_, terminated, truncated, info = env.step(action)
            assert info["valid"]
        assert info["success"], task.id


@pytest.mark.parametrize("level", CRAMPED)
def test_oracle_recovers_from_a_random_beginning_in_a_cramped_place(level: str) -> None:
    """Thirty random actions, then the oracle alone, which must not repeat itself forever."""
    env: Any = text_env(make("agentgym/BabyAI-v0", levels=level))
    rng = np.random.default_rng(3)
    for task in env.tasks.train[:25]:
        _, info = env.reset(options={"task": task.id})
        env._simulator.level.max_steps = 10_000  # Minigrid's limit may be too low for a bad beginning
        over, turn = False, 0
        while not over and turn < 150:
            candidates = [action for action in info["available_actions"] if action != "toggle"]
            action = candidates[rng.integers(len(candidates))] if turn < 30 else env.oracle()
            *_, over, _, info = env.step(action)
            turn += 1
        assert over, task.id


@pytest.mark.parametrize("level", list(tasks.all_levels()))
def test_oracle_gives_an_available_action_in_any_state(level: str) -> None:
    env = make("agentgym/BabyAI-v0", levels=level)
    rng = np.random.default_rng(5)
    _, info = env.reset(options={"task": text_env(env).tasks.test.ids[0]})
    for _ in range(25):
        assert text_env(env).oracle() in info["available_actions"]
        action = info["available_actions"][rng.integers(len(info["available_actions"]))]
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return


def test_oracle_uses_only_what_it_has_seen() -> None:
    """The same view and mission give the same action, wherever the goal really is."""
    env = make("agentgym/BabyAI-v0", levels="GoToRedBallNoDists")
    actions_by_view: dict[str, set[str]] = {}
    for task in text_env(env).tasks.train:
        observation, _ = env.reset(options={"task": task.id})
        if "red ball 1" not in observation:
            oracle = text_env(env)
            view = (
                observation + str(vars(oracle)["_simulator"].position) + str(vars(oracle)["_simulator"].level.agent_dir)
            )
            actions_by_view.setdefault(view, set()).add(oracle.oracle())
    assert actions_by_view
    assert all(len(actions) == 1 for actions in actions_by_view.values())
