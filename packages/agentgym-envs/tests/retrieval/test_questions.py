"""Tests of reading published question files and of the recall of their gold passages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.cli.main import searchqa_index
from agentgym_envs.retrieval import Hit, Passage
from agentgym_envs.retrieval.questions import Question, read_questions
from agentgym_envs.retrieval.recall import gold_recall

PARAGRAPH = "Ham is a village. Its mayor is O'Neil."
SQUAD = {
    "data": [
        {
            "title": "Ham",
            "paragraphs": [
                {
                    "context": PARAGRAPH,
                    "qas": [
                        {
                            "id": "a",
                            "question": "Who is mayor?",
                            "answers": [{"text": "O'Neil", "answer_start": 32}] * 3,
                        },
                        {"id": "b", "question": "Who is king?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
    "version": "v2.0",
}
FACTS = [["Ham", 0], ["Ham", 1], ["O'Neil", 0]]
HOTPOT = {
    "_id": "5a",
    "question": "Who is mayor?",
    "answer": "O'Neil",
    "supporting_facts": FACTS,
    "context": [["Ham", []]],
}
GOLD_TITLES = frozenset({"Ham", "O'Neil"})


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("q.jsonl", [{"question": " Who? ", "golden_answers": ["me", "I"]}], Question("Who?", ("me", "I"))),
        ("q.jsonl", [{"question": "Who?", "answers": {"text": ["me", "me"], "answer_start": [0, 0]}, "context": "c"}],
         Question("Who?", ("me",), context="c")),
        ("q.jsonl", [{"question": "Who?", "answer": ["me"]}], Question("Who?", ("me",))),
        ("q.json", SQUAD, Question("Who is mayor?", ("O'Neil",), context=PARAGRAPH)),
        ("q.json", [HOTPOT], Question("Who is mayor?", ("O'Neil",), titles=GOLD_TITLES)),
        ("q.jsonl", [HOTPOT | {"supporting_facts": {"title": ["Ham", "O'Neil"], "sent_id": [0, 0]}}],
         Question("Who is mayor?", ("O'Neil",), titles=GOLD_TITLES)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("byte_order_mark", ["", "\ufeff"])
def test_published_question_formats_are_read(
    tmp_path: Path, name: str, content: Any, expected: Question, byte_order_mark: str
) -> None:
    lines = name.endswith("l")
    text = "\n\n".join(map(json.dumps, content)) if lines else json.dumps(content, indent=1)
    (tmp_path / name).write_text(byte_order_mark + text, encoding="utf-8")
    assert list(read_questions(tmp_path / name)) == [expected]


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_lines_are_recognized_with_either_suffix(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"q.{suffix}").write_text(
        '\n{"question": "What?", "answer": "data"}\n{"question": "Who?", "answer": "me"}\n'
    )
    assert [question.answers for question in read_questions(tmp_path / f"q.{suffix}")] == [("data",), ("me",)]


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir()
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t2\nq2\td1\t0\n")
    queries = [{"_id": "q1", "text": "mayor of Ham", "metadata": {}}, {"_id": "q2", "text": "king"}]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    return folder / "queries.jsonl"


def test_beir_queries_with_relevant_passages_are_read(tmp_path: Path) -> None:
    assert list(read_questions(write_beir(tmp_path))) == [Question("mayor of Ham", ids=frozenset({"d1", "d2"}))]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", '{"question": "a", "answer": "b"}\n\n{"text": "a"}', r"line 3, is not a question; expected"),
        ("q.json", '[{"question": "a", "answer": "b"}, 3]', r"q\.json, entry 2, is not a question"),
        ("q.json", "[", r"q\.json is not valid JSON"),
        ("q.json", '{"data": [{"title": "a"}]}', r"q\.json contains no questions; expected .*'paragraphs'"),
        ("q.json", "{\n}", r"q\.json contains no questions; expected .*'data'"),
        ("q.json", "3", r"q\.json contains no questions; expected"),
    ],
)
def test_invalid_question_is_reported_with_its_position(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_questions(tmp_path / name))


class ConstantRetriever:
    """A retriever that returns the same passages for every query."""

    passages = (Passage("1", "King", "No king."), Passage("2", "Ham", PARAGRAPH), Passage("3", "O'Neil", "A man."))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[Hit(passage, 1.0) for passage in self.passages[:k]] for _ in queries]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("question", "recalls"),
    [
        (Question("?", ids=frozenset({"2", "9"})), [0, 0.5, 0.5]),
        (Question("?", ("x",), titles=GOLD_TITLES), [0, 0.5, 1]),
        (Question("?", ("x",), context=f" {PARAGRAPH.replace(' ', '  ')}"), [0, 1, 1]),
        (Question("?", ("king",)), [1, 1, 1]),
        (Question("?", ("the O'Neil!",)), [0, 1, 1]),
        (Question("?", ("O'Nei",)), [0, 0, 0]),
    ],
)
def test_gold_recall_at_several_cutoffs(question: Question, recalls: list[float]) -> None:
    retriever = ConstantRetriever()
    assert gold_recall(retriever, [question], (1, 2, 3)) == (dict(zip((1, 2, 3), recalls, strict=True)), 1)
    mean = gold_recall(retriever, [question, Question("?", ids=frozenset({"9"}))] * 300, (1, 2, 3))
    assert mean == ({k: recall / 2 for k, recall in zip((1, 2, 3), recalls, strict=True)}, 600)


def test_recall_of_no_questions_is_an_error() -> None:
    with pytest.raises(ValueError, match="no questions"):
        gold_recall(ConstantRetriever(), [], (1,))


def test_searchqa_index_prints_the_recall_of_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"_id": "d1", "title": "Ham", "text": PARAGRAPH}, {"_id": "d2", "title": "King", "text": "A mayor rules."}]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    questions = write_beir(tmp_path)
    out = tmp_path / "index"
    assert (
        searchqa_index([str(tmp_path / "corpus.jsonl"), str(out), "--backend", "bm25", "--questions", str(questions)])
        == 0
    )
    assert capsys.readouterr().out == (
        f"{out} contains 2 passages; search it with bm25:{out}\n"
        f"recall@1 50.0%, recall@3 100.0%, recall@10 100.0% over 1 questions of {questions}\n"
    )
