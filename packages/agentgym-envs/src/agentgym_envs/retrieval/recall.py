"""How many of the passages that a question is about a retriever finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentgym_envs.retrieval.passages import Hit, Passage, Retriever
from agentgym_envs.retrieval.questions import Question
from agentgym_envs.util.qa_metrics import normalise

_BATCH = 256


def gold_recall(retriever: Retriever, questions: Iterable[Question], ks: Sequence[int]) -> tuple[dict[int, float], int]:
    """The mean share of a question's gold passages among the first k found, for each k; and how many were asked.

    Gold are the passages of the ids that a question names, else of the titles, else its context; of a question that
    names none, a passage that holds an answer, so that one is enough.

    Raises:
        ValueError: without a question.
        EnvFault: when the retriever broke.
    """
    asked = list(questions)
    if not asked:
        raise ValueError("There are no questions to measure recall with.")
    shares: dict[int, float] = dict.fromkeys(ks, 0.0)
    for begin in range(0, len(asked), _BATCH):
        batch = asked[begin : begin + _BATCH]
        for question, hits in zip(batch, retriever.search([one.text for one in batch], max(ks)), strict=True):
            for k in ks:
                shares[k] += _share(question, hits[:k])
    return {k: total / len(asked) for k, total in shares.items()}, len(asked)


def _share(question: Question, hits: Sequence[Hit]) -> float:
    found = [hit.passage for hit in hits]
    if question.ids:
        return len(question.ids.intersection(passage.id for passage in found)) / len(question.ids)
    if question.titles:
        return len(question.titles.intersection(passage.title for passage in found)) / len(question.titles)
    if question.context:
        return float(any(_plain(question.context) in _plain(passage.text) for passage in found))
    return float(any(_holds_answer(passage, question.answers) for passage in found))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _holds_answer(passage: Passage, answers: Sequence[str]) -> bool:
    text = f" {normalise(passage.text)} "
    return any(f" {normalise(answer)} " in text for answer in answers)
