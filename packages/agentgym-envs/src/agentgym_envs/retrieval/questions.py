"""Reads questions as they are published, with what is known of their answers and of the passages that hold them.

FlashRAG and Search-R1 (`golden_answers`), SQuAD (as its file and as `datasets` has it), HotpotQA and 2WikiMultiHopQA
(`answer`, `supporting_facts`), and BEIR's `queries.jsonl` with `qrels/test.tsv` beside it. Knows no retriever.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

FORMS = '{"question": "...", "golden_answers": ["..."]}, {"question": "...", "answer": "..."}, or as SQuAD or HotpotQA'


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and which passages are gold: those of `ids`, of `titles`, the `context`, or what holds an answer."""

    text: str
    answers: tuple[str, ...] = ()
    """All that count as right, the first one preferred."""
    ids: frozenset[str] = frozenset()
    titles: frozenset[str] = frozenset()
    context: str = ""


def read_questions(path: Path) -> Iterator[Question]:
    """The questions of a file of JSON lines, an array, SQuAD's file, or BEIR's queries.

    Raises:
        ValueError: for an entry that is no question; the message names file and line.
        OSError: when the file can't be read.
    """
    qrels = _qrels(path.parent / "qrels" / "test.tsv")
    for place, entry in _entries(path):
        try:
            held = json.loads(entry) if isinstance(entry, str) else entry
            question = _judged(held, qrels) if qrels and "question" not in held else question_of(held)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, {place}, is no question; expected {FORMS}: {error!r}.") from error
        if question is not None:
            yield question


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """What a file holds, each with its place: lines of JSON, or objects."""
    with path.open(encoding="utf-8-sig") as file:
        if path.suffix != ".json" or _is_lines(next(filter(str.strip, file), "")):
            file.seek(0)
            yield from ((f"line {number}", line) for number, line in enumerate(file, 1) if line.strip())
            return
        file.seek(0)
        try:
            held = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is no JSON: {error}.") from error
    try:
        rows = list(_squad(held) if isinstance(held, dict) else held)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no questions; expected {FORMS}: {error!r}.") from error
    yield from ((f"entry {number}", row) for number, row in enumerate(rows, 1))


def _is_lines(first: str) -> bool:
    """Whether the first line of a file is an object of its own, and neither the beginning nor the whole of SQuAD's."""
    try:
        held = json.loads(first)
    except json.JSONDecodeError:
        return False
    return isinstance(held, dict) and "data" not in held


def _squad(held: Any) -> Iterator[dict[str, Any]]:
    """The questions in SQuAD's file, those without an answer left out."""
    for article in held["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                if asked["answers"]:
                    yield {**asked, "context": paragraph["context"]}


def question_of(entry: Mapping[str, Any]) -> Question:
    """The question in a JSON object with answers.

    Raises:
        ValueError, KeyError, TypeError: when there is none.
    """
    text = entry["question"]
    if not (isinstance(text, str) and text.strip()):
        raise ValueError("the question is empty")
    context = entry.get("context")
    answers, titles = _answers(entry), _titles(entry.get("supporting_facts") or ())
    return Question(text.strip(), answers, titles=titles, context=context if isinstance(context, str) else "")


def _judged(query: Mapping[str, Any], qrels: Mapping[str, frozenset[str]]) -> Question | None:
    """One of BEIR's queries; None for one that no judgement is about."""
    ids = qrels.get(str(query["_id"]))
    return None if ids is None else Question(query["text"].strip(), ids=ids)


def _answers(entry: Mapping[str, Any]) -> tuple[str, ...]:
    name = next((name for name in ("golden_answers", "answers", "answer") if name in entry), "golden_answers")
    held = entry[name]
    if isinstance(held, Mapping):  # SQuAD as `datasets` has it
        held = cast("Mapping[str, Any]", held)["text"]
    if name == "answer" and isinstance(held, str):
        held = [held]
    if isinstance(held, str) or not held:
        raise ValueError(f"{name} is no list of texts, or empty")
    each = cast("Sequence[Any]", held)
    answers = tuple(dict.fromkeys(answer["text"] if isinstance(answer, Mapping) else answer for answer in each))
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{name} is no list of texts")
    return answers


def _titles(facts: Any) -> frozenset[str]:
    """The titles in HotpotQA's supporting facts: pairs of title and sentence, or as `datasets` has them."""
    return frozenset(facts["title"]) if isinstance(facts, Mapping) else frozenset(title for title, _ in facts)


def _qrels(path: Path) -> dict[str, frozenset[str]]:
    """The passages that BEIR's file judges right for each query; none where there is no such file."""
    judged: dict[str, set[str]] = {}
    if path.is_file():
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if int(row["score"]) > 0:
                    judged.setdefault(row["query-id"], set()).add(row["corpus-id"])
    return {query: frozenset(ids) for query, ids in judged.items()}
