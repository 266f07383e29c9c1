from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_trainer.chat import Chat
from agentgym_trainer.engines import Completion, Request, Sampling
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.engines.transformers import TransformersEngine
from miniature import VOCAB
from transformers import Qwen2Config, Qwen2ForCausalLM

SAMPLING = Sampling(max_tokens=12, max_context=120)


@pytest.fixture
def engine(model: Any, chat: Chat) -> TransformersEngine:
    return TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id)


def _ids(rng: np.random.Generator, least: int = 1, most: int = 30) -> tuple[int, ...]:
    return tuple(rng.integers(3, VOCAB, int(rng.integers(least, most))).tolist())


def _request(key: int, ids: tuple[int, ...], *, fresh: bool = True, seed: int = 0) -> Request:
    return Request(key, ids, fresh, np.random.default_rng([seed, key]))


def _full_logprobs(model: Any, context: Sequence[int], said: int, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the last `said` ids by one plain forward over everything."""
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([list(context)])).logits[0].float() / temperature, -1)
    return logp[-said - 1 : -1].gather(1, torch.tensor(context[-said:])[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trajectories_that_join_leave_and_skip_agree_with_a_full_forward(
    model: Any, engine: TransformersEngine, temperature: float
) -> None:
    rng = np.random.default_rng(0)
    sampling = Sampling(temperature=temperature, max_tokens=12, max_context=120)
    contexts: dict[int, tuple[int, ...]] = {}
    finishes: set[str] = set()
    for wave in range(14):
        for key in [key for key in contexts if rng.random() < 0.15]:
            engine.release([key])
            del contexts[key]
        waiting = [key for key in rng.permutation(2 * wave + 4).tolist() if rng.random() < 0.5]
        requests = [
            Request(key, _ids(rng), key not in contexts or bool(rng.random() < 0.1), np.random.default_rng(key))
            for key in waiting
        ]
        for request, completion in zip(requests, engine.generate(requests, sampling), strict=True):
            before = () if request.fresh else contexts.get(request.key, ())
            whole = contexts[request.key] = before + request.ids + completion.ids
            finishes.add(completion.finish)
            assert len(completion.ids) == len(completion.logprobs)
            if completion.ids:
                expected = _full_logprobs(model, whole, len(completion.ids), temperature)
                torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
    assert finishes == {"stop", "length"}


def _play(engine: TransformersEngine, company: int) -> list[Completion]:
    """Three turns of trajectory 0, among so many others that come and go."""
    rng, others = np.random.default_rng(7), np.random.default_rng([company])
    own = np.random.default_rng(1)
    said: list[Completion] = []
    for turn in range(3):
        requests = [
            Request(key, _ids(others), True, np.random.default_rng(key)) for key in range(1, 1 + company * (turn + 1))
        ]
        requests.insert(len(requests) // 2, Request(0, _ids(rng), turn == 0, own))
        said.append(engine.generate(requests, SAMPLING)[(len(requests) - 1) // 2])
    return said


@pytest.mark.parametrize("company", [1, 5])
def test_what_is_sampled_does_not_hang_on_who_else_is_being_sampled(model: Any, chat: Chat, company: int) -> None:
    alone, among = (
        _play(TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id), others) for others in (0, company)
    )
    assert [completion.ids for completion in alone] == [completion.ids for completion in among]
    for one, other in zip(alone, among, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_greedy_takes_the_most_likely_token_and_draws_nothing(model: Any, engine: TransformersEngine) -> None:
    request = _request(0, (5, 6, 7))
    before = request.rng.bit_generator.state
    completion = engine.generate([request], Sampling(temperature=0, max_tokens=8))[0]
    context = (5, 6, 7)
    for token in completion.ids:
        with torch.no_grad():
            assert int(model(torch.tensor([context])).logits[0, -1].argmax()) == token
        context += (token,)
    assert request.rng.bit_generator.state == before
    assert set(completion.logprobs) == {0.0}


def test_sampling_follows_the_distribution(model: Any, engine: TransformersEngine) -> None:
    rng = np.random.default_rng(0)
    drawn = [
        c.ids[0] for c in engine.generate([Request(i, (9,), True, rng) for i in range(4000)], Sampling(max_tokens=1))
    ]
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[9]])).logits[0, -1], -1).numpy()
    likely = expected > 0.01
    assert likely.any()
    found = np.bincount(drawn, minlength=len(expected)) / len(drawn)
    assert np.abs(found - expected)[likely].max() < 0.03


def test_at_the_budget_generation_stops(engine: TransformersEngine) -> None:
    long, short, none = engine.generate(
        [_request(0, (5,) * 3), _request(1, (5,) * 18), _request(2, (5,) * 20)], Sampling(max_tokens=6, max_context=20)
    )
    assert (len(long.ids), long.finish) == (6, "length")
    assert (len(short.ids), short.finish) == (2, "length")
    assert none == Completion((), (), "length")


def test_the_end_of_turn_ends_a_reply_and_is_part_of_it(engine: TransformersEngine, chat: Chat) -> None:
    completions = engine.generate([_request(i, (5,)) for i in range(64)], Sampling(max_tokens=200))
    stopped = [completion for completion in completions if completion.finish == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.ids.index(chat.end_id) == len(completion.ids) - 1
    assert all(chat.end_id not in c.ids for c in completions if c.finish == "length")


def test_the_budget_counts_the_whole_context_over_turns(engine: TransformersEngine) -> None:
    rng = np.random.default_rng(3)
    total = 0
    for turn in range(30):
        completion = engine.generate([Request(0, (5,) * 4, turn == 0, rng)], Sampling(max_tokens=5, max_context=40))[0]
        total += 4 + len(completion.ids)
        if total >= 40:
            break
    assert total == 40
    assert completion.finish == "length"


def test_a_trajectory_without_budget_can_go_on_when_there_is_some(model: Any, engine: TransformersEngine) -> None:
    engine.generate([_request(0, (5,) * 20)], Sampling(max_context=20))
    completion = engine.generate([_request(0, (6,), fresh=False)], Sampling(max_tokens=4))[0]
    expected = _full_logprobs(model, (5,) * 20 + (6, *completion.ids), len(completion.ids))
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_nobody_to_sample_for_is_no_work(engine: TransformersEngine) -> None:
    assert engine.generate([], SAMPLING) == []


def test_rows_of_the_cache_are_used_again(engine: TransformersEngine) -> None:
    rng = np.random.default_rng(0)
    sizes: list[tuple[int, int]] = []
    for wave in range(25):
        keys = range(wave * 8, wave * 8 + 8)
        for turn in range(2):
            engine.generate([Request(key, _ids(rng), turn == 0, rng) for key in keys], SAMPLING)
        engine.release(list(keys))
        sizes.append(engine._cache.capacity)
    assert sizes[-1][0] == 8
    # 2 prompts of at most 29 and 2 replies of at most 12 tokens, half as much to spare, and a constant.
    assert sizes[-1][1] <= 82 * 1.5 + 64
    assert engine._cache.keys == []
    assert engine._unread == {}


def test_releasing_a_trajectory_that_is_not_there_does_nothing(engine: TransformersEngine) -> None:
    engine.release([17])


def test_a_model_with_a_sliding_window_is_refused() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="qwen2 has layers of sliding_attention, which the transformers engine can't"):
        TransformersEngine(Qwen2ForCausalLM(config), end_id=1, pad_id=0)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"max_tokens": 0}, {"max_context": 0}])
def test_sampling_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Sampling(**wrong)


def test_the_scripted_engine_sees_whole_contexts_and_keeps_budgets() -> None:
    seen: list[tuple[int, ...]] = []

    def script(context: tuple[int, ...]) -> list[int]:
        seen.append(context)
        return [7, 8, 1]

    engine = ScriptedEngine(script, end_id=1)
    assert engine.generate([_request(0, (5,))], Sampling()) == [Completion((7, 8, 1), (-1.0,) * 3, "stop")]
    cut = engine.generate([_request(0, (6,), fresh=False)], Sampling(max_context=7))
    assert cut == [Completion((7, 8), (-1.0,) * 2, "length")]
    assert seen == [(5,), (5, 7, 8, 1, 6)]
    engine.release([0])
    assert engine.contexts == {}
