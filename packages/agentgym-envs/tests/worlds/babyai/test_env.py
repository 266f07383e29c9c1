"""Tests of `BabyAI`: options, rewards, rendering, state keys and imports."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.checks.contract import check_text_env
from agentgym_envs.worlds.babyai.env import BabyAI
from agentgym_envs.worlds.babyai.expert import Expert
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

SMALL = ["GoToRedBallNoDists", "GoToObj", "PickupLoc"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_contract_holds() -> None:
    check_text_env(make("agentgym/BabyAI-v0"), tasks=6)


def test_package_import_does_not_import_minigrid() -> None:
    result = run_python("import sys, agentgym_envs; print('minigrid' in sys.modules, 'pygame' in sys.modules)")
    assert result.stdout.split() == ["False", "False"], result.stderr


def test_environment_prints_nothing() -> None:
    result = run_python(
        "import agentgym_envs\n"
        "env = agentgym_envs.make('agentgym/BabyAI-v0', levels='GoToImpUnlock', render_mode='rgb_array')\n"
        "for seed in range(8): env.reset(seed=seed)\n"
        "env.render()"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_reset_leaves_stdout_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def observed(level: RoomGridLevel, **options: Any) -> Any:
        outputs.append(sys.stdout)
        return reset(level, **options)

    reset, outputs = RoomGridLevel.reset, list[Any]()
    monkeypatch.setattr(RoomGridLevel, "reset", observed)
    make("agentgym/BabyAI-v0").reset(seed=0)
    assert outputs == [sys.stdout]


def test_missing_minigrid_names_the_install_command() -> None:
    result = run_python(
        "import sys; sys.modules['minigrid'] = None\n"
        "import agentgym_envs, gymnasium\n"
        "try: agentgym_envs.make('agentgym/BabyAI-v0')\n"
        "except gymnasium.error.DependencyNotInstalled as missing: print(missing)"
    )
    assert "uv sync --inexact --package agentgym-envs --extra babyai" in result.stdout, result.stderr


def test_levels_accept_short_and_full_names() -> None:
    env = BabyAI(levels=["BabyAI-PickupLoc-v0", "GoToRedBall"])
    assert {task.payload["level"] for task in env.tasks} == {"GoToRedBall", "PickupLoc"}
    assert env.tasks.test[0].id == "babyai/test/GoToRedBall/1000000"
    assert BabyAI(levels="GoToObjS6").tasks.train.ids == BabyAI(levels="BabyAI-GoToObjS6-v1").tasks.train.ids


def test_unknown_level_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"no level 'GoToRedBal'.*Did you mean GoToRedBall"):
        BabyAI(levels=["GoToRedBal"])
    with pytest.raises(ValueError, match="levels is empty"):
        BabyAI(levels=[])


def test_success_scores_1_or_minigrids_discounted_reward() -> None:
    scores: dict[bool, float] = {}
    for discount in (False, True):
        env = make("agentgym/BabyAI-v0", levels="GoToObj", time_discount=discount)
        _, info = env.reset(options={"task": "babyai/test/GoToObj/1000001"})
        over = False
        while not over:
            _, reward, over, _, info = env.step(text_env(env).oracle())
            scores[discount] = float(reward)
        assert info["score"] == scores[discount]
        assert scores[discount] == (1 - 0.9 * info["raw"]["moves"] / info["raw"]["max_moves"] if discount else 1.0)


def test_action_list_can_be_omitted_from_the_text() -> None:
    observation, info = BabyAI(levels=SMALL, available_actions_in_text=False).reset(seed=0)
    assert "Available actions" not in observation
    assert info["available_actions"]


def test_render_returns_an_image_or_text() -> None:
    env = make("agentgym/BabyAI-v0", levels="GoToObj", render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    text = make("agentgym/BabyAI-v0", levels="GoToObj", render_mode="ansi")
    observation, _ = text.reset(seed=0)
    assert text.render() == observation


@pytest.mark.parametrize(("connective", "first"), [(", then ", 0), (" after you ", 1)])
def test_goal_keeps_the_order_of_subgoals(connective: str, first: int) -> None:
    env = BabyAI(levels="OpenDoorsOrderN4")
    found = 0
    for task in env.tasks.train[:30]:
        goal = env.reset(options={"task": task.id})[0].splitlines()[0].removeprefix("Your goal: ")
        if connective in goal:
            part = goal.split(connective)[first]
            assert env._simulator.clauses()[0].surface(env._simulator.level) in part
            found += 1
    assert found


def test_reused_simulator_matches_a_new_one() -> None:
    used = BabyAI(levels="MiniBossLevel")
    for seed in range(6):
        used.reset(seed=seed)
    for task in used.tasks.test[:4]:
        fresh = BabyAI(levels="MiniBossLevel")
        for _ in range(2):
            assert used.reset(options={"task": task.id}) == fresh.reset(options={"task": task.id})
            assert [used.step(used.oracle()) for _ in range(5)] == [fresh.step(fresh.oracle()) for _ in range(5)]


def test_state_key_depends_on_state_not_time() -> None:
    env = BabyAI(levels="PickupLoc")
    _, start = env.reset(options={"task": "babyai/train/PickupLoc/0"})
    keys = [start["state_key"], *(env.step("turn left")[4]["state_key"] for _ in range(4))]
    assert len(set(keys[:4])) == 4
    assert keys[4] == keys[0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_is_in_the_same_state(copied: Any) -> None:
    env = make("agentgym/BabyAI-v0")
    for seed in range(5):
        env.reset(seed=seed)
        other = copied(env)
        keys = [each.step(action)[4]["state_key"] for action in ("turn left", "turn right") for each in (env, other)]
        assert keys[0] == keys[1] and keys[2] == keys[3]


def test_state_key_includes_progress_within_a_sequence() -> None:
    env = BabyAI(levels="GoToSeqS5R2")
    found = 0
    for task in env.tasks.train[:20]:
        env.reset(options={"task": task.id})
        for _ in range(10):
            simulator = env._simulator
            instructions = simulator._instructions
            before, done = simulator.state(), vars(instructions).get("a_done")
            if done is False:
                vars(instructions)["a_done"] = "success"
                assert simulator.state() != before
                vars(instructions)["a_done"] = done
                found += 1
            env.step(env.oracle())
    assert found


def test_close_twice_works_and_environments_are_independent() -> None:
    closed, other = BabyAI(levels=SMALL), BabyAI(levels=SMALL)
    task = {"task": "babyai/train/PickupLoc/5"}
    first, _ = closed.reset(options=task)
    other.reset(options=task)
    other.step("turn left")
    assert closed.render() is None
    assert first == other.reset(options=task)[0]
    closed.close()
    closed.close()
    assert other.step("turn left")[4]["valid"]
    assert closed.reset(options=task)[0] == first


def test_expert_rejects_an_unsupported_instruction() -> None:
    env = BabyAI(levels="GoToObj")
    env.reset(seed=0)
    env._simulator.clauses = lambda: [object()]  # type: ignore[method-assign,return-value]
    with pytest.raises(NotImplementedError, match="doesn't support Minigrid's object"):
        Expert(env._simulator, env._view, env._menu, env._seen).intent()
