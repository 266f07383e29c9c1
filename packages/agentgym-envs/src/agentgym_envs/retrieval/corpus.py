"""Reads passages from files, one at a time: JSONL as Search-R1, Pyserini and FlashRAG have it, and DPR's TSV.

A file is told by its name: `.jsonl`, `.json` (one object a line) or `.tsv`, each also with `.gz`. Knows no index.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from agentgym_envs.retrieval.passages import Passage

_SUFFIXES = (".jsonl", ".json", ".tsv")
_DPR = ("id", "text", "title")
_FORMS = '{"id", "contents"} or {"id", "title", "text"}'


class CorpusError(ValueError):
    """A corpus can't be read; the message names the file, the line and what was expected there."""


def read_corpus(path: Path) -> Iterator[Passage]:
    r"""The passages of a corpus file in the file's order, read lazily.

    JSONL: `{"id", "contents": "\"title\"\ntext"}` (Search-R1, Pyserini, FlashRAG) or `{"id", "title", "text"}`.
    TSV: the columns `id`, `text` and `title`, named in the first line, quoted as in DPR's `psgs_w100.tsv`.

    Raises:
        CorpusError: at once for a file that is missing or of no known kind, and while reading for a bad line.
    """
    kind = _suffix(path)
    if kind is None:
        raise CorpusError(f"{path} is no corpus by its name; the names end in {', '.join(_SUFFIXES)}, or that and .gz.")
    if not path.is_file():
        raise CorpusError(f"There is no corpus file {path}.")
    return _read_tsv(path) if kind == ".tsv" else _read_jsonl(path)


def passage_of(document: Mapping[str, Any]) -> Passage:
    """The passage that a JSON object of one of the two forms holds.

    Raises:
        ValueError: for an object of neither form.
    """
    key = document.get("id")
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise ValueError(f"it has no id (a text or a whole number); expected {_FORMS}")
    text, contents = document.get("text"), document.get("contents")
    if isinstance(text, str):
        title = document.get("title")
        return Passage(str(key), title if isinstance(title, str) else "", text)
    if isinstance(contents, str):
        return Passage(str(key), *split_contents(contents))
    raise ValueError(f"it has neither text nor contents; expected {_FORMS}")


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of what Search-R1's corpora call `contents`: the first line is the title, mostly in quotes.

    Contents of a single line are all text.
    """
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    quoted = len(title) > 1 and title[0] == title[-1] == '"'
    return (title[1:-1] if quoted else title), text


def _suffix(path: Path) -> str | None:
    """Which of `_SUFFIXES` the name ends in, `.gz` aside; None for another."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return suffix if suffix in _SUFFIXES else None


def _open(path: Path) -> TextIO:
    # newline="" leaves line ends inside quoted TSV fields to the csv module
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _read_jsonl(path: Path) -> Iterator[Passage]:
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):  # noqa: B007 - the number is for the error below
                if line.strip():
                    yield _passage_of_line(line)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, line {max(number, 1)}: {error}.") from error


def _passage_of_line(line: str) -> Passage:
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(document, dict):
        raise ValueError(f"it is no JSON object; expected {_FORMS}")
    return passage_of(cast("dict[str, Any]", document))


def _read_tsv(path: Path) -> Iterator[Passage]:
    line = 1
    try:
        with _open(path) as file:
            rows = csv.reader(file, delimiter="\t")
            header = next(rows, [])
            if missing := [name for name in _DPR if name not in header]:
                raise ValueError(f"the first line names no column {' or '.join(missing)}; expected id, text and title")
            places = [header.index(name) for name in _DPR]
            for row in rows:
                line = rows.line_num
                if len(row) != len(header):
                    raise ValueError(f"it has {len(row)} columns, not {len(header)}")
                key, text, title = (row[place] for place in places)
                yield Passage(key, title, text)
    except (ValueError, csv.Error, EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, line {line}: {error}.") from error
