"""Tests of a server on the learner's own device: a real one on a CPU, with vLLM's backend ipc over files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import file_memory
import patience
import pytest
from agentgym_trainer.engines.vllm.process import EXTENSION, VllmProcess, VllmServerSettings
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.tokens.chat import Chat
from file_memory import file_transfer
from transformers import AutoModelForCausalLM
from vllm_pairs import (
    CONTEXT,
    LENGTHS,
    MEMORY,
    TOLERANCE,
    ModelAndEngine,
    max_logprob_gap,
    random_contexts,
    require_vllm,
    save_initial_model,
)

pytestmark = pytest.mark.long
IMPORTS = os.pathsep.join(str(Path(str(module.__file__)).parent) for module in (file_memory, patience))


@dataclass(frozen=True)
class _OverFiles(VllmServerSettings):
    """Settings of a server with vLLM's backend ipc, over files."""

    def command(self, port: int) -> list[str]:
        words = [word.replace(EXTENSION, "ipc_worker.FileReceiver") for word in super().command(port)]
        path = os.pathsep.join([IMPORTS, os.environ.get("PYTHONPATH", "")])
        return [*words[:1], f"PYTHONPATH={path}", *words[1:], "--weight-transfer-config", '{"backend": "ipc"}']


@pytest.fixture(scope="module")
def served(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Generator[ModelAndEngine]:
    require_vllm()
    folder = tmp_path_factory.mktemp("server")
    model = AutoModelForCausalLM.from_pretrained(save_initial_model(folder / "start", chat))
    settings = _OverFiles(folder / "start", max_context=512, dtype="float32", memory=MEMORY)
    # Smaller than the embeddings and larger than most tensors.
    transfer = file_transfer(bucket=2**15)
    with asyncio.Runner() as runner:
        engine: Any = VllmServer(
            VllmProcess(settings, folder / "log"), run="tests", end_id=chat.end_id, max_context=CONTEXT,
            patience=600.0, ipc=transfer, sleeps=True, forced=True,
        )  # fmt: skip
        try:
            yield ModelAndEngine(model.eval(), engine, runner.run)
        finally:
            runner.run(engine.close())


def test_logprobs_match_after_updates_over_ipc_and_sleep(
    served: ModelAndEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM on a CPU accepts the requests to sleep and to wake up in parts, and keeps its memory."""
    tcp: list[int] = []
    monkeypatch.setattr(served.engine._http, "_offer", lambda *_: tcp.append(1))
    contexts = random_contexts(*LENGTHS)
    for version in range(1, 4):
        served.perturb_weights(version)
        served.load(version)
        completions = served.sample(contexts)
        assert {completion.version for completion in completions} == {version}
        assert max_logprob_gap(served.model, contexts, completions) < TOLERANCE
        served.run(served.engine.sleep())
    assert tcp == []


def test_sampling_after_sleep_loads_the_weights_again(served: ModelAndEngine) -> None:
    contexts = random_contexts(*LENGTHS)
    served.perturb_weights(9)
    served.load(9)
    served.run(served.engine.sleep())
    completions = served.sample(contexts)
    assert {completion.version for completion in completions} == {9}
    assert max_logprob_gap(served.model, contexts, completions) < TOLERANCE
