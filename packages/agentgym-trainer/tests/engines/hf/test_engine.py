"""Tests of the transformers engine: exactness, caching, and sampling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.hf import engine as hf_engine
from agentgym_trainer.engines.hf import scheduler
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.tokens.chat import Chat
from engine_checks import EXACT, assert_exact, full_logprobs, gather, random_ids
from toy_learner import VOCAB
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM


@pytest.fixture
def engine(model: Any, chat: Chat) -> Batching:
    return transformers_engine(model, end_id=chat.end_id)


async def _trajectory(
    engine: Batching, seed: int, *, prompt: Sequence[int], turns: int = 4, temperature: float = 1.0, pause: int = 4
) -> list[tuple[tuple[int, ...], Completion]]:
    """Return the contexts and replies of a trajectory whose environment responds after random delays."""
    rng = np.random.default_rng([seed, 1])
    context, exchanges = tuple(prompt), list[tuple[tuple[int, ...], Completion]]()
    for _ in range(turns):
        for _ in range(int(rng.integers(0, pause + 1))):
            await asyncio.sleep(0)
        sampling = SamplingParams(temperature, max_tokens=int(rng.integers(1, 12)), seed=int(rng.integers(2**62)))
        completion = await engine.generate(context, sampling)
        exchanges.append((context, completion))
        context += completion.ids + random_ids(rng)
    return exchanges


def test_logprobs_of_concurrent_requests_match_a_full_forward(
    model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some prompts are longer than one prefill step.
    monkeypatch.setattr(scheduler, "_TOKENS", 70)
    prompts = [random_ids(np.random.default_rng(group), 20, 90) for group in range(5)]
    temperatures = [(1.0, 0.7)[k % 2] for k in range(24)]
    trajectories = gather(
        *(_trajectory(engine, k, prompt=prompts[k % 5][: 90 - k], temperature=temperatures[k]) for k in range(24))
    )
    for temperature, trajectory in zip(temperatures, trajectories, strict=True):
        for context, completion in trajectory:
            assert_exact(model, context, completion, temperature)


def test_models_without_grouped_queries_are_exact() -> None:
    # Its configuration has no number of key heads.
    config = GPT2Config(vocab_size=VOCAB, n_layer=2, n_head=2, n_embd=32, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    engine = transformers_engine(model, end_id=0)
    prompts = [random_ids(np.random.default_rng(k), 20, 40) for k in range(3)]
    for trajectory in gather(*(_trajectory(engine, k, prompt=prompt) for k, prompt in enumerate(prompts))):
        for context, completion in trajectory:
            assert_exact(model, context, completion, 1.0)


def test_samples_depend_on_the_seed_and_not_on_the_batch(model: Any, chat: Chat) -> None:
    prompts = [random_ids(np.random.default_rng(k // 2), 20, 40) for k in range(8)]
    engine = transformers_engine(model, end_id=chat.end_id)
    batched = gather(*(_trajectory(engine, k, prompt=prompts[k]) for k in range(8)))
    for k in (0, 5):
        (alone,) = gather(_trajectory(transformers_engine(model, end_id=chat.end_id), k, prompt=prompts[k]))
        for (_, one), (_, other) in zip(alone, batched[k], strict=True):
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=EXACT)


def test_equal_requests_give_bit_identical_results(model: Any, chat: Chat) -> None:
    def scenario() -> list[Any]:
        engine = transformers_engine(model, end_id=chat.end_id)
        return gather(
            *(_trajectory(engine, k, prompt=random_ids(np.random.default_rng(k // 3), 5, 40)) for k in range(12))
        )

    assert scenario() == scenario()


def test_sleep_clears_all_cached_state(model: Any, chat: Chat) -> None:
    async def scenario(*, earlier_requests: bool) -> list[Any]:
        engine = transformers_engine(model, end_id=chat.end_id)
        if earlier_requests:
            await _trajectory(engine, 50, prompt=(7,) * 33)
            await engine.sleep()
        return [await _trajectory(engine, 3, prompt=(7,) * 30), engine.usage.reused]

    (one, _), (other, _) = gather(scenario(earlier_requests=False), scenario(earlier_requests=True))
    assert one == other


def test_later_turns_prefill_only_new_tokens(engine: Batching) -> None:
    (trajectory,) = gather(_trajectory(engine, 0, prompt=(5,) * 20, turns=5))
    longest = trajectory[-1][0]
    assert engine.usage.prefilled == len(longest) - sum(len(completion.ids) for _, completion in trajectory[:-1])
    # The last token of a reply is prefilled with the tokens after it.
    assert engine.usage.reused == sum(len(context) + len(completion.ids) - 1 for context, completion in trajectory[:-1])
    assert engine.usage.generated == sum(len(completion.ids) for _, completion in trajectory)


def test_concurrent_requests_prefill_a_shared_prompt_once(model: Any, engine: Batching) -> None:
    prompt = random_ids(np.random.default_rng(0), 50, 51)
    requests = [engine.generate(prompt, SamplingParams(max_tokens=5, seed=k)) for k in range(8)]
    for completion in gather(*requests):
        assert_exact(model, prompt, completion)
    # Every request prefills the last prompt token itself, to sample its first token.
    assert engine.usage.prefilled == 50 + 7
    assert engine.usage.reused == 7 * 49


def test_chunked_prefills_of_a_prefix_are_shared(model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 16)
    prompt = random_ids(np.random.default_rng(0), 50, 51)
    contexts = [prompt, (*prompt, 9, 10), (*prompt[:40], 8), (*prompt, 9, 11, 12)]
    for context, completion in zip(
        contexts, gather(*(engine.generate(c, SamplingParams(max_tokens=4, seed=1)) for c in contexts)), strict=True
    ):
        assert_exact(model, context, completion)
    assert engine.usage.prefilled == 50 + 2 + 1 + 2


def test_later_requests_reuse_cached_prefixes(model: Any, engine: Batching) -> None:
    async def scenario() -> None:
        prompt = random_ids(np.random.default_rng(0), 40, 41)
        first = await engine.generate(prompt, SamplingParams(max_tokens=6, seed=1))
        other = (*prompt[:30], 5, 6)
        assert_exact(model, other, await engine.generate(other, SamplingParams(max_tokens=6, seed=2)))
        assert engine.usage.prefilled == 40 + 2
        # The first request's cache is still there and can be extended.
        further = (*prompt, *first.ids, 7)
        assert_exact(model, further, await engine.generate(further, SamplingParams(max_tokens=6, seed=3)))
        assert engine.usage.prefilled == 40 + 2 + 1

    gather(scenario())


def test_follower_of_a_cancelled_request_finishes_the_prefill(
    model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 10)
    prompt = random_ids(np.random.default_rng(0), 50, 51)

    async def scenario() -> Completion:
        leader, follower = (
            asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=4))) for _ in range(2)
        )
        while not engine.usage.prefilled:
            await asyncio.sleep(0)
        leader.cancel()
        return await follower

    assert_exact(model, prompt, gather(scenario())[0])
    assert 50 <= engine.usage.prefilled < 80


def test_least_recently_used_rows_are_evicted(model: Any, chat: Chat) -> None:
    engine = transformers_engine(model, end_id=chat.end_id, keep=200)

    async def scenario() -> None:
        for k in range(20):
            assert_exact(
                model, (k + 3,) * 40, await engine.generate((k + 3,) * 40, SamplingParams(max_tokens=4, seed=k))
            )
        before = engine.usage.prefilled
        await engine.generate((22,) * 41, SamplingParams(max_tokens=1))
        assert engine.usage.prefilled == before + 1
        await engine.generate((4,) * 41, SamplingParams(max_tokens=1))
        assert engine.usage.prefilled == before + 1 + 41
        core: Any = engine._core
        assert len(core._rows._rows) <= 7

    gather(scenario())


def test_rows_of_ended_trajectories_make_room_for_new_ones(model: Any, chat: Chat) -> None:
    engine = transformers_engine(model, end_id=chat.end_id, concurrent=8)
    contexts = [tuple(range(k + 3, k + 23)) for k in range(8)]

    async def turn(ids: tuple[int, ...], seed: int) -> tuple[int, ...]:
        sampled = await engine.generate(ids, SamplingParams(max_tokens=3, seed=seed))
        assert_exact(model, ids, sampled)
        return (*ids, *sampled.ids, 5)

    async def scenario() -> None:
        living = list(contexts)
        for round in range(12):
            living = list(await asyncio.gather(*(turn(ids, round) for ids in living)))
            living[round % 8] = tuple(range(round + 40, round + 60))  # one ends, and another one begins
            rows: Any = engine._core._rows  # type: ignore[attr-defined]
            assert len(rows._rows) <= 8 + 4
            assert rows.cache.rows <= 8 + 4
        # Whoever goes on finds all tokens but those of the last observation in the cache.
        before = engine.usage.prefilled
        await asyncio.gather(*(turn(ids, 12) for k, ids in enumerate(living) if k != 11 % 8))
        assert engine.usage.prefilled == before + 7
        # All end at once, and as many begin.
        for wave in range(3):
            await asyncio.gather(*(turn(tuple(range(9 * wave + k, 9 * wave + k + 30)), 13) for k in range(8)))
            assert rows.cache.rows <= 8 + 4

    gather(scenario())


def test_cache_of_many_short_rows_is_not_widened_for_a_long_one(model: Any, chat: Chat) -> None:
    engine = transformers_engine(model, end_id=chat.end_id, keep=4000)

    async def scenario() -> None:
        for k in range(100):
            await engine.generate((k + 3,) * 8, SamplingParams(max_tokens=2, seed=k))
        cache = engine._core._rows.cache  # type: ignore[attr-defined]
        assert 4000 / 100 < cache.rows < 4000 / 40
        long = (5,) * 400
        assert_exact(model, long, await engine.generate(long, SamplingParams(max_tokens=4)))
        await engine.generate((6,) * 400, SamplingParams(max_tokens=1))
        assert cache.positions > 400
        assert cache.rows * cache.positions < 2 * (4000 + 400)

    gather(scenario())


def test_greedy_takes_the_most_likely_token_in_a_mixed_batch(model: Any, engine: Batching) -> None:
    context = (5, 6, 7)
    sampled, greedy = gather(
        *(engine.generate(context, SamplingParams(temperature, max_tokens=8, seed=3)) for temperature in (1.3, 0))
    )
    assert_exact(model, context, sampled, 1.3)
    for token in greedy.ids:
        with torch.no_grad():
            assert int(model(torch.tensor([context])).logits[0, -1].argmax()) == token
        context += (token,)
    assert set(greedy.logprobs) == {0.0}


def test_sampling_follows_the_distribution(model: Any, engine: Batching) -> None:
    requests = [engine.generate((9,), SamplingParams(max_tokens=1, seed=seed)) for seed in range(1500)]
    drawn = [completion.ids[0] for completion in gather(*requests)]
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[9]])).logits[0, -1], -1).numpy()
    likely = expected > 0.01
    assert likely.any()
    frequencies = np.bincount(drawn, minlength=len(expected)) / len(drawn)
    assert np.abs(frequencies - expected)[likely].max() < 0.04


def test_end_of_turn_token_ends_a_reply_and_is_included(engine: Batching, chat: Chat) -> None:
    completions = gather(*(engine.generate((5,), SamplingParams(max_tokens=120, seed=seed)) for seed in range(40)))
    stopped = [completion for completion in completions if completion.finish == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.ids.index(chat.end_id) == len(completion.ids) - 1
    assert all(chat.end_id not in c.ids and len(c.ids) == 120 for c in completions if c.finish == "length")


def test_token_budgets_end_replies_individually(engine: Batching) -> None:
    requests = [engine.generate((5,) * 3, SamplingParams(max_tokens=n, seed=1)) for n in (1, 3, 2)]
    short, *rest = gather(*requests)
    assert (len(short.ids), short.finish) == (1, "length")
    assert all(completion.ids[:1] == short.ids for completion in rest)
    with pytest.raises(ValueError, match="takes 1 to 512 tokens in all"):
        gather(engine.generate((5,) * 500, SamplingParams(max_tokens=13)))


def test_grouped_query_attention_matches_a_full_forward(chat: Chat) -> None:
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    engine = transformers_engine(model, end_id=chat.end_id)
    prompt = random_ids(np.random.default_rng(0), 20, 30)
    for context, completion in (
        t for turns in gather(*(_trajectory(engine, k, prompt=prompt) for k in range(6))) for t in turns
    ):
        assert_exact(model, context, completion)


def test_engine_samples_under_autocast(model: Any, chat: Chat) -> None:
    entered: list[bool] = []

    @contextlib.contextmanager
    def autocast() -> Generator[None]:
        entered.append(True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield

    engine = transformers_engine(model, end_id=chat.end_id, autocast=autocast)
    prompts = [random_ids(np.random.default_rng(k), 10, 20) for k in range(4)]
    turns = [
        turn
        for trajectory in gather(*(_trajectory(engine, k, prompt=prompts[k]) for k in range(4)))
        for turn in trajectory
    ]
    mean_error = 0.0
    for context, completion in turns:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = full_logprobs(model, (*context, *completion.ids), len(completion.ids))
        mean_error += (torch.tensor(completion.logprobs) - expected).abs().mean().item() / len(turns)
        assert not torch.equal(full_logprobs(model, (*context, *completion.ids), len(completion.ids)), expected)
    assert entered
    assert mean_error < 0.05


def test_a_pass_runs_on_the_current_gpu_of_its_thread(model: Any, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[torch.device] = []

    @contextlib.contextmanager
    def current(device: torch.device) -> Generator[None]:
        inside.append(device)
        yield
        inside.pop()

    assert hf_engine._current(torch.device("cuda", 1)).idx == 1
    monkeypatch.setattr(hf_engine, "_current", current)
    passes: list[torch.device] = []
    model.register_forward_pre_hook(lambda *_: passes.extend(inside))
    gather(transformers_engine(model, end_id=chat.end_id).generate((5,), SamplingParams(max_tokens=2)))
    assert set(passes) == {model.device}


def test_failed_step_is_replayed(new_model: Callable[..., Any], chat: Chat) -> None:
    model = new_model().eval()
    calls: list[int] = []

    def fail_once(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("out of memory")

    expected = gather(_trajectory(transformers_engine(model, end_id=chat.end_id), 0, prompt=(5,) * 20))[0]
    model.register_forward_pre_hook(fail_once)
    assert gather(_trajectory(transformers_engine(model, end_id=chat.end_id), 0, prompt=(5,) * 20))[0] == expected


def test_sliding_window_attention_is_rejected() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="qwen2 has layers of sliding_attention, which the transformers engine can't"):
        transformers_engine(Qwen2ForCausalLM(config), end_id=1)


@pytest.mark.parametrize("parameters", [{"temperature": -1.0}, {"max_tokens": 0}])
def test_sampling_parameters_out_of_range_are_rejected(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        SamplingParams(**parameters)
