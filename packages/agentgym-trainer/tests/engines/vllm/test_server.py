"""The engine vllm-server with the real one, on a CPU, with a tiny model made here. One server serves all tests."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from patience import PATIENCE, all_end, eventually_async
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


@dataclass
class Served(Pair):
    """A model that learns, and a server of our own that began with it."""

    process: VllmProcess
    start: Path


@pytest.fixture(scope="module")
def served(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("server")
    model = AutoModelForCausalLM.from_pretrained(save_start(folder / "start", chat))
    serving = VllmServerSettings(folder / "start", max_context=512, dtype="float32", memory=MEMORY, lora_rank=3)
    process = VllmProcess(serving, folder / "log")
    with asyncio.Runner() as runner:
        engine: Any = VllmServer(process, run="tests", end_id=chat.end_id, max_context=CONTEXT, patience=600.0)
        try:
            yield Served(model.eval(), engine, runner.run, process, folder / "start")
        finally:
            family = _family()
            runner.run(engine.close())
            assert all_end(family)


def _family() -> list[psutil.Process]:
    """The server, its guard and its engine."""
    return [
        process
        for child in psutil.Process().children()
        if "agentgym_trainer.engines.vllm.process" in child.cmdline()
        for process in (child, *child.children(recursive=True))
    ]


def _core() -> psutil.Process:
    """What samples, a child of the server."""
    (core,) = (process for process in _family() if "EngineCore" in f"{process.name()} {process.cmdline()}")
    return core


@contextmanager
def _stopped(process: psutil.Process) -> Generator[Callable[[], None]]:
    """The process stands still; what is given lets it go on for a moment."""

    def moment() -> None:
        process.resume()
        time.sleep(0.003)
        process.suspend()

    process.suspend()
    try:
        yield moment
    finally:
        process.resume()


def _prompted(served: Served) -> float:
    """Tokens of contexts that the server has taken up."""
    said = httpx.get(f"{served.process.url}/metrics", trust_env=False, timeout=PATIENCE).text
    return sum(float(count) for count in re.findall(r"^vllm:prompt_tokens_total\S* (\S+)$", said, re.M))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_the_learners_before_and_after_every_update(served: Served, temperature: float) -> None:
    contexts = random_contexts(*LENGTHS)
    for version in range(1, 4):
        served.move(version)
        served.load(version)
        said = served.sample(contexts, temperature=temperature)
        assert {one.version for one in said} == {version}
        assert gap(served.model, contexts, said, temperature=temperature) < TOLERANCE
        # A prefix cache of the last weights, or one matrix of them, would show.
        served.move(10 + version)
        assert gap(served.model, contexts, said, temperature=temperature) > 0.1


def test_what_was_read_is_read_again_only_after_an_update(served: Served) -> None:
    served.load(4)
    usage, contexts = served.engine.usage, random_contexts(100, 130, seed=1)
    for reused in (0, 96 + 128):
        before = usage.reused, usage.prefilled
        said = served.sample(contexts)
        assert (usage.reused - before[0], usage.prefilled - before[1]) == (reused, 230 - reused)
        assert gap(served.model, contexts, said) < TOLERANCE
    served.load(5)
    before = usage.reused
    served.sample(contexts)
    assert usage.reused == before


def test_a_reply_hangs_on_its_seed_and_ends_with_its_end_token_or_at_its_budget(served: Served, chat: Chat) -> None:
    context = random_contexts(30)[0]
    together = served.sample([context] * 24, tokens=60)
    assert len({one.ids for one in together}) > 20
    again = served.do(served.engine.generate(context, SamplingParams(max_tokens=60, seed=3)))
    assert again.ids == together[3].ids
    for one in together:
        ended = one.ids[-1] == chat.end_id
        assert chat.end_id not in one.ids[:-1]
        assert (one.finish == "stop") == ended
        assert ended or len(one.ids) == 60
    assert {one.finish for one in together} == {"stop", "length"}


def test_replies_under_way_at_an_update_go_on_with_the_new_weights_from_what_they_have(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts, http = [[5, 6, 7 + n] for n in range(8)], served.engine._http
    generate, replace_weights = http.generate, http.replace_weights

    async def scene(version: int) -> tuple[list[Completion], list[Completion]]:
        sent = asyncio.Event()

        def ask(tokens: int) -> list[asyncio.Task[Completion]]:
            sampling = SamplingParams(max_tokens=tokens, seed=1)
            return [asyncio.create_task(served.engine.generate(context, sampling)) for context in contexts]

        # The server waits for nobody. So it gets the requests when all that comes before the weights is done, takes
        # them up in slices of time, and stands still until it has been told of the weights.
        async def generate_late(*args: Any, **how: Any) -> Any:
            await sent.wait()
            return await generate(*args, **how)

        async def replace_meanwhile(*args: Any, **how: Any) -> None:
            prompted = _prompted(served)
            with _stopped(_core()) as slice_of_time:
                sent.set()
                await eventually_async(lambda: slice_of_time() or _prompted(served) == prompted + 8 * 3)
                replacing = asyncio.create_task(replace_weights(*args, **how))
                for _ in range(2):
                    await asyncio.to_thread(_prompted, served)  # answered later than what was sent before
            await replacing

        monkeypatch.setattr(http, "generate", generate_late)
        monkeypatch.setattr(http, "replace_weights", replace_meanwhile)
        early = ask(250)
        await eventually_async(lambda: served.engine._under_way == len(early))
        loading = asyncio.create_task(served.engine.load(learner(served.model).weights(version)))
        await asyncio.sleep(0)
        late = ask(20)
        await loading
        return await asyncio.gather(*early), await asyncio.gather(*late)

    served.load(6)
    for version in range(7, 17):
        before = copy.deepcopy(served.model)
        served.move(version)
        first, later = served.do(scene(version))
        assert {(one.version, one.versions) for one in later} == {(version, ())}
        assert gap(served.model, contexts, later) < TOLERANCE
        assert gap_by_version({version - 1: before, version: served.model}, contexts, first) < TOLERANCE
        if any(one.versions for one in first):
            break  # on a busy machine all replies may end in the moment before the weights come
    assert min(gap(model, contexts, first) for model in (before, served.model)) > 0.1


def test_memory_stays_flat_over_updates(served: Served) -> None:
    taken: list[int] = []
    for version in range(8, 28):
        served.move(version)
        served.load(version)
        served.sample([[5, 6, 7]], tokens=2)
        taken.append(sum(process.memory_info().rss for process in _family()))
    size = sum(parameter.nbytes for parameter in served.model.parameters())
    assert taken[-1] - taken[4] < 10 * size


def test_adapters_are_adapters_and_whole_models_come_after_them(served: Served) -> None:
    base, contexts = served.model, random_contexts(*LENGTHS)
    served.load(30)
    adapted = replace(served, model=with_lora(copy.deepcopy(base), Lora(rank=3, alpha=12.0), seed=0).eval())
    for version in (31, 32):
        adapted.move(version)
        adapted.load(version)
        said = adapted.sample(contexts)
        assert gap(adapted.model, contexts, said) < TOLERANCE
        assert gap(base, contexts, said) > 0.1
    served.load(33)
    assert gap(base, contexts, served.sample(contexts)) < TOLERANCE


def test_a_run_of_two_steps_samples_from_a_server(served: Served, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    more = ["--engine.kind", "vllm-server", "--engine.urls", served.process.url, "--engine.tolerance", "1e-4"]
    more += ["--generation.max-context", "4096"]  # the model takes 512, and so does the server
    plain = ("--model", str(served.start), "--warm-start.episodes", "0", "--steps", "2", "--evaluation.every", "1")
    assert train_cli(coin_flags(folder.path, *plain, *more)) == 0
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    for step in range(3):
        episodes = folder.read_evaluation(step, "sampled") or []
        versions = {turn.reply.sample.version for e in episodes for turn in e.turns if turn.reply.sample}
        assert versions == {step}


# The last: it takes the server away.
def test_a_killed_server_comes_back_with_its_weights_and_replays(served: Served) -> None:
    served.load(40)
    contexts = random_contexts(*LENGTHS[:-1])
    calm = served.sample(contexts, tokens=60)
    before = _family()
    command = ["-m", "vllm.entrypoints.openai.api_server"]
    (server,) = (process for process in before if process.cmdline()[1:3] == command)  # the guard only repeats it

    async def scene() -> list[Completion]:
        asked = [
            asyncio.create_task(served.engine.generate(ids, SamplingParams(max_tokens=60, seed=seed)))
            for seed, ids in enumerate(contexts)
        ]
        await eventually_async(lambda: served.engine._under_way == len(asked))
        server.kill()
        return await asyncio.gather(*asked)

    again = served.do(scene())
    assert [(one.ids, one.version) for one in again] == [(one.ids, 40) for one in calm]
    assert gap(served.model, contexts, again) < TOLERANCE
    assert not {process.pid for process in before} & {process.pid for process in _family()}
    assert all_end(before)
