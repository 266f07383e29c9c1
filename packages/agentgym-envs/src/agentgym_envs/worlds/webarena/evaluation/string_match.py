"""The answer against reference answers: `exact_match`, `must_include` and `fuzzy_match`; and of our own, `must_state`.

As in WebArena, answers are compared in lower case, without space around them and without one pair of quotes. A phrase
of `must_include` must occur somewhere in the answer; where it is the only one and a single character, such as `0`, it
must be a word of the answer, as the Penn Treebank divides text, so that `10` and `-0` don't include it. (WebArena's
paper speaks of single words; its code looks at single characters, and so do we: `81` is found in `$81.00`.)
Alternatives may be joined by ` |OR| `.

`must_include` pays whoever recites a page. Who learns by reward finds that out, so our own tasks say `must_state`: each
phrase must be there as words and numbers of its own, in an answer with no more than a short sentence around them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentgym_envs.worlds.webarena.evaluation.fields import known, texts
from agentgym_envs.worlds.webarena.evaluation.judge import Judge, refusal

UNACHIEVABLE: Final = "N/A"
"""The reference of a task that can't be done: the answer must say so, or give the reason, which a judge compares."""
_WAYS = ("exact_match", "must_include", "must_state", "fuzzy_match")
_NUMBER = re.compile(r"\d[\d.,]*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AROUND = 60  # characters of an answer besides the phrases that it must state
_APART = r"\s;@#$%&?!*()\[\]{}<>\"'`“”‘’«»–—…,:."  # what ends a word; the last three don't within a number or a name
_WORD = re.compile(rf"(?:\.(?=\w))?[^{_APART}]+(?:(?:[,:](?=\d)|\.(?=\w))[^{_APART}]*)*|\S")


def normalised(text: str) -> str:
    """`text` as it is compared."""
    text = text.strip()
    if text and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def same(reference: str, text: str) -> bool:
    """Whether the two are the same once normalised."""
    return normalised(reference) == normalised(text)


def included(phrase: str, text: str, *, as_word: bool = False) -> bool:
    """Whether `phrase`, or one of its alternatives, occurs in `text`; with `as_word` a single character as a word."""
    return any(_occurs(normalised(one), normalised(text), as_word) for one in phrase.split(" |OR| "))


def _plain(text: str) -> str:
    return _THOUSANDS.sub("", normalised(text)).replace("–", "-").replace("−", "-")


def _occurs(phrase: str, text: str, as_word: bool) -> bool:
    return phrase in _WORD.findall(text) if as_word and len(phrase) == 1 else phrase in text


def states(phrases: Sequence[str], text: str) -> bool:
    """Whether every phrase occurs in `text` as words and numbers of its own, with little else around them: a short
    sentence, and one more number at most. Commas between thousands and the kind of dash don't matter.
    """
    text = _plain(text)
    wanted = [_plain(phrase) for phrase in phrases]
    if len(_NUMBER.findall(text)) > 1 + sum(len(_NUMBER.findall(phrase)) for phrase in wanted):
        return False
    apart = (rf"(?<!\w)(?<!\d[.,])(?<!-){re.escape(phrase)}(?!\w)(?![.,]\d)" for phrase in wanted)
    return len(text) <= _AROUND + sum(map(len, wanted)) and all(re.search(pattern, text) for pattern in apart)


async def score(task: Mapping[str, Any], answer: str, judge: Judge | None) -> float:
    """1.0 when the answer meets every reference, else 0.0.

    Raises:
        ValueError: when a judge is needed and not given.
        EnvFault: when the judge fails.
    """
    references: Mapping[str, Any] = task["eval"]["reference_answers"]
    answer = normalised(answer)
    if "exact_match" in references and not same(references["exact_match"], answer):
        return 0.0
    phrases: list[str] = references.get("must_include", [])
    if not all(included(phrase, answer, as_word=len(phrases) == 1) for phrase in phrases):
        return 0.0
    if "must_state" in references and not states(references["must_state"], answer):
        return 0.0
    return float("fuzzy_match" not in references or await _means(task, references["fuzzy_match"], answer, judge))


async def _means(task: Mapping[str, Any], wanted: str | list[str], answer: str, judge: Judge | None) -> bool:
    """Whether `answer` says the same as all that is `wanted`; asks the judge only where it isn't plain."""
    if judge is None:
        raise ValueError(refusal(str(task.get("task_id"))))
    if wanted == UNACHIEVABLE:
        return same(UNACHIEVABLE, answer) or await judge.same_reason(
            task["intent"], task["eval"]["string_note"], answer
        )
    for reference in wanted:
        if same(reference, answer):
            continue
        if not answer or not await judge.correct(task["intent"], reference, answer):
            return False
    return True


def check(judged: Mapping[str, Any]) -> dict[str, Any]:
    """The reference answers of an `eval`, put in order. See `parts.Part`."""
    given = judged.get("reference_answers")
    if not isinstance(given, Mapping):
        raise ValueError(f"`eval.reference_answers` is {given!r}; it must be an object with {', '.join(_WAYS)}.")
    references: dict[str, Any] = dict(given)
    known(references, _WAYS, "eval.reference_answers")
    for way, value in references.items():
        listed = texts(value, f"eval.reference_answers.{way}")
        if way == "exact_match" and len(listed) != 1:
            raise ValueError(f"`eval.reference_answers.exact_match` is {value!r}; it must be one text.")
        single = way == "exact_match" or (way == "fuzzy_match" and listed == [UNACHIEVABLE])
        references[way] = listed[0] if single else listed
    return {"reference_answers": references}


def count(judged: Mapping[str, Any]) -> int:
    """How many references an answer must meet."""
    return sum(len(value) if isinstance(value, list) else 1 for value in judged["reference_answers"].values())
