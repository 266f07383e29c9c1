"""Reads published question sets, with their answers and gold passages where the format has them.

Supported formats: FlashRAG and Search-R1 (`golden_answers`), SQuAD (its own file and the `datasets` version), HotpotQA
and 2WikiMultiHopQA (`answer`, `supporting_facts`), and BEIR's `queries.jsonl` with `qrels/test.tsv` in the same folder.
Does not depend on any retriever.
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
    """A question and its gold passages, given by `ids`, by `titles`, by `context`, or else by the answers."""

    text: str
    answers: tuple[str, ...] = ()
    """All accepted answers, the preferred one first."""
    ids: frozenset[str] = frozenset()
    titles: frozenset[str] = frozenset()
    context: str = ""


def read_questions(path: Path) -> Iterator[Question]:
    """Read the questions of a JSON lines file, a JSON array, SQuAD's file, or BEIR's queries.

    Raises:
        ValueError: for an entry that isn't a question; the message names file and line.
        OSError: if the file can't be read.
    """
    qrels = _qrels(path.parent / "qrels" / "test.tsv")
    for location, entry in _entries(path):
        try:
            parsed = json.loads(entry) if isinstance(entry, str) else entry
            question = _beir_question(parsed, qrels) if qrels and "question" not in parsed else question_of(parsed)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, {location}, is not a question; expected {FORMS}: {error!r}.") from error
        if question is not None:
            yield question


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a file (JSON lines as text, or parsed objects), each with its location for errors."""
    with path.open(encoding="utf-8-sig") as file:
        if path.suffix != ".json" or _is_lines(next(filter(str.strip, file), "")):
            file.seek(0)
            yield from ((f"line {number}", line) for number, line in enumerate(file, 1) if line.strip())
            return
        file.seek(0)
        try:
            parsed = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not valid JSON: {error}.") from error
    try:
        rows = list(_squad(parsed) if isinstance(parsed, dict) else parsed)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} contains no questions; expected {FORMS}: {error!r}.") from error
    yield from ((f"entry {number}", row) for number, row in enumerate(rows, 1))


def _is_lines(first: str) -> bool:
    """Whether the first line of a file is a complete object, and not (the start of) a SQuAD file."""
    try:
        parsed = json.loads(first)
    except json.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and "data" not in parsed


def _squad(parsed: Any) -> Iterator[dict[str, Any]]:
    """Yield the questions in SQuAD's file, without the unanswerable ones."""
    for article in parsed["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question["answers"]:
                    yield {**question, "context": paragraph["context"]}


def question_of(entry: Mapping[str, Any]) -> Question:
    """Convert a JSON object to a question with answers.

    Raises:
        ValueError, KeyError, TypeError: if the object has none of the expected forms.
    """
    text = entry["question"]
    if not (isinstance(text, str) and text.strip()):
        raise ValueError("the question is empty")
    context = entry.get("context")
    answers, titles = _answers(entry), _titles(entry.get("supporting_facts") or ())
    return Question(text.strip(), answers, titles=titles, context=context if isinstance(context, str) else "")


def _beir_question(query: Mapping[str, Any], qrels: Mapping[str, frozenset[str]]) -> Question | None:
    """Convert one of BEIR's queries; None if it has no relevance judgements."""
    ids = qrels.get(str(query["_id"]))
    return None if ids is None else Question(query["text"].strip(), ids=ids)


def _answers(entry: Mapping[str, Any]) -> tuple[str, ...]:
    name = next((name for name in ("golden_answers", "answers", "answer") if name in entry), "golden_answers")
    value = entry[name]
    if isinstance(value, Mapping):  # SQuAD's `answers` in the `datasets` version
        value = cast("Mapping[str, Any]", value)["text"]
    if name == "answer" and isinstance(value, str):
        value = [value]
    if isinstance(value, str) or not value:
        raise ValueError(f"{name} is not a list of strings, or is empty")
    entries = cast("Sequence[Any]", value)
    answers = tuple(dict.fromkeys(answer["text"] if isinstance(answer, Mapping) else answer for answer in entries))
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{name} is not a list of strings")
    return answers


def _titles(facts: Any) -> frozenset[str]:
    """Return the titles in HotpotQA's supporting facts: (title, sentence) pairs, or columns in `datasets`."""
    return frozenset(facts["title"]) if isinstance(facts, Mapping) else frozenset(title for title, _ in facts)


def _qrels(path: Path) -> dict[str, frozenset[str]]:
    """Return the relevant passage ids of each query from BEIR's qrels file; empty if there is no such file."""
    judged: dict[str, set[str]] = {}
    if path.is_file():
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if int(row["score"]) > 0:
                    judged.setdefault(row["query-id"], set()).add(row["corpus-id"])
    return {query: frozenset(ids) for query, ids in judged.items()}
