"""Converts an article's markup to blocks for templates, and to plain text for search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_INLINE = re.compile(r"\[\[([^\]|]+)(?:\|([^\]]+))?\]\]|\{\{(.+?)\}\}", re.DOTALL)
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text within a line."""

    text: str
    title: str | None = None
    """Title of the article it links to."""
    reference: int | None = None
    """Number of the reference it represents."""


def pieces(text: str, references: list[str] | None = None) -> list[Piece]:
    """Split a line into runs; references are appended to `references`."""
    made: list[Piece] = []
    end = 0
    for match in _INLINE.finditer(text):
        if match.start() > end:
            made.append(Piece(text[end : match.start()]))
        if match[3] is not None:
            if references is not None:
                references.append(match[3])
                made.append(Piece("", reference=len(references)))
        else:
            made.append(Piece(match[2] or match[1], match[1]))
        end = match.end()
    if end < len(text):
        made.append(Piece(text[end:]))
    return made


def blocks(body: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the blocks of an article (`heading`, `table`, `items`, `text`) and its references."""
    references: list[str] = []
    return [_block(part, references) for part in body.split("\n\n") if part.strip()], references


def _block(part: str, references: list[str]) -> Mapping[str, Any]:
    lines = part.strip().split("\n")
    if lines[0].startswith("== "):
        return {"kind": "heading", "text": lines[0].strip("= ")}
    if lines[0].startswith("| "):
        rows = [[pieces(cell.strip(), references) for cell in _cells(line)] for line in lines]
        return {"kind": "table", "head": rows[0], "rows": rows[1:]}
    if lines[0].startswith("* "):
        return {"kind": "items", "items": [pieces(line[2:], references) for line in lines]}
    return {"kind": "text", "pieces": pieces(" ".join(lines), references)}


def _cells(line: str) -> list[str]:
    """Split a table row into cells; a bar inside a link doesn't separate."""
    return re.split(r"\|(?![^\[]*\]\])", line.strip().removeprefix("|").removesuffix("|"))


def plain(text: str) -> str:
    """Return the text without markup, on one line."""
    shown = _INLINE.sub(lambda match: "" if match[3] is not None else match[2] or match[1], text)
    return _BLANKS.sub(" ", re.sub(r"[=|*]+ ?", " ", shown)).strip()


def targets(texts: Sequence[str]) -> list[str]:
    """Return the titles that the texts link to, without duplicates, in order."""
    found = [match[1] for text in texts for match in _INLINE.finditer(text) if match[3] is None]
    return list(dict.fromkeys(found))


def snippet(text: str, words: Sequence[str], length: int = 180) -> str:
    """Return an excerpt of a plain text around the first of the words."""
    small = text.lower()
    places = [place for word in words if (place := small.find(word)) >= 0]
    start = max(0, min(places, default=0) - length // 3)
    if start:
        start = text.find(" ", start) + 1
    cut = text[start : start + length]
    ended = start + length >= len(text)
    return ("… " if start else "") + (cut if ended else cut.rsplit(" ", 1)[0] + " …")
