"""Decoding of token ids with the vocabulary that a training run stores, or the `tokenizer.json` of its model.

Decoding needs only a lookup table, no tokenizer library. Supported are vocabularies whose tokens stand for bytes:
byte-level BPE (GPT, Qwen, Llama 3) and SentencePiece with byte fallback (Llama 2, Gemma, Mistral).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from agentgym_eval.storage.vocabulary_file import read_vocabulary, vocabulary_file
from agentgym_eval.viewer.index.discovery import read_json

_PARTS = ("iteration-*", "iteration-*/sft")
"""Folders with a vocabulary of their own in a run that consists of several."""
_MODELS = ("model", "start", "checkpoints/*")
_MAX_BYTES = 100_000_000
"""Maximum file size; the largest published tokenizers have a third of that."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level BPE writes as the character with the same number; the others are written from U+0100 on."""
_OTHERS = sorted(set(range(256)) - {*_PRINTED})
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(0x100 + at): byte for at, byte in enumerate(_OTHERS)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token id."""

    pieces: Mapping[int, bytes]
    added: frozenset[int]
    """Ids of added tokens, such as `<|im_end|>`, which are decoded separately."""

    def texts(self, ids: Iterable[int]) -> list[str]:
        """Decode each id of a sequence.

        A character that spans several tokens is in the text of the last of them. An id that isn't in the vocabulary
        is written as `<id 7>`.
        """
        texts: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in ids:
            piece = self.pieces.get(token_id)
            if piece is None or token_id in self.added:  # flush: an incomplete character stays incomplete
                text = f"<id {token_id}>" if piece is None else piece.decode()
                texts.append(decoder.decode(b"", final=True) + text)
            else:
                texts.append(decoder.decode(piece))
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts


def find_vocabulary(folder: Path) -> Vocabulary | None:
    """Find the vocabulary of a training run: the one in its folder, or for older runs that of its model.

    Returns:
        None if there is none, or none of a supported kind.
    """
    parts = (part for each in _PARTS for part in sorted(folder.glob(each)))
    models = (path for each in _MODELS for path in sorted(folder.glob(f"{each}/tokenizer.json")))
    for path in chain(map(vocabulary_file, chain([folder], parts)), models):
        try:
            stat = path.stat()
        except OSError:
            continue  # an older run, or a checkpoint that was just deleted
        if stat.st_size <= _MAX_BYTES and (found := _read(path, stat.st_mtime_ns, stat.st_size)) is not None:
            return found
    return None


@lru_cache(maxsize=4)
def _read(path: Path, mtime: int, size: int) -> Vocabulary | None:
    """Read a vocabulary, cached by the file's modification time and size."""
    try:
        return _vocabulary(read_vocabulary(path) if path.suffix == ".gz" else read_json(path))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _vocabulary(record: Mapping[str, Any]) -> Vocabulary | None:
    """Parse a tokenizer.json. Raises KeyError, TypeError, ValueError or AttributeError if it isn't one."""
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
    """Yield the types of a decoder and of its nested decoders."""
    yield decoder["type"]
    for each in decoder.get("decoders") or ():
        yield from _decoders(each)


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # an added token that is part of the table
        return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
