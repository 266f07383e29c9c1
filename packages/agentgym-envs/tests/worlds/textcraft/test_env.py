"""Tests of TextCraft's commands, their error messages, rewards and state keys."""

from __future__ import annotations

import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.core.text_env import TextEnv
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


@pytest.fixture
def env() -> TextEnv:
    env = text_env(make("agentgym/TextCraft-v0"))
    env.reset(options={"task": next(task.id for task in env.tasks if task.payload["goal"] == "cake")})
    return env


def step(env: TextEnv, *actions: str) -> tuple[str, bool]:
    """Return the observation after the last action, and whether the action was valid."""
    observation, info = "", {"valid": False}
    for action in actions:
        observation, *_, info = env.step(action)
    return observation, info["valid"]


def test_get_craft_and_inventory(env: TextEnv) -> None:
    assert step(env, "inventory") == ("Inventory: You are not carrying anything.", True)
    assert step(env, "get 2 oak log") == ("Got 2 oak log", True)
    assert step(env, "craft 4 oak planks using 1 oak log") == ("Crafted 4 oak planks", True)
    assert step(env, "inventory") == ("Inventory: [oak log] (1) [oak planks] (4)", True)


@pytest.mark.parametrize(
    "spelling",
    [
        "GET 2 Oak Log",
        "  get  2   oak log ",
        "get 2 oak_log",
        "get 2 minecraft:oak_log",
        "get 2 oak log.",
        "get 2 oak log .",
        "get 02 oak log",
    ],
)
def test_spelling_variants_are_accepted(env: TextEnv, spelling: str) -> None:
    assert step(env, spelling) == ("Got 2 oak log", True)


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("oak logs", "oak log"),
        ("warped stems", "warped stem"),
        ("logs", "oak log"),
        ("charcoal or coal", "coal"),
        ("coals", "coal"),
        ("stone tool materials", "blackstone"),
        ("stone crafting materials", "blackstone"),
        ("soul fire base blocks", "soul sand"),
    ],
)
def test_set_names_gather_the_plainest_item(env: TextEnv, name: str, item: str) -> None:
    assert step(env, f"get 2 {name}") == (f"Got 2 {item}", True)


def test_tags_can_name_ingredients(env: TextEnv) -> None:
    step(env, "get 3 logs", "get 1 coals", "get 6 bamboo")
    step(env, *["craft 1 stick using 2 bamboo"] * 3)
    assert step(env, "craft 1 campfire using 3 stick, 1 coals, 3 logs") == ("Crafted 1 campfire", True)


@pytest.mark.parametrize(
    "using",
    [
        "4 oak planks",
        "2 oak planks, 2 birch planks",
        "1 oak planks,1 oak planks,2 birch_planks",
        "4 planks",
        "3 planks, 1 birch planks",
    ],
)
def test_planks_of_any_wood_can_be_mixed(env: TextEnv, using: str) -> None:
    step(env, "get 1 oak log", "get 1 birch log")
    step(env, "craft 4 oak planks using 1 oak log", "craft 4 birch planks using 1 birch logs")
    assert step(env, f"craft 1 crafting table using {using}") == ("Crafted 1 crafting table", True)


def test_set_ingredient_uses_remaining_items(env: TextEnv) -> None:
    step(env, "get 1 oak log", "get 1 birch log", "craft 4 oak planks using 1 oak log")
    step(env, "craft 4 birch planks using 1 birch log", "craft 4 stick using 1 planks, 1 birch planks")
    assert step(env, "inventory")[0] == "Inventory: [birch planks] (2) [oak planks] (4) [stick] (4)"


def test_recipe_amounts_can_be_multiplied(env: TextEnv) -> None:
    step(env, "get 3 oak log")
    assert step(env, "craft 12 oak planks using 3 oak log") == ("Crafted 12 oak planks", True)
    assert step(env, "craft 8 stick using 4 oak planks") == ("Crafted 8 stick", True)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (
            "get 2 oak logg",
            "There is no item 'oak logg'. Did you mean oak log or dark oak log or oak wood?",
        ),
        ("get 2 zzzzzz", "There is no item 'zzzzzz'. Names are as in the crafting commands."),
        (
            "get 2 purpur block or purpur pillar",
            "'purpur block or purpur pillar' stands for any of purpur block, purpur pillar. Name one of them.",
        ),
        (
            "get 2 stick",
            "stick can't be gathered, it has to be crafted: craft 1 stick using 2 bamboo; craft 4 stick using 2 planks",
        ),
        ("get oak log", "Say how many in 'get oak log': a number comes before every item."),
        ("get 0 oak log", "An amount is a number from 1 to 999, not 0."),
        ("get 1000 oak log", "An amount is a number from 1 to 999, not 1000."),
        ("craft 1 bowl", "Say what to craft it from: craft 1 bowl using N ITEM, N ITEM."),
        ("craft 1 string using 1 stick", "string can't be crafted, it has to be gathered: get 1 string"),
        (
            "craft 4 bowl using 3 string",
            "bowl can't be crafted from that. What makes it: craft 4 bowl using 3 planks",
        ),
        (
            "craft 3 bowl using 3 oak planks",
            "The amounts are wrong. They go together like this, or a multiple: craft 4 bowl using 3 planks",
        ),
        (
            "craft 8 bowl using 3 oak planks, 2 birch planks",
            "The amounts are wrong. They go together like this, or a multiple: craft 4 bowl using 3 planks",
        ),
        ("craft 4 bowl using 3 oak planks", "There is not enough: 3 oak planks needed, 2 held."),
        ("craft 4 bowl using 3 planks", "There is not enough: 3 planks needed, 2 held."),
        (
            "craft 3 oak fence using 4 oak planks, 2 stick",
            "There is not enough: 4 oak planks needed, 2 held; 2 stick needed, 0 held.",
        ),
        (
            "craft 4 bowl using 2 planks,, 1 planks",
            "There is an empty place in what you use. Write: using N ITEM, N ITEM.",
        ),
        (
            "open the door",
            "I don't understand 'open the door'. "
            "The commands are: get N ITEM; craft N ITEM using N ITEM, N ITEM; inventory.",
        ),
    ],
)
def test_invalid_actions_explain_why_and_change_nothing(env: TextEnv, action: str, answer: str) -> None:
    step(env, "get 1 oak log", "craft 4 oak planks using 1 oak log", "craft 1 oak pressure plate using 2 oak planks")
    inventory = step(env, "inventory")
    assert inventory == ("Inventory: [oak planks] (2) [oak pressure plate] (1)", True)
    assert step(env, action) == (answer, False)
    assert step(env, "inventory") == inventory


def test_long_unknown_item_is_abbreviated(env: TextEnv) -> None:
    assert len(step(env, "get 1 " + "x" * 4000)[0]) < 200


def test_crafting_the_goal_gives_reward_1(env: TextEnv) -> None:
    actions = ["get 3 milk bucket", "get 3 wheat", "get 1 egg", "get 2 sugar cane", "craft 2 sugar using 2 sugar cane"]
    assert [env.step(action)[1] for action in actions] == [0.0] * 5
    _, reward, terminated, truncated, info = env.step("craft 1 cake using 1 egg, 3 milk bucket, 2 sugar, 3 wheat")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] and info["score"] == 1.0
    assert info["raw"] == {"inventory": {"cake": 1}, "depth": 2}


def test_state_key_depends_on_inventory_not_history(env: TextEnv) -> None:
    keys = []
    for order in (("get 1 egg", "get 2 wheat"), ("get 2 wheat", "inventory", "get 1 egg")):
        env.reset(options={"task": env.task.id})
        step(env, *order)
        keys.append(env.step("nonsense")[4]["state_key"])
    assert keys[0] == keys[1] != env.reset(options={"task": env.task.id})[1]["state_key"]


_WORDS = ["get", "craft", "using", "inventory", "1", "4", ",", ".", "stick", "planks", "oak_log", "\ud800"]
_ENV = text_env(make("agentgym/TextCraft-v0"))


@given(st.text() | st.lists(st.sampled_from(_WORDS)).map(" ".join))
def test_any_text_gets_an_observation(action: str) -> None:
    _ENV.reset(options={"task": _ENV.tasks.train.ids[0]})
    observation, *_ = _ENV.step(action)
    assert observation in _ENV.observation_space
    assert observation
