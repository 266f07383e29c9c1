"""Retrieval recall: the share of a question's gold passages that a retriever finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentgym_envs.retrieval.passages import Hit, Passage, Retriever
from agentgym_envs.retrieval.questions import Question
from agentgym_envs.util.qa_metrics import normalise

_BATCH = 256


def gold_recall(retriever: Retriever, questions: Iterable[Question], ks: Sequence[int]) -> tuple[dict[int, float], int]:
    """Return the mean recall@k of the gold passages for each k, and the number of questions.

    Gold passages are those with the question's ids, else those with its titles, else those that contain its context.
    If the question has none of these, a single hit that contains an answer counts as full recall.

    Raises:
        ValueError: if there are no questions.
        EnvFault: if the retriever failed.
    """
    asked = list(questions)
    if not asked:
        raise ValueError("There are no questions to measure recall with.")
    totals: dict[int, float] = dict.fromkeys(ks, 0.0)
    for begin in range(0, len(asked), _BATCH):
        batch = asked[begin : begin + _BATCH]
        results = retriever.search([question.text for question in batch], max(ks))
        for question, hits in zip(batch, results, strict=True):
            for k in ks:
                totals[k] += _recall(question, hits[:k])
    return {k: total / len(asked) for k, total in totals.items()}, len(asked)


def _recall(question: Question, hits: Sequence[Hit]) -> float:
    found = [hit.passage for hit in hits]
    if question.ids:
        return len(question.ids.intersection(passage.id for passage in found)) / len(question.ids)
    if question.titles:
        return len(question.titles.intersection(passage.title for passage in found)) / len(question.titles)
    if question.context:
        context = _single_spaced(question.context)
        return float(any(context in _single_spaced(passage.text) for passage in found))
    return float(any(_contains_answer(passage, question.answers) for passage in found))


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _contains_answer(passage: Passage, answers: Sequence[str]) -> bool:
    text = f" {normalise(passage.text)} "
    return any(f" {normalise(answer)} " in text for answer in answers)
