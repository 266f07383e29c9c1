"""Tests of BabyAI's actions: macro actions, refusals, and the limit on moves."""

from __future__ import annotations

import gymnasium
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.babyai.actions import normalise
from agentgym_envs.worlds.babyai.env import BabyAI
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

UNLOCK_TASK = "babyai/test/UnlockLocal/1000000"


def make_env() -> gymnasium.Env[str, str]:
    return make("agentgym/BabyAI-v0", levels=["UnlockLocal", "GoToLocal", "PickupLoc", "KeyInBox"])


def play_until(env: gymnasium.Env[str, str], action: str) -> dict[str, object]:
    """Step the oracle's actions until an available action contains `action`."""
    for _ in range(40):
        available = text_env(env)._available_actions() or []
        if any(action in offered for offered in available):
            return {"offered": next(offered for offered in available if action in offered)}
        env.step(text_env(env).oracle())
    raise AssertionError(f"{action} never became available")


def test_pick_up_key_and_open_locked_door() -> None:
    env = make_env()
    env.reset(options={"task": UNLOCK_TASK})
    pick_up = play_until(env, "pick up")
    observation, _, _, _, info = env.step(str(pick_up["offered"]).replace("pick up", "pickup").upper() + " .")
    assert info["valid"]
    assert "You are carrying a" in observation
    assert not any("pick up" in action for action in info["available_actions"])
    toggle = play_until(env, "toggle and go through")
    observation, reward, terminated, truncated, info = env.step(str(toggle["offered"]))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert "open door 1 right in front of you 1 steps away" in observation  # success ended the macro action


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("drop", "you are not carrying anything"),
        ("toggle", "there is no door or box right in front of you"),
        ("go to pink ball 1", "You see no 'pink ball 1'"),
        ("open the door", "is not an action. The actions are: turn left"),
        ("", "is not an action"),
    ],
)
def test_invalid_actions_explain_why_and_cost_no_move(action: str, reason: str) -> None:
    env = make_env()
    _, before = env.reset(options={"task": UNLOCK_TASK})
    observation, reward, terminated, truncated, info = env.step(action)
    assert reason in observation
    assert "Available actions: [" in observation
    assert (reward, terminated, truncated, info["valid"]) == (0, False, False, False)
    assert info["state_key"] == before["state_key"]
    assert info["raw"]["moves"] == 0


def test_locked_door_needs_its_key() -> None:
    env = make_env()
    for seed in range(1_000_000, 1_000_016):
        _, info = env.reset(options={"task": f"babyai/test/UnlockLocal/{seed}"})
        locked = [a for a in info["available_actions"] if a.startswith("go to") and "locked" in a]
        if locked:
            observation, *_, info = env.step(locked[0].replace("go to", "toggle and go through"))
            assert "it is locked, and you don't carry a" in observation
            assert not info["valid"]
            return
    raise AssertionError("no locked door in sight at the start of any task")


def test_every_available_action_is_carried_out() -> None:
    env = make_env()
    for task in text_env(env).tasks.test[:12]:
        _, info = env.reset(options={"task": task.id})
        for action in info["available_actions"]:
            _, before = env.reset(options={"task": task.id})
            *_, after = env.step(action)
            assert after["valid"], action
            assert after["raw"]["moves"] > before["raw"]["moves"]


def test_minigrids_limit_stops_a_macro_action() -> None:
    env = make_env()
    _, info = env.reset(options={"task": "babyai/test/PickupLoc/1000000"})
    limit = info["raw"]["max_moves"]
    assert isinstance(limit, int)
    for _ in range(limit - 1):
        *_, terminated, truncated, info = env.step("turn left")
        assert not (terminated or truncated)
    go_to = [action for action in info["available_actions"] if action.startswith("go to")]
    *_, terminated, truncated, info = env.step(go_to[-1])
    assert (terminated, truncated, info["raw"]["moves"]) == (False, True, limit)
    moves = env.step("turn left")[4]["raw"]["moves"]
    assert moves == limit


ENV = BabyAI(levels="PickupLoc")


@given(
    st.lists(
        st.text()
        | st.sampled_from(
            ["go to", "turn left", " Move  forward.", "pickup red ball 1", "toggle and go through \ud800", "drop"]
        )
    )
)
def test_any_text_gets_an_observation(actions: list[str]) -> None:
    _, info = ENV.reset(options={"task": "babyai/train/PickupLoc/3"})
    for action in actions:
        offered = normalise(action) in info["available_actions"]
        observation, _, over, _, info = ENV.step(action)
        assert observation in ENV.observation_space
        assert info["valid"] == offered
        if over:
            break
