from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.checks.contract import check_text_env
from agentgym_envs.worlds.babyai.env import BabyAI
from agentgym_envs.worlds.babyai.expert import Expert

SMALL = ["GoToRedBallNoDists", "GoToObj", "PickupLoc"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_contract_holds() -> None:
    check_text_env(make("agentgym/BabyAI-v0"), tasks=6)


def test_importing_the_package_imports_no_minigrid() -> None:
    result = python("import sys, agentgym_envs; print('minigrid' in sys.modules, 'pygame' in sys.modules)")
    assert result.stdout.split() == ["False", "False"], result.stderr


def test_nothing_is_printed() -> None:
    result = python(
        "import agentgym_envs\n"
        "env = agentgym_envs.make('agentgym/BabyAI-v0', levels='GoToImpUnlock', render_mode='rgb_array')\n"
        "for seed in range(8): env.reset(seed=seed)\n"
        "env.render()"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_minigrid_the_command_is_named() -> None:
    result = python(
        "import sys; sys.modules['minigrid'] = None\n"
        "import agentgym_envs, gymnasium\n"
        "try: agentgym_envs.make('agentgym/BabyAI-v0')\n"
        "except gymnasium.error.DependencyNotInstalled as missing: print(missing)"
    )
    assert "uv sync --inexact --package agentgym-envs --extra babyai" in result.stdout, result.stderr


def test_levels_are_chosen_by_either_name() -> None:
    world = BabyAI(levels=["BabyAI-PickupLoc-v0", "GoToRedBall"])
    assert {task.payload["level"] for task in world.tasks} == {"GoToRedBall", "PickupLoc"}
    assert world.tasks.test[0].id == "babyai/test/GoToRedBall/1000000"
    assert BabyAI(levels="GoToObjS6").tasks.train.ids == BabyAI(levels="BabyAI-GoToObjS6-v1").tasks.train.ids


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no level 'GoToRedBal'.*Did you mean GoToRedBall"):
        BabyAI(levels=["GoToRedBal"])
    with pytest.raises(ValueError, match="levels is empty"):
        BabyAI(levels=[])


def test_success_pays_one_or_minigrids_discounted_reward() -> None:
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


def test_the_list_of_actions_can_be_left_out() -> None:
    observation, info = BabyAI(levels=SMALL, available_actions_in_text=False).reset(seed=0)
    assert "Available actions" not in observation
    assert info["available_actions"]


def test_pictures() -> None:
    env = make("agentgym/BabyAI-v0", levels="GoToObj", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    text = make("agentgym/BabyAI-v0", levels="GoToObj", render_mode="ansi")
    observation, _ = text.reset(seed=0)
    assert text.render() == observation


@pytest.mark.parametrize(("words", "first"), [(", then ", 0), (" after you ", 1)])
def test_order_words_stay_in_the_goal_and_say_what_comes_first(words: str, first: int) -> None:
    world = BabyAI(levels="OpenDoorsOrderN4")
    found = 0
    for task in world.tasks.train[:30]:
        goal = world.reset(options={"task": task.id})[0].splitlines()[0].removeprefix("Your goal: ")
        if words in goal:
            part = goal.split(words)[first]
            assert world._simulator.clauses()[0].surface(world._simulator.level) in part
            found += 1
    assert found


def test_a_used_simulator_is_as_good_as_a_new_one() -> None:
    used = BabyAI(levels="MiniBossLevel")
    for seed in range(6):
        used.reset(seed=seed)
    for task in used.tasks.test[:4]:
        fresh = BabyAI(levels="MiniBossLevel")
        for _ in range(2):
            assert used.reset(options={"task": task.id}) == fresh.reset(options={"task": task.id})
            assert [used.step(used.oracle()) for _ in range(5)] == [fresh.step(fresh.oracle()) for _ in range(5)]


def test_the_state_key_tells_states_apart_and_not_times() -> None:
    world = BabyAI(levels="PickupLoc")
    _, start = world.reset(options={"task": "babyai/train/PickupLoc/0"})
    keys = [start["state_key"], *(world.step("turn left")[4]["state_key"] for _ in range(4))]
    assert len(set(keys[:4])) == 4
    assert keys[4] == keys[0]


def test_the_state_key_holds_the_progress_of_a_sequence() -> None:
    world = BabyAI(levels="GoToSeqS5R2")
    found = 0
    for task in world.tasks.train[:20]:
        world.reset(options={"task": task.id})
        for _ in range(10):
            simulator = world._simulator
            instructions = simulator._instructions
            before, done = simulator.state(), vars(instructions).get("a_done")
            if done is False:
                vars(instructions)["a_done"] = "success"
                assert simulator.state() != before
                vars(instructions)["a_done"] = done
                found += 1
            world.step(world.oracle())
    assert found


def test_closing_twice_is_harmless_and_worlds_are_apart() -> None:
    one, two = BabyAI(levels=SMALL), BabyAI(levels=SMALL)
    task = {"task": "babyai/train/PickupLoc/5"}
    first, _ = one.reset(options=task)
    two.reset(options=task)
    two.step("turn left")
    assert one.render() is None
    assert first == two.reset(options=task)[0]
    one.close()
    one.close()
    assert two.step("turn left")[4]["valid"]
    assert one.reset(options=task)[0] == first


def test_the_expert_names_what_it_does_not_know() -> None:
    world = BabyAI(levels="GoToObj")
    world.reset(seed=0)
    world._simulator.clauses = lambda: [object()]  # type: ignore[method-assign,return-value]
    with pytest.raises(NotImplementedError, match="doesn't support Minigrid's object"):
        Expert(world._simulator, world._view, world._menu, world._seen).intent()
