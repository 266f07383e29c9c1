"""What a question is, and what makes an answer right or a question unfair. Knows no facts."""

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
    """Hop count, and `count` or `comparison` where it is one: `1-hop`, `2-hop`, `3-hop`, `2-hop count`."""
    hops: int
    """Facts it takes, each of another passage."""
    text: str
    answers: tuple[str, ...]
    """The first is how the passages put it; the others mean the same."""
    queries: tuple[str, ...]
    """What finds the passages, in order; one for each hop."""
    support: tuple[str, ...]
    """Id of the passage that states the fact of each hop."""


def gives_away(text: str, answers: tuple[str, ...]) -> bool:
    """Whether an answer stands in the question; one of articles only (the code `an`) counts as given away."""
    within = f" {normalise(text)} "
    return any(not normalise(answer) or f" {normalise(answer)} " in within for answer in answers)
