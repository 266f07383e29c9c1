"""Fixtures of the tests of GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_trainer.tokens.chat import Chat
from gguf_files import gguf_chat, tiny_llama, write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache folder of converted models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/agentgym/models"


@pytest.fixture(scope="module")
def words_chat() -> Chat:
    """The chat of the tiny model."""
    return gguf_chat()


@pytest.fixture(scope="module")
def llama() -> Any:
    """The tiny model."""
    return tiny_llama()


@pytest.fixture
def write(tmp_path: Path, llama: Any, words_chat: Chat) -> Callable[..., Path]:
    """A function that writes a GGUF file of the tiny model, with options of `write_gguf`."""

    def write(name: str = "tiny.gguf", model: Any = llama, **options: Any) -> Path:
        return write_gguf(tmp_path / name, model, words_chat, **options)

    return write
