"""Tests of the files with readers' annotations."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from agentgym_eval.storage.annotations import Annotation, add_annotation, annotations_file, read_annotations
from agentgym_eval.util.errors import UsageError

KEY = ("agentgym/Near-v0", "t/1", 0)


def test_last_annotation_counts_and_an_empty_one_withdraws(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    assert read_annotations(path) == {}
    first = Annotation.of(["loops", " good "], "<b>\nline two")
    assert first.labels == ("good", "loops")
    add_annotation(path, 3, KEY, first)
    add_annotation(path, 1, KEY, Annotation.of(["bad"], ""))
    assert read_annotations(path) == {1: (KEY, read_annotations(path)[1][1]), 3: (KEY, first)}
    add_annotation(path, 3, KEY, Annotation.of([], "  "))
    assert list(read_annotations(path)) == [1]
    assert len(annotations_file(path).read_text().splitlines()) == 3
    assert not path.exists()


def test_damaged_lines_are_left_out_and_half_a_line_doesn_t_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    add_annotation(path, 0, KEY, Annotation.of(["good"], ""))
    line = json.loads(annotations_file(path).read_text())
    damaged = ["[]", "{", '{"schema": "agentgym.annotation/9"}', "[" * 100_000]
    damaged += [
        json.dumps(line | change)
        for change in ({"episode": "0"}, {"episode": -1}, {"episode": 2**63}, {"labels": "good"}, {"labels": [1]},
                       {"note": None}, {"note": "\ud800"}, {"sample": True}, {"sample": 2**64})
    ]  # fmt: skip
    annotations_file(path).write_text("\n".join([json.dumps(line), *damaged, '{"schema": "half a']))
    add_annotation(path, 7, KEY, Annotation.of([], "after a crash"))
    found = read_annotations(path)
    assert {number: each.labels for number, (_, each) in found.items()} == {0: ("good",), 7: ()}


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"

    def write(start: int) -> None:
        for number in range(start, start + 200):
            add_annotation(path, number, KEY, Annotation.of([f"label {number}"], "x" * 500))

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_annotations(path)) == 600


@pytest.mark.parametrize(
    ("labels", "note", "sentence"),
    [
        (["*"], "", "begins with a letter"),
        (["!good"], "", "begins with a letter"),
        (["a,b"], "", "no comma"),
        (["a\x07b"], "", "no comma"),
        (["x" * 61], "", "at most 60 characters"),
        ([f"l{n}" for n in range(21)], "", "at most 20 labels, not 21"),
        ([], "x" * 20_001, "at most 20,000 characters"),
    ],
)
def test_invalid_annotations_are_one_sentence_errors(labels: list[str], note: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Annotation.of(labels, note)
