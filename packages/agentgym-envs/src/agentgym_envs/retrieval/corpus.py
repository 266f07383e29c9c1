"""Reads corpus files: the JSON lines of Search-R1, Pyserini, FlashRAG and BEIR, JSON arrays, and DPR's TSV.

The suffix decides: `.jsonl`, `.json` (an array, or one object per line) or `.tsv`, each optionally with `.gz`. Lines
are read lazily, an array as a whole. Does not depend on any index.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from agentgym_envs.retrieval.passages import Passage

_log = logging.getLogger(__name__)
_SUFFIXES = (".jsonl", ".json", ".tsv")
_DPR = ("id", "text", "title")
_FORMS = '{"id", "contents"} or {"id", "title", "text"}'


class CorpusError(ValueError):
    """Raised for an unreadable corpus; the message names the file, the line and the expected form."""


def read_corpus(path: Path) -> Iterator[Passage]:
    r"""Read the passages of a corpus file lazily, in the file's order.

    JSON: `{"id", "contents": "\"title\"\ntext"}` (Search-R1, Pyserini, FlashRAG) or `{"id", "title", "text"}`, where
    the id may be called `_id` (BEIR). A passage without an id gets its position, counted from 0.
    TSV: the columns `id`, `text` and `title`, named in the first line, quoted as in DPR's `psgs_w100.tsv`.

    Duplicate ids are counted in a warning at the end; searches return all passages of such an id.

    Raises:
        CorpusError: immediately if the file is missing or has an unknown suffix; during iteration for a bad line.
    """
    kind = _suffix(path)
    if kind is None:
        raise CorpusError(f"{path} has no corpus suffix; expected {', '.join(_SUFFIXES)}, or one of these and .gz.")
    if not path.is_file():
        raise CorpusError(f"There is no corpus file {path}.")
    return _checked(path, _read_tsv(path) if kind == ".tsv" else _read_json(path))


def _checked(path: Path, passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yield the passages, then warn about duplicate ids."""
    hashes = array("q")
    for passage in passages:
        hashes.append(hash(passage.id))
        yield passage
    ordered = np.sort(np.frombuffer(hashes, np.int64)) if hashes else np.empty(0, np.int64)
    if duplicates := int(np.count_nonzero(ordered[1:] == ordered[:-1])):
        _log.warning(
            "%s: %s of %s passages have the id of an earlier passage; searches return both.",
            path, f"{duplicates:,}", f"{len(hashes):,}",
        )  # fmt: skip


def passage_of(document: Mapping[str, Any]) -> Passage:
    """Convert a JSON object of one of the two forms to a passage.

    Raises:
        ValueError: if the object has neither form.
    """
    key = document.get("id", document.get("_id"))
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise ValueError(f"it has no id (a string or an integer); expected {_FORMS}")
    text, contents = document.get("text"), document.get("contents")
    if isinstance(text, str):
        title = document.get("title")
        return Passage(str(key), title if isinstance(title, str) else "", text)
    if isinstance(contents, str):
        return Passage(str(key), *split_contents(contents))
    raise ValueError(f"it has neither text nor contents; expected {_FORMS}")


def split_contents(contents: str) -> tuple[str, str]:
    """Split Search-R1's `contents` into title and text: the first line is the title, usually in quotes.

    Contents of a single line are all text, without a title.
    """
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    quoted = len(title) > 1 and title[0] == title[-1] == '"'
    return (title[1:-1] if quoted else title), text


def _suffix(path: Path) -> str | None:
    """Return which of `_SUFFIXES` the name has, ignoring `.gz`; None if it has another."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return suffix if suffix in _SUFFIXES else None


def _open(path: Path) -> TextIO:
    # newline="" leaves line breaks in quoted TSV fields to the csv module; utf-8-sig skips a byte order mark.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_json(path: Path) -> Iterator[Passage]:
    unit, number = "line", 1
    try:
        with _open(path) as file:
            if _suffix(path) == ".json" and _begins_array(file):
                unit = "entry"
                entries = enumerate(json.load(file), 1)
            else:
                entries = ((at, line) for at, line in enumerate(file, 1) if line.strip())
            for position, (number, entry) in enumerate(entries):  # noqa: B007 - the number is for the error below
                yield passage_of(_with_id(_object(entry), position))
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, {unit} {number}: {error}.") from error


def _begins_array(file: TextIO) -> bool:
    begin = file.read(1_024)
    file.seek(0)
    return begin.lstrip().startswith("[")


def _object(entry: Any) -> dict[str, Any]:
    """Return an array's entry, or parse a line, as a JSON object."""
    try:
        document = json.loads(entry) if isinstance(entry, str) else entry
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(document, dict):
        raise ValueError(f"it is not a JSON object; expected {_FORMS}")
    return cast("dict[str, Any]", document)


def _with_id(document: dict[str, Any], position: int) -> dict[str, Any]:
    return document if document.get("id", document.get("_id")) is not None else document | {"id": position}


def _read_tsv(path: Path) -> Iterator[Passage]:
    line = 1
    try:
        with _open(path) as file:
            rows = csv.reader(file, delimiter="\t")
            header = next(rows, [])
            if missing := [name for name in _DPR if name not in header]:
                raise ValueError(f"the first line names no column {' or '.join(missing)}; expected id, text and title")
            columns = [header.index(name) for name in _DPR]
            for row in rows:
                line = rows.line_num
                if len(row) != len(header):
                    raise ValueError(f"it has {len(row)} columns, not {len(header)}")
                key, text, title = (row[column] for column in columns)
                yield Passage(key, title, text)
    except (ValueError, csv.Error, EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, line {line}: {error}.") from error
