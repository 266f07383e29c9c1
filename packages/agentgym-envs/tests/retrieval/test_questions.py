"""Question files as they are published, and how many of their passages are found."""

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
BOTH = frozenset({"Ham", "O'Neil"})


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("q.jsonl", [{"question": " Who? ", "golden_answers": ["me", "I"]}], Question("Who?", ("me", "I"))),
        ("q.jsonl", [{"question": "Who?", "answers": {"text": ["me", "me"], "answer_start": [0, 0]}, "context": "c"}],
         Question("Who?", ("me",), context="c")),
        ("q.jsonl", [{"question": "Who?", "answer": ["me"]}], Question("Who?", ("me",))),
        ("q.json", SQUAD, Question("Who is mayor?", ("O'Neil",), context=PARAGRAPH)),
        ("q.json", [HOTPOT], Question("Who is mayor?", ("O'Neil",), titles=BOTH)),
        ("q.jsonl", [HOTPOT | {"supporting_facts": {"title": ["Ham", "O'Neil"], "sent_id": [0, 0]}}],
         Question("Who is mayor?", ("O'Neil",), titles=BOTH)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_questions_as_they_are_published(
    tmp_path: Path, name: str, content: Any, expected: Question, mark: str
) -> None:
    lines = name.endswith("l")
    text = "\n\n".join(map(json.dumps, content)) if lines else json.dumps(content, indent=1)
    (tmp_path / name).write_text(mark + text, encoding="utf-8")
    assert list(read_questions(tmp_path / name)) == [expected]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_lines_are_lines_whatever_they_say(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"q.{ending}").write_text(
        '\n{"question": "What?", "answer": "data"}\n{"question": "Who?", "answer": "me"}\n'
    )
    assert [question.answers for question in read_questions(tmp_path / f"q.{ending}")] == [("data",), ("me",)]


def beir(folder: Path) -> Path:
    (folder / "qrels").mkdir()
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t2\nq2\td1\t0\n")
    queries = [{"_id": "q1", "text": "mayor of Ham", "metadata": {}}, {"_id": "q2", "text": "king"}]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    return folder / "queries.jsonl"


def test_queries_of_beir_that_something_is_judged_right_for(tmp_path: Path) -> None:
    assert list(read_questions(beir(tmp_path))) == [Question("mayor of Ham", ids=frozenset({"d1", "d2"}))]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("q.jsonl", '{"question": "a", "answer": "b"}\n\n{"text": "a"}', r"line 3, is not a question; expected"),
        ("q.json", '[{"question": "a", "answer": "b"}, 3]', r"q\.json, entry 2, is not a question"),
        ("q.json", "[", r"q\.json is not valid JSON"),
        ("q.json", '{"data": [{"title": "a"}]}', r"q\.json contains no questions; expected .*'paragraphs'"),
        ("q.json", "{\n}", r"q\.json contains no questions; expected .*'data'"),
        ("q.json", "3", r"q\.json contains no questions; expected"),
    ],
)
def test_what_is_no_question_is_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says):
        list(read_questions(tmp_path / name))


class Shelf:
    """Finds the same passages for everything."""

    found = (Passage("1", "King", "No king."), Passage("2", "Ham", PARAGRAPH), Passage("3", "O'Neil", "A man."))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[Hit(passage, 1.0) for passage in self.found[:k]] for _ in queries]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("question", "shares"),
    [
        (Question("?", ids=frozenset({"2", "9"})), [0, 0.5, 0.5]),
        (Question("?", ("x",), titles=BOTH), [0, 0.5, 1]),
        (Question("?", ("x",), context=f" {PARAGRAPH.replace(' ', '  ')}"), [0, 1, 1]),
        (Question("?", ("king",)), [1, 1, 1]),
        (Question("?", ("the O'Neil!",)), [0, 1, 1]),
        (Question("?", ("O'Nei",)), [0, 0, 0]),
    ],
)
def test_the_share_of_gold_passages_among_the_first(question: Question, shares: list[float]) -> None:
    assert gold_recall(Shelf(), [question], (1, 2, 3)) == (dict(zip((1, 2, 3), shares, strict=True)), 1)
    both = gold_recall(Shelf(), [question, Question("?", ids=frozenset({"9"}))] * 300, (1, 2, 3))
    assert both == ({k: share / 2 for k, share in zip((1, 2, 3), shares, strict=True)}, 600)


def test_without_questions_there_is_no_recall() -> None:
    with pytest.raises(ValueError, match="no questions"):
        gold_recall(Shelf(), [], (1,))


def test_an_index_and_its_recall_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"_id": "d1", "title": "Ham", "text": PARAGRAPH}, {"_id": "d2", "title": "King", "text": "A mayor rules."}]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    questions = beir(tmp_path)
    out = tmp_path / "index"
    assert (
        searchqa_index([str(tmp_path / "corpus.jsonl"), str(out), "--backend", "bm25", "--questions", str(questions)])
        == 0
    )
    assert capsys.readouterr().out == (
        f"{out} contains 2 passages; search it with bm25:{out}\n"
        f"recall@1 50.0%, recall@3 100.0%, recall@10 100.0% over 1 questions of {questions}\n"
    )
