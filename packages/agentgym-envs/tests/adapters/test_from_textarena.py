"""Tests of TextArena's games as environments: `uv run --with textarena pytest -k textarena`."""

from __future__ import annotations

import random
import re
from importlib.util import find_spec

import pytest
from agentgym_envs import make, text_env

if find_spec("textarena") is None:
    pytest.skip("textarena is missing: uv run --with textarena pytest -k textarena", allow_module_level=True)

GAME = "textarena:GuessTheNumber-v0"


def guesses(env: object, observation: str) -> list[str]:
    """Play by halving the interval, and return the observations."""
    low, high, seen, done = 1, 20, [observation], False
    while not done:
        guess = (low + high) // 2
        observation, _, done, _, _ = env.step(f"I say [{guess}].")  # type: ignore[attr-defined]
        low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
        seen.append(observation)
    return seen


def test_a_game_is_played_to_its_end() -> None:
    env = make(GAME)
    task = text_env(env).tasks.test[3]
    observation, info = env.reset(options={"task": task.id})
    assert "Guess The Number" in observation
    assert info["available_actions"] is None
    wrong, _, over, _, info = env.step("five")
    assert ("invalid move" in wrong, over, info["valid"]) == (True, False, False)
    seen = guesses(env, observation)
    assert re.search("Congratulations", seen[-1])
    assert "I say" not in "".join(seen)  # the player's own words aren't repeated
    env.step("[1]")
    env.close()


def test_games_in_turns_do_not_touch_each_other_or_the_global_generator() -> None:
    first, second, alone = (make(GAME) for _ in range(3))
    ids = text_env(alone).tasks.train.ids[:2]
    expected = [guesses(alone, alone.reset(options={"task": task})[0]) for task in ids]
    random.seed(5)
    before = random.getstate()
    begun = [env.reset(options={"task": task})[0] for env, task in zip((first, second), ids, strict=True)]
    assert [guesses(env, text) for env, text in zip((first, second), begun, strict=True)] == expected
    assert random.getstate() == before
    for env in (first, second, alone):
        env.close()


def test_too_many_mistakes_end_the_game_without_success() -> None:
    env = make(GAME)
    env.reset()
    env.step("five")
    _, reward, terminated, _, info = env.step("six")
    assert (terminated, info["success"], info["valid"], reward) == (True, False, False, info["score"])
    env.close()


def test_unknown_games_and_games_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match="Similar ones: GuessTheNumber-v0"):
        make("textarena:GuessTheNumbers-v0")
    env = make("textarena:TicTacToe-v0")
    with pytest.raises(ValueError, match="isn't a game for one player"):
        env.reset()
    env.close()
