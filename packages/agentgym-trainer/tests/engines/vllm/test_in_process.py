"""Tests of the engine vllm with real vLLM on a CPU and a tiny random model."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import vllm_ranks
from agentgym_eval.cli.main import evaluate
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams
from agentgym_trainer.engines.vllm.in_process import VllmCore, vllm_engine
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from allocations import allocated_bytes
from coin_world import ENV
from fake_vllm import FakeServer, fake_weights, run_scene
from forked_processes import run_two_processes
from patience import eventually_async
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


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require_vllm()


@pytest.fixture(scope="module", autouse=True)
def _llvmlite_imported() -> None:
    """Import llvmlite, as environments with search do through numba; vLLM would crash on it without a workaround."""
    importlib.import_module("llvmlite.binding")


@pytest.fixture(scope="module")
def start(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the initial model of all engines."""
    return save_initial_model(tmp_path_factory.mktemp("vllm") / "start", chat)


# This test must be the first: it needs a process without other engines.
def test_engine_has_no_side_effects_on_the_process(start: Path, chat: Chat) -> None:
    threads, state = torch.set_num_threads, torch.get_rng_state()
    with asyncio.Runner() as runner:
        engine = vllm_engine(str(start), MEMORY, end_id=chat.end_id, max_context=2**20, dtype=torch.float32)
        assert torch.equal(torch.get_rng_state(), state)
        # Limited by the model.
        assert engine.max_context == 512
        assert torch.distributed.is_initialized()
        runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3)))
        runner.run(engine.sleep())
        assert runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3))).ids
        finalizer = engine._core._engine._finalizer
        assert finalizer.alive
        for _ in range(2):
            runner.run(engine.close())
        assert not finalizer.alive
        assert not importlib.import_module("vllm.usage.usage_lib").is_usage_stats_enabled()
        with pytest.raises(EngineGone, match="closed"):
            runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3)))
    assert not torch.distributed.is_initialized()
    assert torch.set_num_threads is threads


def _pair(start: Path, chat: Chat, wrap: Callable[[Any], Any], **options: Any) -> Generator[ModelAndEngine]:
    model = wrap(AutoModelForCausalLM.from_pretrained(start).eval())
    with asyncio.Runner() as runner:
        engine = vllm_engine(
            str(start), MEMORY, end_id=chat.end_id, max_context=CONTEXT, dtype=torch.float32, **options
        )
        try:
            yield ModelAndEngine(model, engine, runner.run)
        finally:
            runner.run(engine.close())


@pytest.fixture(scope="module")
def pair(start: Path, chat: Chat) -> Generator[ModelAndEngine]:
    yield from _pair(start, chat, lambda model: model)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_match_the_learner_before_and_after_updates(pair: ModelAndEngine, temperature: float) -> None:
    contexts = random_contexts(*LENGTHS)
    for version in range(4):
        if version:
            before = copy.deepcopy(pair.model)
            pair.perturb_weights(version)
        pair.load(version)
        completions = pair.sample(contexts, temperature=temperature)
        assert {completion.version for completion in completions} == {version}
        assert max_logprob_gap(pair.model, contexts, completions, temperature=temperature) < TOLERANCE
        if version:
            assert max_logprob_gap(before, contexts, completions, temperature=temperature) > 0.1


def test_prefix_cache_is_used_until_an_update(pair: ModelAndEngine) -> None:
    pair.load(1)
    usage, contexts = pair.engine.usage, random_contexts(*LENGTHS, seed=1)

    def prefilled_and_reused() -> tuple[int, int]:
        before = (usage.prefilled, usage.reused)
        pair.sample(contexts, tokens=2)
        return usage.prefilled - before[0], usage.reused - before[1]

    total = sum(LENGTHS)
    assert prefilled_and_reused() == (total, 0)
    # Full blocks of 32, without the last token, which gives the first logits.
    cached = sum((length - 1) // 32 * 32 for length in LENGTHS)
    assert prefilled_and_reused() == (total - cached, cached)
    pair.load(2)
    assert prefilled_and_reused() == (total, 0)


def test_concurrent_requests_share_the_prefill_of_a_prefix(pair: ModelAndEngine) -> None:
    pair.load(1)
    before = pair.engine.usage.prefilled
    prompt, *tails = random_contexts(128, 5, 6, 7)
    contexts = [[*prompt, *tail] for tail in tails]
    completions = pair.sample(contexts)
    assert pair.engine.usage.prefilled - before == 128 + 5 + 6 + 7
    assert max_logprob_gap(pair.model, contexts, completions) < TOLERANCE


def test_replies_depend_on_the_seed_and_not_on_the_batch(pair: ModelAndEngine) -> None:
    contexts = random_contexts(*LENGTHS)
    batched = pair.sample(contexts)
    alone = pair.run(pair.engine.generate(contexts[3], SamplingParams(max_tokens=20, seed=3)))
    assert alone.ids == batched[3].ids
    assert alone.logprobs == pytest.approx(batched[3].logprobs, abs=1e-5)
    other = pair.run(pair.engine.generate(contexts[3], SamplingParams(max_tokens=20, seed=2**63 - 1)))
    assert other.ids != alone.ids


def test_concurrent_requests_may_exceed_the_tokens_of_one_step(pair: ModelAndEngine) -> None:
    pair.load(0)
    contexts = random_contexts(*[150] * 20)  # a step prefills 2,048 tokens
    assert max_logprob_gap(pair.model, contexts, pair.sample(contexts, tokens=5)) < TOLERANCE


def test_replies_end_with_the_end_token_or_at_the_budget(pair: ModelAndEngine, chat: Chat) -> None:
    contexts = random_contexts(*[30] * 64)
    completions = pair.sample(contexts, tokens=60)
    assert {completion.finish for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert chat.end_id not in completion.ids[:-1]
        assert (completion.finish == "stop") == (completion.ids[-1] == chat.end_id)
        assert len(completion.ids) == len(completion.logprobs)
        assert completion.finish == "stop" or len(completion.ids) == 60
    with pytest.raises(ValueError, match="256 tokens and a reply of up to 20 don't fit"):
        pair.sample(random_contexts(CONTEXT))
    (longest,) = pair.sample(random_contexts(CONTEXT - 4), tokens=4)
    assert 1 <= len(longest.ids) <= 4


def test_greedy_replies_are_the_most_likely_with_logprobs_of_0(pair: ModelAndEngine) -> None:
    pair.load(0)
    context = random_contexts(50)[0]
    greedy, _ = pair.sample([context] * 2, temperature=0.0, tokens=10)
    assert greedy.logprobs == (0.0,) * len(greedy.ids)
    ids = torch.tensor([[*context, *greedy.ids]])
    with torch.no_grad():
        assert greedy.ids == tuple(pair.model(ids).logits[0, len(context) - 1 : -1].argmax(-1).tolist())


def test_running_replies_continue_with_new_weights(pair: ModelAndEngine) -> None:
    pair.load(5)
    before, contexts = copy.deepcopy(pair.model), random_contexts(*LENGTHS)

    async def load_while_sampling() -> tuple[list[Completion], list[Completion]]:
        def ask(seed: int) -> list[asyncio.Task[Completion]]:
            sampling = SamplingParams(max_tokens=40, seed=seed)
            return [asyncio.create_task(pair.engine.generate(context, sampling)) for context in contexts]

        first = ask(0)
        # When this request is complete, the others have some tokens, too.
        await pair.engine.generate(contexts[0], SamplingParams(max_tokens=5))
        pair.perturb_weights(5)
        loading = asyncio.create_task(pair.engine.load(make_learner(pair.model).weights(6)))
        await asyncio.sleep(0)
        later = ask(1)
        await loading
        return await asyncio.gather(*first), await asyncio.gather(*later)

    first, later = pair.run(load_while_sampling())
    assert {(completion.version, completion.versions) for completion in later} == {(6, ())}
    assert max_logprob_gap(pair.model, contexts, later) < TOLERANCE
    assert max_logprob_gap_by_version({5: before, 6: pair.model}, contexts, first) < TOLERANCE
    mixed = [completion for completion in first if completion.versions]
    assert mixed
    for completion in mixed:
        switch = completion.versions.index(6)
        assert completion.versions == (5,) * switch + (6,) * (len(completion.ids) - switch)
        assert len(completion.ids) == 40 or completion.finish == "stop"
    # The tolerance distinguishes the two models.
    assert min(max_logprob_gap(model, contexts, first) for model in (before, pair.model)) > 0.1


def test_cancelled_requests_are_removed_from_the_core(pair: ModelAndEngine) -> None:
    contexts, core = random_contexts(*LENGTHS), pair.engine._core

    async def cancel_requests() -> None:
        tasks = [
            asyncio.create_task(pair.engine.generate(context, SamplingParams(max_tokens=50))) for context in contexts
        ]
        await eventually_async(lambda: len(pair.engine._under_way) == len(contexts))
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Cancelled requests are removed before the core's next step, which no request awaits.
        await eventually_async(lambda: pair.engine._driver is None)
        assert not core._engine.has_unfinished_requests()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    pair.run(cancel_requests())


def test_engine_that_fails_in_a_step_is_rebuilt_and_replays(
    pair: ModelAndEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = random_contexts(*LENGTHS)
    pair.perturb_weights(7)
    pair.load(7)
    expected, dead = pair.sample(contexts), pair.engine._core
    step, steps = VllmCore.step, iter(range(100))

    def dying(core: VllmCore) -> Any:
        if next(steps) == 3:
            raise RuntimeError("the device is lost")
        return step(core)

    monkeypatch.setattr(VllmCore, "step", dying)
    completions = pair.sample(contexts)
    assert pair.engine._core is not dead
    assert [completion.ids for completion in completions] == [completion.ids for completion in expected]
    assert {completion.version for completion in completions} == {7}
    assert max_logprob_gap(pair.model, contexts, completions) < TOLERANCE


def test_memory_stays_flat_over_updates(pair: ModelAndEngine) -> None:
    contexts, memory = random_contexts(*LENGTHS), list[int]()
    for version in range(23):
        pair.perturb_weights(version)
        pair.load(version)
        pair.sample(contexts, tokens=3)
        memory.append(allocated_bytes())
    size = sum(parameter.nbytes for parameter in pair.model.parameters())
    # Caches grow occasionally, so the median growth per update is compared with half a model.
    assert median(later - earlier for earlier, later in pairwise(memory)) < size / 2


def test_unsupported_head_sizes_are_rejected(new_model: Callable[..., Any], tmp_path: Path) -> None:
    new_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"heads have a size of 16, and vLLM on a CPU can do 32, 64, .* scratch.heads"):
        vllm_engine(str(tmp_path), MEMORY, end_id=1, max_context=64, dtype=torch.float32)


def test_server_rejects_unsupported_head_sizes_before_the_transfer() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.device_config.device_type = "cpu"
        server.worker.vllm_config.model_config.get_head_size = lambda: 16
        with pytest.raises(EngineGone, match="heads have a size of 16, and vLLM on a CPU can do 32"):
            await sampler.load(fake_weights(1))
        assert not server.worker.loaded

    run_scene(scene)


# LoRA adapters.


@pytest.fixture(scope="module")
def adapted(start: Path, chat: Chat) -> Generator[ModelAndEngine]:
    yield from _pair(start, chat, lambda model: with_lora(model, Lora(rank=3, alpha=12.0), seed=0).eval(), lora_rank=3)


def test_adapters_replace_each_other_and_leave_the_learner_intact(adapted: ModelAndEngine) -> None:
    contexts = random_contexts(*LENGTHS)
    with adapted.model.disable_adapter():
        assert max_logprob_gap(adapted.model, contexts, adapted.sample(contexts)) < TOLERANCE
    for version in range(1, 4):
        adapted.perturb_weights(version)
        state = copy.deepcopy(adapted.model.state_dict())
        adapted.load(version)
        completions = adapted.sample(contexts)
        assert {completion.version for completion in completions} == {version}
        assert max_logprob_gap(adapted.model, contexts, completions) < TOLERANCE
        assert all(torch.equal(tensor, state[name]) for name, tensor in adapted.model.state_dict().items())
        with adapted.model.disable_adapter():
            assert max_logprob_gap(adapted.model, contexts, completions) > 0.1


# Multiple processes and full runs.


def test_two_processes_have_separate_engines(start: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_two_processes(vllm_ranks.main, start, tmp_path, log=log) == [0, 0], log.read_text()
    for rank in range(2):
        result = json.loads((tmp_path / f"{rank}.json").read_text())
        assert result.pop("sum") == 3
        assert all(gap < TOLERANCE for gap in result.pop("gaps"))
        assert result == {"processes": 2, "versions": [1, 2, 2], "replayed": rank == 1}


def test_run_samples_from_vllm_and_evaluate_loads_its_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = {
        "steps": "2", "evaluation.every": "1", "scratch.hidden": "64", "lora.rank": "3", "engine.kind": "vllm",
        "engine.memory": "0.05", "engine.tolerance": "1e-4",
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    assert train_cli(coin_flags(folder.path, *flags)) == 0
    lines = list(folder.read_metrics())
    assert [line["step"] for line in lines] == [1, 2]
    for step in range(3):
        episodes = folder.read_evaluation(step, "sampled") or []
        versions = {turn.reply.sample.version for e in episodes for turn in e.turns if turn.reply.sample}
        assert versions == {step}
    # The saved model is an ordinary one.
    arguments = ["--env", ENV, "--policy", f"vllm:{folder.model}", "--samples", "2", "--agent", "bare"]
    arguments += ["--no-instructions", "--max-tokens", "6", "--horizon", "3", "--out", str(tmp_path / "played")]
    assert evaluate(arguments) == 0
    assert len((tmp_path / "played" / "episodes.jsonl").read_text().splitlines()) == 8
