"""The matches `must_state` and `must_equal` of our own tasks, which neither pay for hedging nor refuse other notations.

A policy trained on a reward that looks for a phrase learns to list all candidates. So an answer states phrases only if

- each occurs, as whole words and values in the normal form of `answer_tokens`,
- no candidate of `must_not_state`, which the generator of the task knows, occurs,
- it has no second value of a required kind, such as another number, except values of the question and, where the task
  asks for a sum or difference, all its terms, which the generator of the task knows (`313.3 km (151.2 km + 162.1 km)`),
- the units of its numbers are those that the phrases have or the question asks for, as far as that is known, or none,
- its other words, leaving out those of the question, make up a short sentence at most.

Candidates and values that an answer only repeats don't count: those of `restatements`, the year of a census
(`3,722 (2021 census)`), and the number of the terms (`2 orders, $190.65 in all`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from agentgym_envs.worlds.webarena.evaluation.answer_tokens import WORD, Token, normalised, tokens
from agentgym_envs.worlds.webarena.evaluation.restatements import without_restatements
from agentgym_envs.worlds.webarena.evaluation.units import agree, asked_units

_MAX_EXTRA_CHARS: Final = 45  # of words that are neither required nor in the question
_NOT_APPLICABLE: Final = "N/A"  # the answer to tasks that can't be done, so always another candidate
_NUMERAL = re.compile(r"^\s*\(?\d{1,2}[.)]\s+", re.MULTILINE)
_CENSUS = re.compile(r"\b(?:19|20)\d\d census\b|\bcensus (?:of )?(?:19|20)\d\d\b", re.IGNORECASE)
_ASKS_FOR_YEAR = re.compile(r"\b(?:years?|when|census|dates?)\b", re.IGNORECASE)


def equals(reference: str, answer: str, *, question: str = "") -> bool:
    """Whether `answer` consists of the same words and values as `reference`, and nothing else.

    Args:
        reference: The right answer.
        answer: The agent's answer.
        question: The task's intent, which may say in what unit a number is.
    """
    wanted, found = tokens(reference), tokens(answer)
    return wanted == found and _units_agree(wanted, found, (), question)


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
    if not _ASKS_FOR_YEAR.search(question):
        answer = _CENSUS.sub("census", answer)
    said = _words(without_restatements(answer, question, required, rivals))
    wanted = {_words(phrase) for phrase in required}
    asked = {token for token in _words(question) if token.kind != "duration"}  # "2 h 5 min" is an example of the form
    if terms:
        said = _without_count(said, len(terms), wanted, asked)
    found, rest = _phrases(said, wanted | {_words(rival) for rival in (*rivals, _NOT_APPLICABLE)})
    if found != wanted:
        return False
    if not _units_agree([token for phrase in wanted for token in phrase], said, terms, question):
        return False
    known = {token for phrase in wanted for token in phrase} | asked
    extra = [token for token in rest if token not in known]
    kinds = {token.kind for phrase in wanted for token in phrase} - {WORD}
    values = {token for token in extra if token.kind in kinds}
    if values and _unsigned(values) != _unsigned(token for term in terms for token in tokens(term)) - _unsigned(known):
        return False
    return sum(len(token.text) for token in extra if token not in values) <= _MAX_EXTRA_CHARS


def _words(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text, without the `'s` of possessives: `Bramble or Sandpiper's` names both."""
    return tuple(
        replace(token, text=token.text.removesuffix("'s")) if token.kind == WORD else token for token in tokens(text)
    )


def _units_agree(wanted: Iterable[Token], said: Sequence[Token], terms: Iterable[str], question: str) -> bool:
    """Whether the answer states required numbers and terms in units that are expected, or without one. A number of the
    question, such as the 24 of `24 cm`, may also be repeated with its unit.
    """
    asked = asked_units(normalised(question))
    expected = {token: frozenset().union(*token.units) or asked for token in wanted if token.kind == "number"}
    expected = {token: asked for term in terms for token in tokens(term)} | expected
    for token, units in expected.items():
        stated = [each.units for each in said if each == token]
        given = frozenset[str]().union(*(unit for each in tokens(question) if each == token for unit in each.units))
        if not all(agree(each, units) or agree(each, given) for each in stated):
            return False
        if stated and not any(agree(each, units) for each in stated):
            return False
    return True


def _without_count(
    said: tuple[Token, ...], count: int, wanted: Collection[tuple[Token, ...]], asked: Collection[Token]
) -> tuple[Token, ...]:
    """Leave out the number of the terms before a word of the question, as in `2 orders`."""
    number = Token("number", str(count))
    if any(number in phrase for phrase in wanted):
        return said
    return tuple(
        token
        for i, token in enumerate(said)
        if token != number or not (said[i + 1 : i + 2] and said[i + 1].kind == WORD and said[i + 1] in asked)
    )


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
