from __future__ import annotations

import numpy as np
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.babyai import tasks

# Levels where no move is irrevocable as long as no box is opened.
FORGIVING = ("GoToLocal", "GoToRedBall", "PickupLoc", "GoToDoor", "UnlockLocal", "PutNextLocal", "Open", "GoToSeqS5R2")


@pytest.mark.parametrize("level", FORGIVING)
def test_the_oracle_finds_on_after_moves_of_others(level: str) -> None:
    """Every third action is anybody's; the oracle is asked in whatever state that leaves."""
    env = make("agentgym/BabyAI-v0", levels=level)
    rng = np.random.default_rng(3)
    for task in text_env(env).tasks.train[:8]:
        _, info = env.reset(options={"task": task.id})
        terminated = truncated = False
        turn = 0
        while not (terminated or truncated):
            turn += 1
            others = [action for action in info["available_actions"] if action != "toggle"]
            action = others[rng.integers(len(others))] if turn % 3 == 0 else text_env(env).oracle()
            *_, terminated, truncated, info = env.step(action)
            assert info["valid"]
        assert info["success"], task.id


@pytest.mark.parametrize("level", list(tasks.all_levels()))
def test_the_oracle_answers_in_any_state(level: str) -> None:
    env = make("agentgym/BabyAI-v0", levels=level)
    rng = np.random.default_rng(5)
    _, info = env.reset(options={"task": text_env(env).tasks.test.ids[0]})
    for _ in range(25):
        assert text_env(env).oracle() in info["available_actions"]
        action = info["available_actions"][rng.integers(len(info["available_actions"]))]
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return


def test_the_oracle_explores_and_does_not_know_what_it_has_not_seen() -> None:
    """Out of the same sight and mission comes the same action, wherever the goal really is."""
    env = make("agentgym/BabyAI-v0", levels="GoToRedBallNoDists")
    said: dict[str, set[str]] = {}
    for task in text_env(env).tasks.train:
        observation, _ = env.reset(options={"task": task.id})
        if "red ball 1" not in observation:
            world = text_env(env)
            view = (
                observation + str(vars(world)["_simulator"].position) + str(vars(world)["_simulator"].level.agent_dir)
            )
            said.setdefault(view, set()).add(world.oracle())
    assert said
    assert all(len(actions) == 1 for actions in said.values())
