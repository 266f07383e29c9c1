"""The matches `must_state` and `must_equal` of our own tasks, which neither pay for hedging nor refuse other notations.

A policy trained on a reward that looks for a phrase learns to list all candidates. So an answer states phrases only if

- each occurs, as whole words and values in the normal form of `answer_tokens`,
- no candidate of `must_not_state`, which the generator of the task knows, occurs,
- it has no second value of a required kind, such as another number, except values of the question and, where the task
  asks for a sum or difference, all its terms, which the generator of the task knows (`313.3 km (151.2 km + 162.1 km)`),
- its other words, leaving out those of the question, make up a short sentence at most.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from agentgym_envs.worlds.webarena.evaluation.answer_tokens import WORD, Token, tokens

_MAX_EXTRA_CHARS: Final = 45  # of words that are neither required nor in the question
_NOT_APPLICABLE: Final = "N/A"  # the answer to tasks that can't be done, so always another candidate
_NUMERAL = re.compile(r"^\s*\(?\d{1,2}[.)]\s+", re.MULTILINE)


def equals(reference: str, answer: str) -> bool:
    """Whether `answer` consists of the same words and values as `reference`, and nothing else."""
    return tokens(reference) == tokens(answer)


def states(
    required: Sequence[str],
    answer: str,
    *,
    rivals: Collection[str] = (),
    terms: Collection[str] = (),
    question: str = "",
) -> bool:
    """Whether `answer` states all `required` phrases and no other candidate.

    Args:
        required: Phrases, of which each has a word or a value.
        answer: The agent's answer.
        rivals: The other candidates, none of which may occur. A phrase that is also required is ignored.
        terms: The numbers that a required sum or difference is computed from. The answer may state all of them as well,
            or none.
        question: The task's intent, whose words and values don't count as additional ones.
    """
    if len(required) > 1:
        answer = _NUMERAL.sub(" ", answer)
    wanted = {tokens(phrase) for phrase in required}
    found, rest = _phrases(tokens(answer), wanted | {tokens(rival) for rival in (*rivals, _NOT_APPLICABLE)})
    if found != wanted:
        return False
    asked = {token for token in tokens(question) if token.kind != "duration"}  # "2 h 5 min" is an example of the form
    known = {token for phrase in wanted for token in phrase} | asked
    extra = [token for token in rest if token not in known]
    kinds = {token.kind for phrase in wanted for token in phrase} - {WORD}
    values = {token for token in extra if token.kind in kinds}
    if values and _unsigned(values) != _unsigned(token for term in terms for token in tokens(term)) - _unsigned(known):
        return False
    return sum(len(token.text) for token in extra if token not in values) <= _MAX_EXTRA_CHARS


def _phrases(answer: tuple[Token, ...], phrases: set[tuple[Token, ...]]) -> tuple[set[tuple[Token, ...]], list[Token]]:
    """Return the phrases that occur in the answer, the longest at each place, and the tokens of no phrase."""
    lengths = sorted({len(phrase) for phrase in phrases} - {0}, reverse=True)
    found, rest, start = set[tuple[Token, ...]](), list[Token](), 0
    while start < len(answer):
        spans = (answer[start : start + length] for length in lengths)
        phrase = next((span for span in spans if span in phrases), None)
        if phrase is None:
            rest.append(answer[start])
        else:
            found.add(phrase)
        start += len(phrase or (0,))
    return found, rest


def _unsigned(values: Iterable[Token]) -> set[tuple[str, str]]:
    """Return kinds and texts without signs: the second term of `99.00 -32.91` is read as a negative number."""
    return {(value.kind, value.text.removeprefix("-")) for value in values}
