"""Tests of reading passages from corpus files, and of the errors for invalid lines."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from agentgym_envs.retrieval import Passage
from agentgym_envs.retrieval.corpus import CorpusError, read_corpus, split_contents
from agentgym_envs.retrieval.passage_file import PassageFile, write_passages
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
AARON = Passage("1", "Aaron", 'Aaron is called "the brother of Moses".')


@pytest.mark.parametrize(
    "row",
    [
        {"id": "1", "contents": f'"Aaron"\n{AARON.text}'},
        {"id": 1, "contents": f"Aaron\n{AARON.text}"},
        {"id": "1", "title": "Aaron", "text": AARON.text},
        {"id": "1", "title": "Aaron", "text": AARON.text, "contents": "another"},
    ],
)
@pytest.mark.parametrize("name", ["c.jsonl", "c.json", "c.jsonl.gz"])
def test_json_lines_are_read(tmp_path: Path, row: dict[str, str], name: str) -> None:
    line = json.dumps(row).encode() + b"\n\n"
    (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith("gz") else line)
    assert list(read_corpus(tmp_path / name)) == [AARON]


ROWS = [{"title": "Aaron", "text": AARON.text}, {"title": "Moses", "text": "A brother."}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.json", json.dumps(ROWS)),  # HippoRAG
        ("c.json", "\ufeff \n" + json.dumps(ROWS, indent=2)),
        ("c.json.gz", json.dumps(ROWS)),
        ("c.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, ROWS))),
        (
            "c.jsonl",
            "\n".join(json.dumps({"_id": str(i), **row, "metadata": {}}) for i, row in enumerate(ROWS)),
        ),  # BEIR
        (
            "c.tsv",
            f'\ufeffid\ttext\ttitle\n0\t"{AARON.text.replace(chr(34), chr(34) * 2)}"\tAaron\n1\tA brother.\tMoses\n',
        ),
    ],
)
def test_published_corpus_formats_are_read(tmp_path: Path, name: str, content: str) -> None:
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert list(read_corpus(tmp_path / name)) == [
        Passage("0", "Aaron", AARON.text),
        Passage("1", "Moses", "A brother."),
    ]


def test_duplicate_ids_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": key, "text": "a"}) + "\n" for key in ("1", 1, "2", "1", "3")))
    assert len(list(read_corpus(path))) == 5
    (message,) = caplog.messages
    assert message == f"{path}: 2 of 5 passages have the id of an earlier passage; searches return both."
    path.write_text('{"id": "1", "text": "a"}\n')
    list(read_corpus(path))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("gz", [False, True])
def test_dpr_wikipedia_format_is_read(tmp_path: Path, gz: bool) -> None:
    path = tmp_path / ("psgs_w100.tsv.gz" if gz else "psgs_w100.tsv")
    rows = [["id", "text", "title"], ["1", AARON.text, "Aaron"], ["2", "two\nlines", "A\ttab"]]
    with gzip.open(path, "wt", newline="") if gz else path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(rows)
    assert list(read_corpus(path)) == [AARON, Passage("2", "A\ttab", "two\nlines")]


def test_corpus_is_read_lazily(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "text": "good"}\nbad\n')
    passages = read_corpus(tmp_path / "c.jsonl")
    assert next(passages) == Passage("1", "", "good")
    with pytest.raises(CorpusError, match=r"c\.jsonl, line 2: it is not valid JSON \(.* at column 1\)"):
        next(passages)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", b"[1]\n", "line 1: it is not a JSON object; expected"),
        ("c.jsonl", b'\n{"id": true, "text": "a"}\n', r"line 2: it has no id \(a string or an integer\); expected"),
        ("c.json", b'[{"text": "a"},\n{"title": "a"}]\n', "entry 2: it has neither text nor contents; expected"),
        ("c.json", b'[{"text": "a"},\n["a"]]\n', "entry 2: it is not a JSON object; expected"),
        ("c.json", b'[{"text": "a"},\n', "entry 1: Expecting value: line"),
        ("c.jsonl", b'{"id": "1", "title": "a"}\n', "line 1: it has neither text nor contents; expected"),
        ("c.jsonl", b"\xff\n", "line 1: 'utf-8' codec"),
        ("c.jsonl.gz", b"no gzip", "line 1: Not a gzipped file"),
        ("c.jsonl.gz", gzip.compress(b'{"id": "1", "text": "a"}\n' * 99, mtime=0)[:-9], "Compressed file ended"),
        ("c.tsv", b"", "line 1: the first line names no column id or text or title"),
        ("c.tsv", b"id\ttext\n", "line 1: the first line names no column title; expected id, text and title"),
        ("c.tsv", b"id\ttext\ttitle\n1\ta\tb\n2\ta\n", "line 3: it has 2 columns, not 3"),
    ],
)
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=rf"{name}, .*{message}"):
        list(read_corpus(tmp_path / name))


def test_unsupported_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"c\.parquet has no corpus suffix; expected \.jsonl"):
        read_corpus(tmp_path / "c.parquet")
    with pytest.raises(CorpusError, match="There is no corpus file"):
        read_corpus(tmp_path / "c.jsonl")


@given(TEXTS.filter(lambda title: "\n" not in title), TEXTS)
def test_split_contents_inverts_contents(title: str, text: str) -> None:
    assert split_contents(Passage("1", title, text).contents) == (title, text)


def test_contents_of_one_line_have_no_title() -> None:
    assert split_contents("all of it") == ("", "all of it")


@given(st.lists(st.builds(Passage, TEXTS, TEXTS, TEXTS), min_size=1))
def test_written_passages_are_read_back(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    folder = tmp_path_factory.mktemp("passages")
    assert list(write_passages(folder, passages)) == passages
    file = PassageFile(folder)
    assert [file[index] for index in range(len(file))] == passages
