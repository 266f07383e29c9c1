"""The engine vllm: the real one, on a CPU, with a tiny model made here."""

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
from coin_world import ENV
from fake_vllm import FakeServer, play, weights
from forked_processes import by_two
from growth import allocated
from patience import eventually_async
from toy_learner import coin_flags, learner, train_cli
from transformers import AutoModelForCausalLM
from vllm_pairs import (
    CONTEXT,
    LENGTHS,
    MEMORY,
    TOLERANCE,
    Pair,
    gap,
    gap_by_version,
    need_vllm,
    random_contexts,
    save_start,
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    need_vllm()


@pytest.fixture(scope="module", autouse=True)
def _searching() -> None:
    """A world that searches has brought numba into the process, and with it what vLLM stumbles over."""
    importlib.import_module("llvmlite.binding")


@pytest.fixture(scope="module")
def start(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that everything here begins with."""
    return save_start(tmp_path_factory.mktemp("vllm") / "start", chat)


# First, before the engines of the other tests are there.
def test_it_leaves_the_process_as_it_was(start: Path, chat: Chat) -> None:
    threads, state = torch.set_num_threads, torch.get_rng_state()
    with asyncio.Runner() as runner:
        engine = vllm_engine(str(start), MEMORY, end_id=chat.end_id, max_context=2**20, dtype=torch.float32)
        assert torch.equal(torch.get_rng_state(), state)
        # What the model takes.
        assert engine.max_context == 512
        assert torch.distributed.is_initialized()
        runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3)))
        runner.run(engine.sleep())
        assert runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3))).ids
        for _ in range(2):
            runner.run(engine.close())
        with pytest.raises(EngineGone, match="closed"):
            runner.run(engine.generate([5, 6], SamplingParams(max_tokens=3)))
    assert not torch.distributed.is_initialized()
    assert torch.set_num_threads is threads


def _pair(start: Path, chat: Chat, wrap: Callable[[Any], Any], **how: Any) -> Generator[Pair]:
    model = wrap(AutoModelForCausalLM.from_pretrained(start).eval())
    with asyncio.Runner() as runner:
        engine = vllm_engine(str(start), MEMORY, end_id=chat.end_id, max_context=CONTEXT, dtype=torch.float32, **how)
        try:
            yield Pair(model, engine, runner.run)
        finally:
            runner.run(engine.close())


@pytest.fixture(scope="module")
def pair(start: Path, chat: Chat) -> Generator[Pair]:
    yield from _pair(start, chat, lambda model: model)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_the_learners_before_and_after_every_update(pair: Pair, temperature: float) -> None:
    contexts = random_contexts(*LENGTHS)
    for version in range(4):
        if version:
            before = copy.deepcopy(pair.model)
            pair.move(version)
        pair.load(version)
        said = pair.sample(contexts, temperature=temperature)
        assert {one.version for one in said} == {version}
        assert gap(pair.model, contexts, said, temperature=temperature) < TOLERANCE
        if version:
            assert gap(before, contexts, said, temperature=temperature) > 0.1


def test_what_was_read_is_read_again_only_after_an_update(pair: Pair) -> None:
    pair.load(1)
    usage, contexts = pair.engine.usage, random_contexts(*LENGTHS, seed=1)

    def read_and_reused() -> tuple[int, int]:
        before = (usage.prefilled, usage.reused)
        pair.sample(contexts, tokens=2)
        return usage.prefilled - before[0], usage.reused - before[1]

    total = sum(LENGTHS)
    assert read_and_reused() == (total, 0)
    # Whole blocks of 32, and never the last token, which the first logits are behind.
    kept = sum((length - 1) // 32 * 32 for length in LENGTHS)
    assert read_and_reused() == (total - kept, kept)
    pair.load(2)
    assert read_and_reused() == (total, 0)


def test_those_who_begin_alike_share_what_is_read_also_when_they_ask_at_once(pair: Pair) -> None:
    pair.load(1)
    before = pair.engine.usage.prefilled
    prompt, *tails = random_contexts(128, 5, 6, 7)
    contexts = [[*prompt, *tail] for tail in tails]
    said = pair.sample(contexts)
    assert pair.engine.usage.prefilled - before == 128 + 5 + 6 + 7
    assert gap(pair.model, contexts, said) < TOLERANCE


def test_a_reply_hangs_on_its_seed_and_not_on_who_else_is_there(pair: Pair) -> None:
    contexts = random_contexts(*LENGTHS)
    together = pair.sample(contexts)
    alone = pair.do(pair.engine.generate(contexts[3], SamplingParams(max_tokens=20, seed=3)))
    assert alone.ids == together[3].ids
    assert alone.logprobs == pytest.approx(together[3].logprobs, abs=1e-5)
    other = pair.do(pair.engine.generate(contexts[3], SamplingParams(max_tokens=20, seed=2**63 - 1)))
    assert other.ids != alone.ids


def test_more_may_be_asked_at_once_than_are_read_in_one_step(pair: Pair) -> None:
    pair.load(0)
    contexts = random_contexts(*[150] * 20)  # a step reads 2,048 tokens
    assert gap(pair.model, contexts, pair.sample(contexts, tokens=5)) < TOLERANCE


def test_a_reply_ends_with_its_end_token_or_at_its_budget(pair: Pair, chat: Chat) -> None:
    contexts = random_contexts(*[30] * 64)
    said = pair.sample(contexts, tokens=60)
    assert {one.finish for one in said} == {"stop", "length"}
    for one in said:
        assert chat.end_id not in one.ids[:-1]
        assert (one.finish == "stop") == (one.ids[-1] == chat.end_id)
        assert len(one.ids) == len(one.logprobs)
        assert one.finish == "stop" or len(one.ids) == 60
    with pytest.raises(ValueError, match="a budget of 20 was requested"):
        pair.sample(random_contexts(CONTEXT))
    (whole,) = pair.sample(random_contexts(CONTEXT - 4), tokens=4)
    assert 1 <= len(whole.ids) <= 4


def test_greedy_replies_are_the_most_likely_and_certain(pair: Pair) -> None:
    pair.load(0)
    context = random_contexts(50)[0]
    greedy, _ = pair.sample([context] * 2, temperature=0.0, tokens=10)
    assert greedy.logprobs == (0.0,) * len(greedy.ids)
    whole = torch.tensor([[*context, *greedy.ids]])
    with torch.no_grad():
        assert greedy.ids == tuple(pair.model(whole).logits[0, len(context) - 1 : -1].argmax(-1).tolist())


def test_replies_under_way_at_an_update_go_on_with_the_new_weights_from_what_they_have(pair: Pair) -> None:
    pair.load(5)
    before, contexts = copy.deepcopy(pair.model), random_contexts(*LENGTHS)

    async def meanwhile() -> tuple[list[Completion], list[Completion]]:
        def ask(seed: int) -> list[asyncio.Task[Completion]]:
            sampling = SamplingParams(max_tokens=40, seed=seed)
            return [asyncio.create_task(pair.engine.generate(context, sampling)) for context in contexts]

        first = ask(0)
        # When this is complete, the others have some tokens, too.
        await pair.engine.generate(contexts[0], SamplingParams(max_tokens=5))
        pair.move(5)
        loading = asyncio.create_task(pair.engine.load(learner(pair.model).weights(6)))
        await asyncio.sleep(0)
        later = ask(1)
        await loading
        return await asyncio.gather(*first), await asyncio.gather(*later)

    first, later = pair.do(meanwhile())
    assert {(one.version, one.versions) for one in later} == {(6, ())}
    assert gap(pair.model, contexts, later) < TOLERANCE
    assert gap_by_version({5: before, 6: pair.model}, contexts, first) < TOLERANCE
    mixed = [one for one in first if one.versions]
    assert mixed
    for one in mixed:
        at = one.versions.index(6)
        assert one.versions == (5,) * at + (6,) * (len(one.ids) - at)
        assert len(one.ids) == 40 or one.finish == "stop"
    # Both halves are told apart.
    assert min(gap(model, contexts, first) for model in (before, pair.model)) > 0.1


def test_requests_that_are_given_up_leave_nothing_behind(pair: Pair) -> None:
    contexts, core = random_contexts(*LENGTHS), pair.engine._core

    async def give_up() -> None:
        tasks = [
            asyncio.create_task(pair.engine.generate(context, SamplingParams(max_tokens=50))) for context in contexts
        ]
        await eventually_async(lambda: len(pair.engine._under_way) == len(contexts))
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Requests that were given up leave the core before its next step, which nobody has to wait for.
        await eventually_async(lambda: pair.engine._driver is None)
        assert not core._engine.has_unfinished_requests()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    pair.do(give_up())


def test_an_engine_that_dies_in_a_step_is_made_anew_with_its_weights_and_replays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = random_contexts(*LENGTHS)
    pair.move(7)
    pair.load(7)
    expected, dead = pair.sample(contexts), pair.engine._core
    step, steps = VllmCore.step, iter(range(100))

    def dying(core: VllmCore) -> Any:
        if next(steps) == 3:
            raise RuntimeError("the device is lost")
        return step(core)

    monkeypatch.setattr(VllmCore, "step", dying)
    said = pair.sample(contexts)
    assert pair.engine._core is not dead
    assert [one.ids for one in said] == [one.ids for one in expected]
    assert {one.version for one in said} == {7}
    assert gap(pair.model, contexts, said) < TOLERANCE


def test_memory_stays_flat_over_updates(pair: Pair) -> None:
    contexts, taken = random_contexts(*LENGTHS), list[int]()
    for version in range(23):
        pair.move(version)
        pair.load(version)
        pair.sample(contexts, tokens=3)
        taken.append(allocated())
    size = sum(parameter.nbytes for parameter in pair.model.parameters())
    # Something is cached now and then; what each update leaves behind is far less than half a model.
    assert median(later - earlier for earlier, later in pairwise(taken)) < size / 2


def test_heads_that_vllm_has_no_kernel_for_are_refused(new_model: Callable[..., Any], tmp_path: Path) -> None:
    new_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"heads have a size of 16, and vLLM on a CPU can do 32, 64, .* scratch.heads"):
        vllm_engine(str(tmp_path), MEMORY, end_id=1, max_context=64, dtype=torch.float32)


def test_a_server_says_so_before_it_is_given_weights() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.device_config.device_type = "cpu"
        server.worker.vllm_config.model_config.get_head_size = lambda: 16
        with pytest.raises(EngineGone, match="heads have a size of 16, and vLLM on a CPU can do 32"):
            await sampler.load(weights(1))
        assert not server.worker.loaded

    play(scene)


# Adapters.


@pytest.fixture(scope="module")
def adapted(start: Path, chat: Chat) -> Generator[Pair]:
    yield from _pair(start, chat, lambda model: with_lora(model, Lora(rank=3, alpha=12.0), seed=0).eval(), lora_rank=3)


def test_adapters_are_put_in_place_of_each_other_and_stay_the_learners(adapted: Pair) -> None:
    contexts = random_contexts(*LENGTHS)
    with adapted.model.disable_adapter():
        assert gap(adapted.model, contexts, adapted.sample(contexts)) < TOLERANCE
    for version in range(1, 4):
        adapted.move(version)
        mine = copy.deepcopy(adapted.model.state_dict())
        adapted.load(version)
        said = adapted.sample(contexts)
        assert {one.version for one in said} == {version}
        assert gap(adapted.model, contexts, said) < TOLERANCE
        assert all(torch.equal(tensor, mine[name]) for name, tensor in adapted.model.state_dict().items())
        with adapted.model.disable_adapter():
            assert gap(adapted.model, contexts, said) > 0.1


# Many processes, and whole runs.


def test_each_of_two_processes_has_an_engine_of_its_own(start: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert by_two(vllm_ranks.main, start, tmp_path, log=log) == [0, 0], log.read_text()
    for rank in range(2):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen.pop("sum") == 3
        assert all(gap < TOLERANCE for gap in seen.pop("gaps"))
        assert seen == {"processes": 2, "versions": [1, 2, 2], "replayed": rank == 1}


def test_a_run_of_two_steps_samples_from_vllm_and_its_model_plays_through_evaluate(tmp_path: Path) -> None:
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
    # What it leaves behind is a model like any other.
    asked = ["--env", ENV, "--policy", f"vllm:{folder.model}", "--samples", "2", "--agent", "bare"]
    asked += ["--no-instructions", "--max-tokens", "6", "--horizon", "3", "--out", str(tmp_path / "played")]
    assert evaluate(asked) == 0
    assert len((tmp_path / "played" / "episodes.jsonl").read_text().splitlines()) == 8
