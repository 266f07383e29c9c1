"""The question type, and the check that a question doesn't contain its answer. Independent of the facts."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_envs.util.qa_metrics import normalise
from agentgym_envs.worlds.searchqa.almanac.splits import Part


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the almanac's passages answer."""

    id: str
    """Such as `almanac/test/2hop-city-country-capital/0017`."""
    split: Part
    category: str
    """The number of hops, plus `count` or `comparison` if it is one: `1-hop`, `2-hop`, `3-hop`, `2-hop count`."""
    hops: int
    """The number of facts it requires, each from another passage."""
    text: str
    answers: tuple[str, ...]
    """The passages' wording first, then synonyms."""
    queries: tuple[str, ...]
    """Search queries that find the passages, in order; one per hop."""
    support: tuple[str, ...]
    """The id of the passage that states the fact of each hop."""


def gives_away(text: str, answers: tuple[str, ...]) -> bool:
    """Whether the question contains an answer. An answer of articles only (the code `an`) counts as contained."""
    within = f" {normalise(text)} "
    return any(not normalise(answer) or f" {normalise(answer)} " in within for answer in answers)
