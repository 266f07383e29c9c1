"""What commands do, and what an agent hears when they can't."""

from __future__ import annotations

import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.core.text_env import TextEnv
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


@pytest.fixture
def world() -> TextEnv:
    world = text_env(make("agentgym/TextCraft-v0"))
    world.reset(options={"task": next(task.id for task in world.tasks if task.payload["goal"] == "cake")})
    return world


def say(world: TextEnv, *actions: str) -> tuple[str, bool]:
    """The answer to the last action, and whether it was valid."""
    observation, info = "", {"valid": False}
    for action in actions:
        observation, *_, info = world.step(action)
    return observation, info["valid"]


def test_gather_craft_and_look(world: TextEnv) -> None:
    assert say(world, "inventory") == ("Inventory: You are not carrying anything.", True)
    assert say(world, "get 2 oak log") == ("Got 2 oak log", True)
    assert say(world, "craft 4 oak planks using 1 oak log") == ("Crafted 4 oak planks", True)
    assert say(world, "inventory") == ("Inventory: [oak log] (1) [oak planks] (4)", True)


@pytest.mark.parametrize(
    "spelling",
    [
        "GET 2 Oak Log",
        "  get  2   oak log ",
        "get 2 oak_log",
        "get 2 minecraft:oak_log",
        "get 2 oak log.",
        "get 02 oak log",
    ],
)
def test_harmless_spellings(world: TextEnv, spelling: str) -> None:
    assert say(world, spelling) == ("Got 2 oak log", True)


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
def test_what_stands_for_several_items_gathers_the_plainest(world: TextEnv, name: str, item: str) -> None:
    assert say(world, f"get 2 {name}") == (f"Got 2 {item}", True)


def test_a_tag_of_the_game_names_what_is_used(world: TextEnv) -> None:
    say(world, "get 3 logs", "get 1 coals", "get 6 bamboo")
    say(world, *["craft 1 stick using 2 bamboo"] * 3)
    assert say(world, "craft 1 campfire using 3 stick, 1 coals, 3 logs") == ("Crafted 1 campfire", True)


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
def test_any_planks_will_do_and_may_be_mixed(world: TextEnv, using: str) -> None:
    say(world, "get 1 oak log", "get 1 birch log")
    say(world, "craft 4 oak planks using 1 oak log", "craft 4 birch planks using 1 birch logs")
    assert say(world, f"craft 1 crafting table using {using}") == ("Crafted 1 crafting table", True)


def test_a_set_takes_what_others_leave(world: TextEnv) -> None:
    say(world, "get 1 oak log", "get 1 birch log", "craft 4 oak planks using 1 oak log")
    say(world, "craft 4 birch planks using 1 birch log", "craft 4 stick using 1 planks, 1 birch planks")
    assert say(world, "inventory")[0] == "Inventory: [birch planks] (2) [oak planks] (4) [stick] (4)"


def test_amounts_scale_together(world: TextEnv) -> None:
    say(world, "get 3 oak log")
    assert say(world, "craft 12 oak planks using 3 oak log") == ("Crafted 12 oak planks", True)
    assert say(world, "craft 8 stick using 4 oak planks") == ("Crafted 8 stick", True)


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
def test_refusals_say_why_and_change_nothing(world: TextEnv, action: str, answer: str) -> None:
    say(world, "get 1 oak log", "craft 4 oak planks using 1 oak log", "craft 1 oak pressure plate using 2 oak planks")
    held = say(world, "inventory")
    assert held == ("Inventory: [oak planks] (2) [oak pressure plate] (1)", True)
    assert say(world, action) == (answer, False)
    assert say(world, "inventory") == held


def test_a_long_unknown_word_is_not_repeated_whole(world: TextEnv) -> None:
    assert len(say(world, "get 1 " + "x" * 4000)[0]) < 200


def test_the_end_and_what_it_pays(world: TextEnv) -> None:
    actions = ["get 3 milk bucket", "get 3 wheat", "get 1 egg", "get 2 sugar cane", "craft 2 sugar using 2 sugar cane"]
    assert [world.step(action)[1] for action in actions] == [0.0] * 5
    _, reward, terminated, truncated, info = world.step("craft 1 cake using 1 egg, 3 milk bucket, 2 sugar, 3 wheat")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] and info["score"] == 1.0
    assert info["raw"] == {"inventory": {"cake": 1}, "depth": 2}


def test_the_state_key_knows_the_inventory_and_not_the_way(world: TextEnv) -> None:
    keys = []
    for order in (("get 1 egg", "get 2 wheat"), ("get 2 wheat", "inventory", "get 1 egg")):
        world.reset(options={"task": world.task.id})
        say(world, *order)
        keys.append(world.step("nonsense")[4]["state_key"])
    assert keys[0] == keys[1] != world.reset(options={"task": world.task.id})[1]["state_key"]


_WORDS = ["get", "craft", "using", "inventory", "1", "4", ",", ".", "stick", "planks", "oak_log", "\ud800"]
_WORLD = text_env(make("agentgym/TextCraft-v0"))


@given(st.text() | st.lists(st.sampled_from(_WORDS)).map(" ".join))
def test_any_text_is_answered(action: str) -> None:
    _WORLD.reset(options={"task": _WORLD.tasks.train.ids[0]})
    observation, *_ = _WORLD.step(action)
    assert observation in _WORLD.observation_space
    assert observation
