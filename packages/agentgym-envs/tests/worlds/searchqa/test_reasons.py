"""Tests of the thoughts and plans of SearchQA's expert: it quotes passages and reveals no answer before finding it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from agentgym_envs import make, text_env
from agentgym_envs.retrieval import Passage
from agentgym_envs.util.qa_metrics import normalise
from agentgym_envs.worlds.searchqa.reasons import Derivation

pytestmark = pytest.mark.quick

QUOTE = re.compile(r"'([^']+(?:'[a-z][^']*)?)' tells: (.+?[.…])(?= (?:Next I look for|So the answer is|')|$)")


@pytest.fixture(scope="module")
def env() -> Any:
    return text_env(make("agentgym/SearchQA-v0"))


def states(text: str, answer: str) -> bool:
    return f" {normalise(answer)} " in f" {normalise(text)} "


def test_thoughts_quote_only_what_was_read(env: Any) -> None:
    thoughts: list[str] = []
    for task in env.tasks.test[:80]:
        observation, _ = env.reset(options={"task": task.id})
        shown, over, answer = observation, False, task.payload["answers"][0]
        while not over:
            thought, plan, action = env.oracle_thought(), env.oracle_plan(), env.oracle()
            query = re.fullmatch(r"<(?:search|answer)>(.+)</\w+>", action)[1]  # type: ignore[index]
            for title, quote in QUOTE.findall(thought):
                assert f"(Title: {title}) " in shown and quote in shown, thought
            if action.startswith("<search>"):
                assert thought.endswith(f"look for: {query}.")
                assert not states(thought + plan, answer) or states(shown, answer), thought
            elif query != "unknown":
                assert thought.endswith(f"So the answer is: {query}.")
                assert QUOTE.search(thought), thought
            thoughts.append(thought)
            observation, _, over, *_ = env.step(action)
            shown += f" {observation}"
    assert len(set(thoughts)) > 0.9 * len(thoughts)


def test_comparison_quotes_every_number(env: Any) -> None:
    comparisons = [task for task in env.tasks.test if task.category.endswith("comparison")]
    for task in comparisons[::5]:
        env.reset(options={"task": task.id})
        for query in task.payload["queries"]:
            env.step(f"<search>{query}</search>")
        quotes = QUOTE.findall(env.oracle_thought())
        assert len(quotes) in (0, task.difficulty)
        assert all(re.search(r"\d", quote) for _, quote in quotes), quotes


def test_expert_admits_that_it_found_nothing(env: Any) -> None:
    task = next(task for task in env.tasks.test if task.difficulty == 2)
    env.reset(options={"task": task.id})
    first, second = task.payload["queries"]
    env._asked = [first]  # searched without result
    assert env.oracle_thought() == f"No passage tells this: {first}. I go on from what I know, and look for: {second}."
    env._asked = [first, second]
    assert env.oracle_thought() == f"I don't know, since I found no passage that tells this: {first}; {second}."
    assert env.oracle() == "<answer>unknown</answer>"


def test_plan_names_only_the_next_query(env: Any) -> None:
    task = next(task for task in env.tasks.test if task.difficulty == 3)
    env.reset(options={"task": task.id})
    first, second, third = task.payload["queries"]
    plan = env.oracle_plan()
    assert plan.splitlines()[0] == f"The question is: {task.payload['question']}"
    assert first in plan and second not in plan and third not in plan


def test_without_a_derivation_it_searches_for_the_question() -> None:
    passages: dict[str, Passage] = {}
    derivation = Derivation("Who is the mayor?", ["Who is the mayor?"], (), "Ms. O'Neil", False, passages)
    assert derivation.before(0) == "I don't know yet: Who is the mayor? I search for the question itself."
    assert derivation.at_the_end() == "No passage tells it, so I answer what I know: Ms. O'Neil."
    passages["3"] = Passage("3", "Ham", "Ham is a village. It has one mayor, called Ms. O'Neil.")
    assert derivation.at_the_end().startswith("'Ham' tells: ")
    assert derivation.at_the_end().endswith("O'Neil. So the answer is: Ms. O'Neil.")
    assert derivation.outline(0).splitlines()[-1] == "Then I answer."
