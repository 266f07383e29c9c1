"""Candidates that an answer repeats from the question without offering them as answers.

`Of Hollowell, Linden and Swanmere, Hollowell has the fewest inhabitants` names one town, and so does `Bramble is nearer
than Sandpiper`. Two forms are left out of an answer before it is judged:

- a list of all candidates of the question after `of`, `among`, `between` and the like. It says the same whichever of
  them is right, and what is left has to name the right one alone;
- what is compared, after `than`, in one comparison in the direction of the question. Its subject, before it, has to be
  the right one, and nothing but a mark or a value may follow.

So no answer is right for two different candidates. Any other mention of another candidate counts as a hedge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from agentgym_envs.worlds.webarena.evaluation.answer_tokens import normalised

_LESS: Final = (
    "nearer closer shorter quicker faster sooner smaller fewer less lower cheaper younger lighter earlier lesser"
)
_MORE: Final = (
    "farther further longer slower larger bigger greater more higher dearer costlier pricier older heavier later taller"
)
_SUPERLATIVES: Final = {
    _LESS: "nearest closest shortest quickest fastest smallest fewest least lowest cheapest youngest lightest earliest",
    _MORE: "farthest furthest longest slowest largest biggest greatest most highest dearest priciest oldest heaviest"
    " latest tallest",
}
_NEGATIONS = re.compile(
    r"\b(?:not?|never|neither|nor|hardly|unless|if|perhaps|maybe|unsure)\b|n't\b|(?<!than )\beither\b"
)
_END = r"(?=\s*(?:[.:;,()\[-]|\Z)|\s+(?:with|at|by|taking)\b)"


def without_restatements(answer: str, question: str, required: Sequence[str], rivals: Collection[str]) -> str:
    """Return an answer without what it repeats of the question's candidates.

    Args:
        answer: The agent's answer.
        question: The question.
        required: The phrases of the answer; exactly one of them has to be in the question.
        rivals: The other candidates; those in the question may be repeated.
    """
    asked = normalised(question)
    right = [phrase for phrase in required if _occurs(phrase, asked)]
    others = [rival for rival in rivals if rival not in required and _occurs(rival, asked)]
    if len(right) != 1 or not others:
        return answer
    text = _without_list(normalised(answer), [right[0], *others])
    return _without_comparison(text, asked, right[0], others)


def _without_list(text: str, candidates: list[str]) -> str:
    names = "|".join(map(_name, sorted(candidates, key=len, reverse=True)))
    listed = re.compile(
        r"\b(?:of|among|amongst|between|comparing|out of)\s+(?:the\s+)?(?:(?:two|three|\d)\s+)?(?:\w+\s+)?"
        rf"(?P<list>(?:{names})(?:(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+)(?:{names})){{{len(candidates) - 1}}})(?![\w'])"
    )
    match = listed.search(text)
    if match is None or not all(_occurs(candidate, match["list"]) for candidate in candidates):
        return text
    return f"{text[: match.start()]} , {text[match.end() :]}"


def _without_comparison(text: str, asked: str, right: str, others: list[str]) -> str:
    directions = [words for words in (_LESS, _MORE) if _has(asked, f"{words} {_SUPERLATIVES[words]}")]
    if len(directions) != 1 or _NEGATIONS.search(text) or len(re.findall(r"\bthan\b", text)) != 1:
        return text
    names = "|".join(map(_name, sorted(others, key=len, reverse=True)))
    pattern = (
        rf"\b(?:{directions[0].replace(' ', '|')})\s+(?:\w+\s+){{0,3}}?than\s+(?:to\s+|either\s+)?(?:the\s+)?"
        rf"(?:{names})(?:(?:\s*,\s*(?:{names}))*(?:\s*,)?\s+(?:and|or)\s+(?:{names}))?{_END}"
    )
    match = re.search(pattern, text)
    if match is None or not _occurs(right, text[: match.start()]):
        return text
    return f"{text[: match.start()]} , {text[match.end() :]}"


def _name(phrase: str) -> str:
    return r"\s+".join(map(re.escape, normalised(phrase).split())) + r"(?:'s)?(?![\w'])"


def _occurs(phrase: str, text: str) -> bool:
    return re.search(rf"(?<![\w']){_name(phrase)}", text) is not None


def _has(text: str, words: str) -> bool:
    return re.search(rf"\b(?:{words.replace(' ', '|')})\b", text) is not None
