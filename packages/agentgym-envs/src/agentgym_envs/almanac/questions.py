"""What a question is, and what makes an answer right or a question unfair. Knows no facts."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from agentgym_envs.almanac.splits import Part

_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


def normal(text: str) -> str:
    """As answers are compared: lower case, no punctuation, no articles, single spaces."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def gives_away(text: str, answers: tuple[str, ...]) -> bool:
    """Whether an answer stands in the question."""
    within = f" {normal(text)} "
    return any(f" {normal(answer)} " in within for answer in answers)
