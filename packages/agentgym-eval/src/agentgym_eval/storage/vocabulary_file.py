"""The vocabulary of a training run's tokenizer, by which readers decode token ids without a tokenizer library.

It is a gzip file in the run's folder with those parts of a Hugging Face `tokenizer.json` that decoding needs: the
decoder, the vocabulary and the added tokens. Merges and normalization are left out.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym_envs.util.files import write_whole

_NAME = "vocabulary.json.gz"
_MAX_BYTES = 100_000_000
"""Maximum size when unpacked; that of the largest published tokenizers is a third of it."""


def vocabulary_file(run: Path) -> Path:
    """Return the path of the vocabulary in a run's folder; it may not exist."""
    return run / _NAME


def write_vocabulary(run: Path, tokenizer: Mapping[str, Any]) -> None:
    """Write the vocabulary of a tokenizer atomically.

    Args:
        run: The run's folder.
        tokenizer: The content of its `tokenizer.json`.

    Raises:
        OSError: if it can't be written.
    """
    added = [{"id": each["id"], "content": each["content"]} for each in tokenizer.get("added_tokens") or ()]
    vocab = (tokenizer.get("model") or {}).get("vocab")
    record = {"decoder": tokenizer.get("decoder"), "model": {"vocab": vocab}, "added_tokens": added}
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    write_whole(vocabulary_file(run), gzip.compress(text.encode("utf-8", "replace"), mtime=0))


def read_vocabulary(path: Path) -> dict[str, Any]:
    """Read a vocabulary as `write_vocabulary` wrote it; empty if it is damaged, missing or too large."""
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES + 1)
        record = json.loads(content) if len(content) <= _MAX_BYTES else {}
    except (OSError, EOFError, ValueError, zlib.error, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
