"""SearchQA over Lucene, inside Gymnasium's own vector environment, whose workers are forks."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium
import pytest
from agentgym_envs.retrieval import open_retriever
from agentgym_envs.retrieval.indexing import make_index
from dev_packages import need
from gymnasium.vector import AsyncVectorEnv


@pytest.mark.long
def test_worlds_in_forked_processes_search_with_lucene(tmp_path: Path) -> None:
    need("pyserini")
    passages = [("1", "Duck", "A duck swims."), ("2", "Pond", "The pond is deep.")]
    lines = [json.dumps({"id": i, "title": title, "text": text}) + "\n" for i, title, text in passages]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(lines), encoding="utf-8")
    make_index(corpus, tmp_path / "index", told=lambda doing, read: None)
    spec = f"pyserini:{tmp_path}/index"
    held = open_retriever(spec)
    held.search(["duck"], 1)  # the parent's own Lucene runs when its workers are forked

    made = functools.partial(gymnasium.make, "agentgym_envs:agentgym/SearchQA-v0", retriever=spec, top_k=1)
    vec = AsyncVectorEnv([made] * 2, context="fork")
    vec.reset(seed=[1, 2])
    seen, *_, infos = vec.step(("<search>ducks</search>", "<search>how deep</search>"))
    vec.close()
    held.close()
    assert tuple(seen) == (
        "<information>Doc 1(Title: Duck) A duck swims.</information>",
        "<information>Doc 1(Title: Pond) The pond is deep.</information>",
    )
    assert all(infos["valid"])
