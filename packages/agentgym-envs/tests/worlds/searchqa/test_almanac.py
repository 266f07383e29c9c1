"""Tests that SearchQA's embedded tasks are solved by searching, and not by guessing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from agentgym_envs import Task, make, text_env
from agentgym_envs.worlds.searchqa.env import SearchQA


def success_rate(env: SearchQA, tasks: list[Task], act: Callable[[Task], str]) -> float:
    """Return the share of `tasks` that are solved by the actions that `act` returns."""
    solved = 0
    for task in tasks:
        _, info = env.reset(options={"task": task.id})
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(act(task))
        solved += info["success"]
    return solved / len(tasks)


def make_env() -> SearchQA:
    env = text_env(make("agentgym/SearchQA-v0"))
    assert isinstance(env, SearchQA)
    return env


def test_oracle_answers_with_the_embedded_retriever() -> None:
    env = make_env()
    assert success_rate(env, list(env.tasks.test[:500]), lambda _: env.oracle()) >= 0.97


def test_guessing_without_a_search_fails() -> None:
    env = make_env()
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for task in env.tasks.train:
        answers[task.category][task.payload["answers"][0]] += 1
    most_common = {category: counter.most_common(1)[0][0] for category, counter in answers.items()}
    tasks = list(env.tasks.test)
    assert success_rate(env, tasks, lambda _: "<answer>unknown</answer>") == 0.0
    assert success_rate(env, tasks, lambda task: f"<answer>{most_common[task.category]}</answer>") < 0.01
