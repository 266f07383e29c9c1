from __future__ import annotations

import gymnasium
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.babyai.actions import normalise
from agentgym_envs.worlds.babyai.env import BabyAI
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

KEYS = "babyai/test/UnlockLocal/1000000"


def world() -> gymnasium.Env[str, str]:
    return make("agentgym/BabyAI-v0", levels=["UnlockLocal", "GoToLocal", "PickupLoc", "KeyInBox"])


def until(env: gymnasium.Env[str, str], action: str) -> dict[str, object]:
    """Let the oracle play until `action` is on offer."""
    for _ in range(40):
        available = text_env(env)._available_actions() or []
        if any(action in offered for offered in available):
            return {"offered": next(offered for offered in available if action in offered)}
        env.step(text_env(env).oracle())
    raise AssertionError(f"{action} was never on offer")


def test_the_way_of_a_key() -> None:
    env = world()
    env.reset(options={"task": KEYS})
    picks = until(env, "pick up")
    observation, _, _, _, info = env.step(str(picks["offered"]).replace("pick up", "pickup").upper() + ".")
    assert info["valid"]
    assert "You are carrying a" in observation
    assert not any("pick up" in action for action in info["available_actions"])
    door = until(env, "toggle and go through")
    observation, reward, terminated, truncated, info = env.step(str(door["offered"]))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert "open door 1 right in front of you 1 steps away" in observation  # the mission ended the macro at the toggle


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
def test_refusals_say_why_and_cost_no_move(action: str, reason: str) -> None:
    env = world()
    _, before = env.reset(options={"task": KEYS})
    observation, reward, terminated, truncated, info = env.step(action)
    assert reason in observation
    assert "Available actions: [" in observation
    assert (reward, terminated, truncated, info["valid"]) == (0, False, False, False)
    assert info["state_key"] == before["state_key"]
    assert info["raw"]["moves"] == 0


def test_a_locked_door_asks_for_its_key() -> None:
    env = world()
    for seed in range(1_000_000, 1_000_016):
        _, info = env.reset(options={"task": f"babyai/test/UnlockLocal/{seed}"})
        locked = [a for a in info["available_actions"] if a.startswith("go to") and "locked" in a]
        if locked:
            observation, *_, info = env.step(locked[0].replace("go to", "toggle and go through"))
            assert "it is locked, and you don't carry a" in observation
            assert not info["valid"]
            return
    raise AssertionError("no locked door in sight at the start of any task")


def test_every_offered_action_is_carried_out() -> None:
    env = world()
    for task in text_env(env).tasks.test[:12]:
        _, info = env.reset(options={"task": task.id})
        for action in info["available_actions"]:
            _, before = env.reset(options={"task": task.id})
            *_, after = env.step(action)
            assert after["valid"], action
            assert after["raw"]["moves"] > before["raw"]["moves"]


def test_minigrids_limit_stops_a_macro_action() -> None:
    env = world()
    _, info = env.reset(options={"task": "babyai/test/PickupLoc/1000000"})
    limit = info["raw"]["max_moves"]
    assert isinstance(limit, int)
    for _ in range(limit - 1):
        *_, terminated, truncated, info = env.step("turn left")
        assert not (terminated or truncated)
    far = [action for action in info["available_actions"] if action.startswith("go to")]
    *_, terminated, truncated, info = env.step(far[-1])
    assert (terminated, truncated, info["raw"]["moves"]) == (False, True, limit)
    moves = env.step("turn left")[4]["raw"]["moves"]
    assert moves == limit


EXPLORER = BabyAI(levels="PickupLoc")


@given(
    st.lists(
        st.text()
        | st.sampled_from(
            ["go to", "turn left", " Move  forward.", "pickup red ball 1", "toggle and go through \ud800", "drop"]
        )
    )
)
def test_any_text_is_answered(actions: list[str]) -> None:
    _, info = EXPLORER.reset(options={"task": "babyai/train/PickupLoc/3"})
    for action in actions:
        offered = normalise(action) in info["available_actions"]
        observation, _, over, _, info = EXPLORER.step(action)
        assert observation in EXPLORER.observation_space
        assert info["valid"] == offered
        if over:
            break
