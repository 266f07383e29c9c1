"""An evaluation as users of Inspect write it: questions, a tool that knows the answers, and a scorer that can break."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

CAPITALS = {"Norway": "Oslo", "Chile": "Santiago", "Ghana": "Accra"}


@tool
def capital() -> Any:
    async def execute(country: str) -> str:
        """Look up the capital of a country.

        Args:
            country: The country.
        """
        return CAPITALS[country]

    return execute


@scorer(metrics=[accuracy()])
def says() -> Any:
    async def score(state: Any, target: Target) -> Score:
        if "break" in state.output.completion:
            raise OSError("the scorer broke")
        right = target.text in state.output.completion
        return Score(value="C" if right else "I", explanation=f"The answer is {target.text}.")

    return score


@task
def capitals(reverse: bool = False) -> Task:
    samples = [Sample(input=f"The capital of {country}?", target=city) for country, city in CAPITALS.items()]
    return Task(samples[::-1] if reverse else samples, solver=[use_tools(capital()), generate()], scorer=says())


@task
def named() -> Task:
    samples = [Sample(id=name, input=f"What is {name}?", target=name) for name in ("a/b", "a-b", "a b", "c")]
    return Task(samples, solver=generate(), scorer=says())
