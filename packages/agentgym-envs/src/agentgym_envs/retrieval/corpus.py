"""Reads passages from files: JSON lines as Search-R1, Pyserini, FlashRAG and BEIR have them, arrays, and DPR's TSV.

A file is told by its name: `.jsonl`, `.json` (an array, or one object a line) or `.tsv`, each also with `.gz`. Lines
are read one at a time, an array as a whole. Knows no index.
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
    """A corpus can't be read; the message names the file, the line and what was expected there."""


def read_corpus(path: Path) -> Iterator[Passage]:
    r"""The passages of a corpus file in the file's order, read lazily.

    JSON: `{"id", "contents": "\"title\"\ntext"}` (Search-R1, Pyserini, FlashRAG) or `{"id", "title", "text"}`, where
    the id may be called `_id` (BEIR); one without gets its place among the passages, from 0, as its id.
    TSV: the columns `id`, `text` and `title`, named in the first line, quoted as in DPR's `psgs_w100.tsv`.

    Passages with the id of another are counted in a warning at the end: both are found under it.

    Raises:
        CorpusError: at once for a file that is missing or of no known kind, and while reading for a bad line.
    """
    kind = _suffix(path)
    if kind is None:
        raise CorpusError(f"{path} is no corpus by its name; the names end in {', '.join(_SUFFIXES)}, or that and .gz.")
    if not path.is_file():
        raise CorpusError(f"There is no corpus file {path}.")
    return _checked(path, _read_tsv(path) if kind == ".tsv" else _read_json(path))


def _checked(path: Path, passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages, and in the end a warning where ids aren't unique."""
    hashes = array("q")
    for passage in passages:
        hashes.append(hash(passage.id))
        yield passage
    ordered = np.sort(np.frombuffer(hashes, np.int64)) if hashes else np.empty(0, np.int64)
    if again := int(np.count_nonzero(ordered[1:] == ordered[:-1])):
        _log.warning(
            "%s: %s of %s passages have an id that another has; searches find both under it.",
            path, f"{again:,}", f"{len(hashes):,}",
        )  # fmt: skip


def passage_of(document: Mapping[str, Any]) -> Passage:
    """The passage that a JSON object of one of the two forms holds.

    Raises:
        ValueError: for an object of neither form.
    """
    key = document.get("id", document.get("_id"))
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
    # newline="" leaves line ends inside quoted TSV fields to the csv module; -sig takes a byte order mark for none
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_json(path: Path) -> Iterator[Passage]:
    thing, number = "line", 1
    try:
        with _open(path) as file:
            if _suffix(path) == ".json" and _begins_array(file):
                thing = "entry"
                entries = enumerate(json.load(file), 1)
            else:
                entries = ((at, line) for at, line in enumerate(file, 1) if line.strip())
            for place, (number, entry) in enumerate(entries):  # noqa: B007 - the number is for the error below
                yield passage_of(_with_id(_object(entry), place))
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}, {thing} {number}: {error}.") from error


def _begins_array(file: TextIO) -> bool:
    begin = file.read(1_024)
    file.seek(0)
    return begin.lstrip().startswith("[")


def _object(entry: Any) -> dict[str, Any]:
    """The object that an array's entry is, or that a line holds."""
    try:
        document = json.loads(entry) if isinstance(entry, str) else entry
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(document, dict):
        raise ValueError(f"it is no JSON object; expected {_FORMS}")
    return cast("dict[str, Any]", document)


def _with_id(document: dict[str, Any], place: int) -> dict[str, Any]:
    return document if document.get("id", document.get("_id")) is not None else document | {"id": place}


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
