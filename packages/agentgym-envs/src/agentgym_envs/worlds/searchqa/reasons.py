"""The expert's reasons: what it read, in the passages' own sentences, and what is still to be looked up.

Knows a question's derivation and the passages shown so far. Of what they didn't tell, it says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym_envs.retrieval import Passage
from agentgym_envs.util.qa_metrics import normalise

_LONGEST = 300
_BREAK = re.compile(r"(?<=[.!?])(?<!\b[DMS][rst]\.)(?<!\b[A-Z]\.)\s+")
"""Where sentences part, but not after St., Dr., Mr., Ms., Mt. and initials."""
_FIGURES = {
    "square": re.compile(r"square kilometres"),
    "population": re.compile(r"^(?!.*(?:nearest|square|\d(?:st|nd|rd|th)\b)).*(?:population|inhabitants|people)"),
    "counties": re.compile(r"counties"),
    "density": re.compile(r"density"),
}
"""A word by which the queries of the almanac's comparisons can be told, and sentences that state the figure."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a question is answered, and what was read of it."""

    question: str
    queries: Sequence[str]
    """What is searched for, in order."""
    support: Sequence[str]
    """Id of the passage that each query is to find; none where no derivation is known."""
    answer: str
    compares: bool
    """Whether the question names all that is looked up, so that no query needs what another found."""
    read: Mapping[str, Passage]
    """The passages shown so far, by id."""

    def before(self, step: int) -> str:
        """Why the query of number `step` comes next."""
        if not self.support:
            return f"I don't know yet: {self.question} I search for the question itself."
        query = self.queries[step]
        if step:
            lead = (
                "Next I look for" if self.support[step - 1] in self.read else "I go on from what I know, and look for"
            )
            return f"{self._told(step - 1)} {lead}: {query}."
        wanted = "one fact" if len(self.queries) == 1 else "several facts, one at a time"
        return f"The question is: {self.question} It takes {wanted}. First I look for: {query}."

    def at_the_end(self) -> str:
        """Why the answer is what it is, or why there is none."""
        if not self.support:
            return self._recalled()
        missing = [query for query, id in zip(self.queries, self.support, strict=True) if id not in self.read]
        if missing:
            return f"I don't know, since I found no passage that tells this: {'; '.join(missing)}."
        steps = range(len(self.queries)) if self.compares else (len(self.queries) - 1,)
        return f"{' '.join(map(self._told, steps))} So the answer is: {self.answer}."

    def outline(self, asked: int) -> str:
        """What the first `asked` queries brought, and what is left. No query after the next is named: it may take what
        hasn't been read yet.
        """
        rows = [f"The question is: {self.question}", *map(self._told, range(asked if self.support else 0))]
        left = len(self.queries) - asked
        if left:
            rows.append(f"Now I look for: {self.queries[asked]}.")
        if left > 1:
            rows.append(
                f"What I find leads to the next search; there is {'one' if left == 2 else 'more than one'} more."
            )
        return "\n".join([*rows, "Then I answer."])

    def _told(self, step: int) -> str:
        """What the passage of one step tells."""
        if (passage := self.read.get(self.support[step])) is None:
            return f"No passage tells this: {self.queries[step]}."
        return f"'{passage.title}' tells: {_short(self._sentence(step, _sentences(passage)))}"

    def _sentence(self, step: int, sentences: list[str]) -> str:
        """The one that tells what the step was for: a figure, what is looked up next, or the answer."""
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
        told = [(p.title, s) for p in self.read.values() for s in _sentences(p) if _states(s, self.answer)]
        if not told:
            return f"No passage tells it, so I answer what I know: {self.answer}."
        words = _words(self.question)
        title, sentence = max(told, key=lambda one: len(words & _words(one[1])))
        return f"'{title}' tells: {_short(sentence)} So the answer is: {self.answer}."


def _sentences(passage: Passage) -> list[str]:
    return _BREAK.split(" ".join(passage.text.split()))


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…"


def _states(sentence: str, answer: str) -> bool:
    return f" {normalise(answer)} " in f" {normalise(sentence)} "


def _words(text: str) -> set[str]:
    return set(normalise(text).split())
