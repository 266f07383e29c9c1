"""The embedded task set: an expert who searches answers nearly everything, and who doesn't search, nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from agentgym_envs import Task, make, text_env
from agentgym_envs.worlds.searchqa.env import SearchQA


def success(world: SearchQA, tasks: list[Task], act: Callable[[Task], str]) -> float:
    """Share of `tasks` that a player solves who does what `act` says."""
    right = 0
    for task in tasks:
        _, info = world.reset(options={"task": task.id})
        terminated = False
        while not terminated:
            _, _, terminated, _, info = world.step(act(task))
        right += info["success"]
    return right / len(tasks)


def world() -> SearchQA:
    made = text_env(make("agentgym/SearchQA-v0"))
    assert isinstance(made, SearchQA)
    return made


def test_the_oracle_answers_through_the_embedded_retriever() -> None:
    searcher = world()
    assert success(searcher, list(searcher.tasks.test[:500]), lambda _: searcher.oracle()) >= 0.97


def test_guessing_without_a_search_gets_nowhere() -> None:
    guesser = world()
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for task in guesser.tasks.train:
        answers[task.category][task.payload["answers"][0]] += 1
    favourite = {category: counted.most_common(1)[0][0] for category, counted in answers.items()}
    tasks = list(guesser.tasks.test)
    assert success(guesser, tasks, lambda _: "<answer>unknown</answer>") == 0.0
    assert success(guesser, tasks, lambda task: f"<answer>{favourite[task.category]}</answer>") < 0.01
