from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fastapi import FastAPI
from gymnasium.error import DependencyNotInstalled

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `small_corpus`

from agentgym_envs.retrieval import Passage, Retriever
from agentgym_envs.retrieval.lucene import LuceneRetriever
from agentgym_envs.retrieval.lucene_process import JAVA, anserini_jar
from agentgym_envs.retrieval.server import retrieval_router
from agentgym_envs.util.java import find_java
from small_corpus import make_passages, write_corpus
from uvicorn_threads import served


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a cache folder of this test session instead of the user's."""
    home = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def passages() -> list[Passage]:
    return make_passages()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "library.jsonl", passages)


@pytest.fixture(scope="session")
def java() -> None:
    """Skip the test if Lucene can't run here; fail under CI."""
    try:
        find_java(JAVA)
        anserini_jar()
    except DependencyNotInstalled as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))


@pytest.fixture(scope="session")
def lucene_index(java: None, tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    from agentgym_envs.retrieval.indexing import make_index

    out = tmp_path_factory.mktemp("lucene") / "index"
    make_index(corpus, out, on_progress=lambda phase, count: None)
    return out


@pytest.fixture(scope="session")
def lucene(lucene_index: Path) -> Iterator[LuceneRetriever]:
    retriever = LuceneRetriever(str(lucene_index))
    yield retriever
    retriever.close()


def serve_in_thread(retriever: Retriever) -> AbstractContextManager[str]:
    app = FastAPI()
    app.include_router(retrieval_router(retriever, 4_096))
    return served(app)


@pytest.fixture
def serve_retriever() -> Callable[[Retriever], object]:
    """A context manager that serves a retriever and yields the URL."""
    return serve_in_thread
