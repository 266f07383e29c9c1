"""The texts of token ids: a look-up in the `tokenizer.json` that a training run keeps with its model.

Turning ids into text takes a table and no tokenizer. Tables whose tokens stand for bytes are known: byte-level BPE
(GPT, Qwen, Llama 3) and SentencePiece with byte fallback (Llama 2, Gemma, Mistral).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym_eval.viewer.index.runs import read_json

_PLACES = ("model", "start", "checkpoints/*")
_LARGEST = 100_000_000
"""Bytes; the largest published ones have a third of that."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level BPE writes as the character of their number; it writes the others from U+0100 on."""
_OTHERS = sorted(set(range(256)) - {*_PRINTED})
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(0x100 + at): byte for at, byte in enumerate(_OTHERS)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token id stands for."""

    pieces: Mapping[int, bytes]
    whole: frozenset[int]
    """Ids of added tokens, such as `<|im_end|>`, that are a text by themselves."""

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The text of each id of a sequence.

        A character that several tokens make up is the text of the last of them. An id that isn't in the table is
        written as `<id 7>`.
        """
        texts: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for number in ids:
            piece = self.pieces.get(number)
            if piece is None or number in self.whole:  # a character that was begun remains a fragment
                texts.append(decoder.decode(b"", final=True) + (f"<id {number}>" if piece is None else piece.decode()))
            else:
                texts.append(decoder.decode(piece))
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts


def find_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary of the model in a training run's folder; None where it keeps none, or one of an unknown kind."""
    for place in _PLACES:
        for path in sorted(folder.glob(f"{place}/tokenizer.json")):
            try:
                stat = path.stat()
            except OSError:
                continue  # a checkpoint that was just deleted
            if stat.st_size <= _LARGEST and (found := _read(path, stat.st_mtime_ns, stat.st_size)) is not None:
                return found
    return None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Vocabulary | None:
    """The vocabulary in a file as it was when it had this time and size."""
    try:
        return _vocabulary(read_json(path))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _vocabulary(record: Mapping[str, Any]) -> Vocabulary | None:
    """Raises KeyError, TypeError, ValueError or AttributeError for what isn't a tokenizer."""
    kinds = set(_decoders(record["decoder"]))
    vocab = record["model"]["vocab"]
    numbered = vocab.items() if isinstance(vocab, dict) else ((each[0], at) for at, each in enumerate(vocab))
    if "ByteLevel" in kinds:
        pieces = {int(number): _byte_level(piece) for piece, number in numbered}
    elif kinds & {"Metaspace", "ByteFallback"}:
        pieces = {int(number): _sentence_piece(piece) for piece, number in numbered}
    else:
        return None
    added = {int(each["id"]): str(each["content"]).encode() for each in record.get("added_tokens") or ()}
    return Vocabulary(pieces | added, frozenset(added))


def _decoders(decoder: Mapping[str, Any]) -> Iterator[str]:
    """The types of a decoder and of those it is made up of."""
    yield decoder["type"]
    for each in decoder.get("decoders") or ():
        yield from _decoders(each)


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # a token that was added into the table itself
        return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
