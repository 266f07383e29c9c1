"""Tests of the engine vllm-server with a real server on a CPU and a tiny random model. All tests share one server."""

from __future__ import annotations

import asyncio
import copy
import os
import re
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gloo_group
import httpx
import patience
import psutil
import pytest
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.vllm.process import EXTENSION, VllmProcess, VllmServerSettings
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from gloo_group import gloo_transfer
from patience import PATIENCE, all_end, eventually_async
from toy_learner import coin_flags, make_learner, train_cli
from transformers import AutoModelForCausalLM
from vllm_pairs import (
    CONTEXT,
    LENGTHS,
    MEMORY,
    TOLERANCE,
    ModelAndEngine,
    max_logprob_gap,
    max_logprob_gap_by_version,
    random_contexts,
    require_vllm,
    save_initial_model,
)

pytestmark = pytest.mark.long
IMPORTS = os.pathsep.join(str(Path(module.__file__).parent) for module in (gloo_group, patience))


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require_vllm()


@dataclass
class Served(ModelAndEngine):
    """A model in training, and a local server that started with its initial weights."""

    process: VllmProcess
    start: Path


@dataclass(frozen=True)
class _OfferingTransfer(VllmServerSettings):
    """Settings of a server with vLLM's own weight transfer, over gloo."""

    def command(self, port: int) -> list[str]:
        words = [word.replace(EXTENSION, "gloo_worker.GlooReceiver") for word in super().command(port)]
        path = os.pathsep.join([IMPORTS, os.environ.get("PYTHONPATH", "")])
        return [*words[:1], f"PYTHONPATH={path}", *words[1:], "--weight-transfer-config", '{"backend": "nccl"}']


@pytest.fixture(scope="module")
def served(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("server")
    model = AutoModelForCausalLM.from_pretrained(save_initial_model(folder / "start", chat))
    settings = _OfferingTransfer(folder / "start", max_context=512, dtype="float32", memory=MEMORY, lora_rank=3)
    process = VllmProcess(settings, folder / "log")
    with asyncio.Runner() as runner:
        engine: Any = VllmServer(process, run="tests", end_id=chat.end_id, max_context=CONTEXT, patience=600.0)
        try:
            yield Served(model.eval(), engine, runner.run, process, folder / "start")
        finally:
            family = _family()
            runner.run(engine.close())
            assert all_end(family)


def _family() -> list[psutil.Process]:
    """Return the processes of the server, its guard and its engine core."""
    return [
        process
        for child in psutil.Process().children()
        if "agentgym_trainer.engines.vllm.process" in child.cmdline()
        for process in (child, *child.children(recursive=True))
    ]


def _prompt_tokens(served: Served) -> float:
    """Return the number of prompt tokens that the server has processed."""
    metrics = httpx.get(f"{served.process.url}/metrics", trust_env=False, timeout=PATIENCE).text
    return sum(float(count) for count in re.findall(r"^vllm:prompt_tokens_total\S* (\S+)$", metrics, re.M))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_match_the_learner_after_every_update(served: Served, temperature: float) -> None:
    contexts = random_contexts(*LENGTHS)
    for version in range(1, 4):
        served.perturb_weights(version)
        served.load(version)
        completions = served.sample(contexts, temperature=temperature)
        assert {completion.version for completion in completions} == {version}
        assert max_logprob_gap(served.model, contexts, completions, temperature=temperature) < TOLERANCE
        # The tolerance would reveal a stale prefix cache or a stale matrix.
        served.perturb_weights(10 + version)
        assert max_logprob_gap(served.model, contexts, completions, temperature=temperature) > 0.1


def test_logprobs_match_after_updates_by_vllms_own_transfer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts, transfer, tcp = random_contexts(*LENGTHS), gloo_transfer(), list[int]()
    monkeypatch.setattr(served.engine, "_nccl", transfer)
    monkeypatch.setattr(served.engine._http, "_offer", lambda *_: tcp.append(1))
    for version in range(1, 4):
        served.perturb_weights(20 + version)
        served.load(version)
        completions = served.sample(contexts)
        assert {completion.version for completion in completions} == {version}
        assert max_logprob_gap(served.model, contexts, completions) < TOLERANCE
    transfer.close()
    assert not tcp


def test_prefix_cache_is_used_until_an_update(served: Served) -> None:
    served.load(4)
    usage, contexts = served.engine.usage, random_contexts(100, 130, seed=1)
    for reused in (0, 96 + 128):
        before = usage.reused, usage.prefilled
        completions = served.sample(contexts)
        assert (usage.reused - before[0], usage.prefilled - before[1]) == (reused, 230 - reused)
        assert max_logprob_gap(served.model, contexts, completions) < TOLERANCE
    served.load(5)
    before = usage.reused
    served.sample(contexts)
    assert usage.reused == before


def test_replies_depend_on_the_seed_and_end_at_the_budget(served: Served, chat: Chat) -> None:
    context = random_contexts(30)[0]
    batched = served.sample([context] * 24, tokens=60)
    assert len({completion.ids for completion in batched}) > 20
    repeated = served.run(served.engine.generate(context, SamplingParams(max_tokens=60, seed=3)))
    assert repeated.ids == batched[3].ids
    for completion in batched:
        has_end_token = completion.ids[-1] == chat.end_id
        assert chat.end_id not in completion.ids[:-1]
        assert (completion.finish == "stop") == has_end_token
        assert has_end_token or len(completion.ids) == 60
    assert {completion.finish for completion in batched} == {"stop", "length"}


def test_running_replies_continue_with_new_weights(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts, http = [[5, 6, 7 + n] for n in range(8)], served.engine._http
    generate, begin = http.generate, http.begin_replacement

    async def scene() -> tuple[list[Completion], list[Completion]]:
        sent = asyncio.Event()

        def ask(tokens: int) -> list[asyncio.Task[Completion]]:
            sampling = SamplingParams(max_tokens=tokens, seed=1)
            return [asyncio.create_task(served.engine.generate(context, sampling)) for context in contexts]

        # The server doesn't wait for the weights. So the requests are sent right before them, and from the requests to
        # the pause, its steps are so long that 250 of them outlast a busy machine.
        async def generate_late(*args: Any, **kwargs: Any) -> Any:
            await sent.wait()
            return await generate(*args, **kwargs)

        async def begin_slowly(*args: Any, **kwargs: Any) -> None:
            tokens = _prompt_tokens(served) + 8 * 3
            await http.call_workers("lengthen_steps", 0.1)
            sent.set()
            await eventually_async(lambda: _prompt_tokens(served) == tokens)
            await begin(*args, **kwargs)
            await http.call_workers("lengthen_steps", 0.0)

        monkeypatch.setattr(http, "generate", generate_late)
        monkeypatch.setattr(http, "begin_replacement", begin_slowly)
        early = ask(250)
        await eventually_async(lambda: served.engine._meter.requests == len(early))
        loading = asyncio.create_task(served.engine.load(make_learner(served.model).weights(7)))
        await asyncio.sleep(0)
        late = ask(20)
        await loading
        return await asyncio.gather(*early), await asyncio.gather(*late)

    served.load(6)
    before = copy.deepcopy(served.model)
    served.perturb_weights(7)
    first, later = served.run(scene())
    assert {(completion.version, completion.versions) for completion in later} == {(7, ())}
    assert max_logprob_gap(served.model, contexts, later) < TOLERANCE
    assert any(completion.versions for completion in first)
    assert max_logprob_gap_by_version({6: before, 7: served.model}, contexts, first) < TOLERANCE
    assert min(max_logprob_gap(model, contexts, first) for model in (before, served.model)) > 0.1


def test_memory_stays_flat_over_updates(served: Served) -> None:
    memory: list[int] = []
    for version in range(8, 28):
        served.perturb_weights(version)
        served.load(version)
        served.sample([[5, 6, 7]], tokens=2)
        memory.append(sum(process.memory_info().rss for process in _family()))
    size = sum(parameter.nbytes for parameter in served.model.parameters())
    assert memory[-1] - memory[4] < 10 * size


def test_adapters_can_be_followed_by_full_models(served: Served) -> None:
    base, contexts = served.model, random_contexts(*LENGTHS)
    served.load(30)
    adapted = replace(served, model=with_lora(copy.deepcopy(base), Lora(rank=3, alpha=12.0), seed=0).eval())
    for version in (31, 32):
        adapted.perturb_weights(version)
        adapted.load(version)
        completions = adapted.sample(contexts)
        assert max_logprob_gap(adapted.model, contexts, completions) < TOLERANCE
        assert max_logprob_gap(base, contexts, completions) > 0.1
    served.load(33)
    assert max_logprob_gap(base, contexts, served.sample(contexts)) < TOLERANCE


def test_run_samples_from_a_server(served: Served, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    engine_flags = ["--engine.kind", "vllm-server", "--engine.urls", served.process.url, "--engine.tolerance", "1e-4"]
    engine_flags += ["--generation.max-context", "4096"]  # more than the 512 of the model and the server
    run_flags = ("--model", str(served.start), "--warm-start.episodes", "0", "--steps", "2", "--evaluation.every", "1")
    assert train_cli(coin_flags(folder.path, *run_flags, *engine_flags)) == 0
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    for step in range(3):
        episodes = folder.read_evaluation(step, "sampled") or []
        versions = {turn.reply.sample.version for e in episodes for turn in e.turns if turn.reply.sample}
        assert versions == {step}


# This test must be the last: it kills the server.
def test_killed_server_is_restarted_with_its_weights_and_replays(served: Served) -> None:
    served.load(40)
    contexts = random_contexts(*LENGTHS[:-1])
    expected = served.sample(contexts, tokens=60)
    before = _family()
    command = ["-m", "vllm.entrypoints.openai.api_server"]
    (server,) = (
        process for process in before if process.cmdline()[1:3] == command
    )  # the guard has it among its arguments

    async def scene() -> list[Completion]:
        requests = [
            asyncio.create_task(served.engine.generate(ids, SamplingParams(max_tokens=60, seed=seed)))
            for seed, ids in enumerate(contexts)
        ]
        await eventually_async(lambda: served.engine._meter.requests == len(requests))
        server.kill()
        return await asyncio.gather(*requests)

    replayed = served.run(scene())
    assert [(completion.ids, completion.version) for completion in replayed] == [
        (completion.ids, 40) for completion in expected
    ]
    assert max_logprob_gap(served.model, contexts, replayed) < TOLERANCE
    assert not {process.pid for process in before} & {process.pid for process in _family()}
    assert all_end(before)
