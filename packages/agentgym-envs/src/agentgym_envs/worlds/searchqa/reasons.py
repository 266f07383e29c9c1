"""The expert's reasons: the facts read so far, quoted from the passages, and what is searched next.

Uses a question's derivation and the passages shown so far, and states no fact that they don't contain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym_envs.retrieval import Passage
from agentgym_envs.util.qa_metrics import normalise

_MAX_QUOTE = 300
_BREAK = re.compile(r"(?<=[.!?])(?<!\b[DMS][rst]\.)(?<!\b[A-Z]\.)\s+")
"""Sentence boundaries, except after St., Dr., Mr., Ms., Mt. and initials."""
_FIGURES = {
    "square": re.compile(r"square kilometres"),
    "population": re.compile(r"^(?!.*(?:nearest|square|\d(?:st|nd|rd|th)\b)).*(?:population|inhabitants|people)"),
    "counties": re.compile(r"counties"),
    "density": re.compile(r"density"),
}
"""By a word that identifies the query of an almanac comparison: a pattern for sentences that state the number."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """The derivation of an answer, and the passages read so far."""

    question: str
    queries: Sequence[str]
    """The search queries, in order."""
    support: Sequence[str]
    """Id of the passage that each query should find; empty if no derivation is known."""
    answer: str
    compares: bool
    """Whether the question is a comparison, in which no query depends on the result of another."""
    read: Mapping[str, Passage]
    """The passages shown so far, by id."""

    def before(self, step: int) -> str:
        """Return the reason for query number `step`."""
        if not self.support:
            return f"I don't know yet: {self.question} I search for the question itself."
        query = self.queries[step]
        if step:
            lead = (
                "Next I look for" if self.support[step - 1] in self.read else "I go on from what I know, and look for"
            )
            return f"{self._fact(step - 1)} {lead}: {query}."
        wanted = "one fact" if len(self.queries) == 1 else "several facts, one at a time"
        return f"The question is: {self.question} It takes {wanted}. First I look for: {query}."

    def at_the_end(self) -> str:
        """Return the reason for the answer, or why there is none."""
        if not self.support:
            return self._recalled()
        missing = [query for query, id in zip(self.queries, self.support, strict=True) if id not in self.read]
        if missing:
            return f"I don't know, since I found no passage that tells this: {'; '.join(missing)}."
        steps = range(len(self.queries)) if self.compares else (len(self.queries) - 1,)
        return f"{' '.join(map(self._fact, steps))} So the answer is: {self.answer}."

    def outline(self, asked: int) -> str:
        """Describe the results of the first `asked` queries and what is left.

        Only the next query is named: later ones may contain facts that haven't been read yet.
        """
        rows = [f"The question is: {self.question}", *map(self._fact, range(asked if self.support else 0))]
        left = len(self.queries) - asked
        if left:
            rows.append(f"Now I look for: {self.queries[asked]}.")
        if left > 1:
            rows.append(
                f"What I find leads to the next search; there is {'one' if left == 2 else 'more than one'} more."
            )
        return "\n".join([*rows, "Then I answer."])

    def _fact(self, step: int) -> str:
        """Quote the fact of one step from its passage."""
        if (passage := self.read.get(self.support[step])) is None:
            return f"No passage tells this: {self.queries[step]}."
        return f"'{passage.title}' tells: {_short(self._sentence(step, _sentences(passage)))}"

    def _sentence(self, step: int, sentences: list[str]) -> str:
        """Select the sentence with the fact of the step: a number, the next entity to look up, or the answer."""
        if self.compares:
            figure = next((at for word, at in _FIGURES.items() if word in self.queries[step]), None)
            return next((s for s in sentences if figure and figure.search(s)), sentences[0])
        if step + 1 == len(self.queries):
            sentences = [s for s in sentences if _states(s, self.answer)] or sentences
            leads = set[str]()
        else:
            leads = _words(self.queries[step + 1]) - _words(self.question)
        words = _words(self.queries[step])
        return max(sentences, key=lambda s: (len(leads & _words(s)), len(words & _words(s))))

    def _recalled(self) -> str:
        candidates = [(p.title, s) for p in self.read.values() for s in _sentences(p) if _states(s, self.answer)]
        if not candidates:
            return f"No passage tells it, so I answer what I know: {self.answer}."
        words = _words(self.question)
        title, sentence = max(candidates, key=lambda candidate: len(words & _words(candidate[1])))
        return f"'{title}' tells: {_short(sentence)} So the answer is: {self.answer}."


def _sentences(passage: Passage) -> list[str]:
    return _BREAK.split(" ".join(passage.text.split()))


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= _MAX_QUOTE else f"{sentence[: _MAX_QUOTE - 1]}…"


def _states(sentence: str, answer: str) -> bool:
    return f" {normalise(answer)} " in f" {normalise(sentence)} "


def _words(text: str) -> set[str]:
    return set(normalise(text).split())
