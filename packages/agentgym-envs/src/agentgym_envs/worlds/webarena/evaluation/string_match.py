"""The eval type `string_match`: WebArena's `exact_match`, `must_include` and `fuzzy_match`, and our own matches.

As in WebArena, answers are compared in lower case, without surrounding space and one pair of quotes. A phrase of
`must_include` must occur anywhere in the answer. If it is the only one and a single character, such as `0`, it must be
a word of the answer under the Penn Treebank's tokenization, so that `10` and `-0` don't include it. (WebArena's paper
describes single words; its code checks single characters, and so does ours: `81` is found in `$81.00`.)
Alternatives may be joined by ` |OR| `.

`must_include` also accepts an answer that recites a whole page, which RL exploits. So our own tasks use `must_equal`,
or `must_state` with `must_not_state` and `terms`; see `stated_answer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from agentgym_envs.worlds.webarena.evaluation.answer_tokens import tokens
from agentgym_envs.worlds.webarena.evaluation.fields import check_known, string_list
from agentgym_envs.worlds.webarena.evaluation.judge import Judge, missing_judge_message
from agentgym_envs.worlds.webarena.evaluation.stated_answer import equals, states

UNACHIEVABLE: Final = "N/A"
"""The reference of an infeasible task: the answer must be `N/A`, or give the reason, which a judge compares."""
_MATCHES = ("exact_match", "must_include", "must_equal", "must_state", "must_not_state", "terms", "fuzzy_match")
_WITH_MUST_STATE = {"must_not_state": "whose rivals it names", "terms": "whose sum or difference they make up"}
_SEPARATORS = r"\s;@#$%&?!*()\[\]{}<>\"'`“”‘’«»–—…,:."  # ends a word; the last three don't within a number or a name
_WORD = re.compile(rf"(?:\.(?=\w))?[^{_SEPARATORS}]+(?:(?:[,:](?=\d)|\.(?=\w))[^{_SEPARATORS}]*)*|\S")


def normalised(text: str) -> str:
    """Normalize `text` for comparison."""
    text = text.strip()
    if text and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def same(reference: str, text: str) -> bool:
    """Whether the two are equal after normalization."""
    return normalised(reference) == normalised(text)


def included(phrase: str, text: str, *, as_word: bool = False) -> bool:
    """Whether `phrase` or an alternative occurs in `text`; with `as_word`, a single character must be a word."""
    return any(_occurs(normalised(option), normalised(text), as_word) for option in phrase.split(" |OR| "))


def _occurs(phrase: str, text: str, as_word: bool) -> bool:
    return phrase in _WORD.findall(text) if as_word and len(phrase) == 1 else phrase in text


async def score(task: Mapping[str, Any], answer: str, judge: Judge | None) -> float:
    """Return 1.0 if the answer matches every reference, else 0.0.

    Raises:
        ValueError: if a judge is needed and not given.
        EnvFault: if the judge fails.
    """
    references: Mapping[str, Any] = task["eval"]["reference_answers"]
    answer = normalised(answer)
    if "exact_match" in references and not same(references["exact_match"], answer):
        return 0.0
    phrases: list[str] = references.get("must_include", [])
    if not all(included(phrase, answer, as_word=len(phrases) == 1) for phrase in phrases):
        return 0.0
    if "must_equal" in references and not equals(references["must_equal"], answer, question=task["intent"]):
        return 0.0
    if "must_state" in references:
        rivals: list[str] = references.get("must_not_state", [])
        terms: list[str] = references.get("terms", [])
        if not states(references["must_state"], answer, rivals=rivals, terms=terms, question=task["intent"]):
            return 0.0
    return float("fuzzy_match" not in references or await _fuzzy_match(task, references["fuzzy_match"], answer, judge))


async def _fuzzy_match(task: Mapping[str, Any], references: str | list[str], answer: str, judge: Judge | None) -> bool:
    """Whether `answer` means the same as all references; calls the judge only for those it doesn't equal."""
    if judge is None:
        raise ValueError(missing_judge_message(str(task.get("task_id"))))
    if references == UNACHIEVABLE:
        return same(UNACHIEVABLE, answer) or await judge.same_reason(
            task["intent"], task["eval"]["string_note"], answer
        )
    for reference in references:
        if same(reference, answer):
            continue
        if not answer or not await judge.correct(task["intent"], reference, answer):
            return False
    return True


def check(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and normalize the reference answers of an `eval`. See `parts.Part`."""
    given = evaluation.get("reference_answers")
    if not isinstance(given, Mapping):
        raise ValueError(f"`eval.reference_answers` is {given!r}; it must be an object with {', '.join(_MATCHES)}.")
    references: dict[str, Any] = dict(given)
    check_known(references, _MATCHES, "eval.reference_answers")
    for match, value in references.items():
        listed = string_list(value, f"eval.reference_answers.{match}")
        if match in ("exact_match", "must_equal") and len(listed) != 1:
            raise ValueError(f"`eval.reference_answers.{match}` is {value!r}; it must be one string.")
        if match in ("must_equal", "must_state") and not all(map(tokens, listed)):
            raise ValueError(f"`eval.reference_answers.{match}` is {value!r}; each text must have a word or a number.")
        single = match in ("exact_match", "must_equal") or (match == "fuzzy_match" and listed == [UNACHIEVABLE])
        references[match] = listed[0] if single else listed
        if match == "terms" and any([token.kind for token in tokens(term)] != ["number"] for term in listed):
            raise ValueError(f"`eval.reference_answers.terms` is {value!r}; each term must be a number.")
    for match, purpose in _WITH_MUST_STATE.items():
        if match in references and "must_state" not in references:
            raise ValueError(f"`eval.reference_answers` has {match} without must_state, {purpose}.")
    return {"reference_answers": references}


def count(evaluation: Mapping[str, Any]) -> int:
    """Return the number of references that an answer must match."""
    references: Mapping[str, Any] = evaluation["reference_answers"]
    counted = (value for match, value in references.items() if match not in _WITH_MUST_STATE)
    return sum(len(value) if isinstance(value, list) else 1 for value in counted)
