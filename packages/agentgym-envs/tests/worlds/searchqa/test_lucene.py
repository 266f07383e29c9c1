"""Tests of SearchQA with Lucene in Gymnasium's vector environment, whose workers are forked."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium
import pytest
from agentgym_envs.retrieval import open_retriever
from agentgym_envs.retrieval.indexing import make_index
from dev_packages import require_packages
from gymnasium.vector import AsyncVectorEnv


@pytest.mark.long
def test_forked_workers_search_with_lucene(tmp_path: Path) -> None:
    require_packages("pyserini")
    passages = [("1", "Duck", "A duck swims."), ("2", "Pond", "The pond is deep.")]
    lines = [json.dumps({"id": i, "title": title, "text": text}) + "\n" for i, title, text in passages]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(lines), encoding="utf-8")
    make_index(corpus, tmp_path / "index", on_progress=lambda doing, read: None)
    spec = f"pyserini:{tmp_path}/index"
    parent_retriever = open_retriever(spec)
    parent_retriever.search(["duck"], 1)  # Lucene already runs in the parent when the workers are forked

    make_env = functools.partial(gymnasium.make, "agentgym_envs:agentgym/SearchQA-v0", retriever=spec, top_k=1)
    vec = AsyncVectorEnv([make_env] * 2, context="fork")
    vec.reset(seed=[1, 2])
    observations, *_, infos = vec.step(("<search>ducks</search>", "<search>how deep</search>"))
    vec.close()
    parent_retriever.close()
    assert tuple(observations) == (
        "<information>Doc 1(Title: Duck) A duck swims.</information>",
        "<information>Doc 1(Title: Pond) The pond is deep.</information>",
    )
    assert all(infos["valid"])
