from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.hf import scheduler
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.tokens.chat import Chat
from peft import get_peft_model_state_dict
from torch import Tensor
from toy_learner import VOCAB
from transformers import Qwen2Config, Qwen2ForCausalLM

EXACT = 1e-5


@pytest.fixture
def engine(model: Any, chat: Chat) -> Batching:
    return transformers_engine(model, end_id=chat.end_id)


def _ids(rng: np.random.Generator, least: int = 1, most: int = 30) -> tuple[int, ...]:
    return tuple(rng.integers(3, VOCAB, int(rng.integers(least, most))).tolist())


def _full_logprobs(model: Any, context: Sequence[int], said: int, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the last `said` ids by one plain forward over everything."""
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([list(context)])).logits[0].float() / temperature, -1)
    return logp[-said - 1 : -1].gather(1, torch.tensor(context[-said:])[:, None])[:, 0]


def _assert_exact(
    model: Any, context: Sequence[int], completion: Completion, temperature: float = 1.0, within: float = EXACT
) -> None:
    expected = _full_logprobs(model, (*context, *completion.ids), len(completion.ids), temperature)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=within, rtol=0)


def _all(*asked: Coroutine[Any, Any, Any]) -> list[Any]:
    """What they return, all at once."""

    async def together() -> list[Any]:
        return await asyncio.gather(*asked)

    return asyncio.run(together())


async def _play(
    engine: Batching, seed: int, *, prompt: Sequence[int], turns: int = 4, temperature: float = 1.0, pause: int = 4
) -> list[tuple[tuple[int, ...], Completion]]:
    """Contexts and replies of a trajectory whose world takes its time, now more, now less."""
    rng = np.random.default_rng([seed, 1])
    context, played = tuple(prompt), list[tuple[tuple[int, ...], Completion]]()
    for _ in range(turns):
        for _ in range(int(rng.integers(0, pause + 1))):
            await asyncio.sleep(0)
        sampling = SamplingParams(temperature, max_tokens=int(rng.integers(1, 12)), seed=int(rng.integers(2**62)))
        completion = await engine.generate(context, sampling)
        played.append((context, completion))
        context += completion.ids + _ids(rng)
    return played


def test_whoever_joins_leaves_and_shares_agrees_with_a_full_forward(
    model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some prompts are longer than what is read at once.
    monkeypatch.setattr(scheduler, "_TOKENS", 70)
    prompts = [_ids(np.random.default_rng(group), 20, 90) for group in range(5)]
    heat = [(1.0, 0.7)[k % 2] for k in range(24)]
    plays = _all(*(_play(engine, k, prompt=prompts[k % 5][: 90 - k], temperature=heat[k]) for k in range(24)))
    for temperature, played in zip(heat, plays, strict=True):
        for context, completion in played:
            _assert_exact(model, context, completion, temperature)


def test_what_is_sampled_hangs_on_the_seed_and_not_on_the_company(model: Any, chat: Chat) -> None:
    prompts = [_ids(np.random.default_rng(k // 2), 20, 40) for k in range(8)]
    engine = transformers_engine(model, end_id=chat.end_id)
    among = _all(*(_play(engine, k, prompt=prompts[k]) for k in range(8)))
    for k in (0, 5):
        (alone,) = _all(_play(transformers_engine(model, end_id=chat.end_id), k, prompt=prompts[k]))
        for (_, one), (_, other) in zip(alone, among[k], strict=True):
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=EXACT)


def test_the_same_requests_give_the_same_to_the_bit(model: Any, chat: Chat) -> None:
    def play() -> list[Any]:
        engine = transformers_engine(model, end_id=chat.end_id)
        return _all(*(_play(engine, k, prompt=_ids(np.random.default_rng(k // 3), 5, 40)) for k in range(12)))

    assert play() == play()


def test_after_a_rest_nothing_of_the_past_shows(model: Any, chat: Chat) -> None:
    async def play(*, before: bool) -> list[Any]:
        engine = transformers_engine(model, end_id=chat.end_id)
        if before:
            await _play(engine, 50, prompt=(7,) * 33)
            await engine.sleep()
        return [await _play(engine, 3, prompt=(7,) * 30), engine.usage.reused]

    (one, _), (other, _) = _all(play(before=False), play(before=True))
    assert one == other


def test_a_trajectory_that_goes_on_reads_only_what_is_new(engine: Batching) -> None:
    (played,) = _all(_play(engine, 0, prompt=(5,) * 20, turns=5))
    longest = played[-1][0]
    assert engine.usage.prefilled == len(longest) - sum(len(completion.ids) for _, completion in played[:-1])
    # The last token of a reply is read with what follows it.
    assert engine.usage.reused == sum(len(context) + len(completion.ids) - 1 for context, completion in played[:-1])
    assert engine.usage.generated == sum(len(completion.ids) for _, completion in played)


def test_a_group_that_asks_at_the_same_moment_reads_its_prompt_once(model: Any, engine: Batching) -> None:
    prompt = _ids(np.random.default_rng(0), 50, 51)
    asked = [engine.generate(prompt, SamplingParams(max_tokens=5, seed=k)) for k in range(8)]
    for completion in _all(*asked):
        _assert_exact(model, prompt, completion)
    # The last token of the prompt is everyone's own: it is what the first one is drawn from.
    assert engine.usage.prefilled == 50 + 7
    assert engine.usage.reused == 7 * 49


def test_a_group_shares_prompts_that_are_read_in_pieces(
    model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 16)
    prompt = _ids(np.random.default_rng(0), 50, 51)
    contexts = [prompt, (*prompt, 9, 10), (*prompt[:40], 8), (*prompt, 9, 11, 12)]
    for context, completion in zip(
        contexts, _all(*(engine.generate(c, SamplingParams(max_tokens=4, seed=1)) for c in contexts)), strict=True
    ):
        _assert_exact(model, context, completion)
    assert engine.usage.prefilled == 50 + 2 + 1 + 2


def test_who_comes_later_takes_over_what_others_have_read(model: Any, engine: Batching) -> None:
    async def play() -> None:
        prompt = _ids(np.random.default_rng(0), 40, 41)
        first = await engine.generate(prompt, SamplingParams(max_tokens=6, seed=1))
        other = (*prompt[:30], 5, 6)
        _assert_exact(model, other, await engine.generate(other, SamplingParams(max_tokens=6, seed=2)))
        assert engine.usage.prefilled == 40 + 2
        # The first one is still there, and goes on.
        further = (*prompt, *first.ids, 7)
        _assert_exact(model, further, await engine.generate(further, SamplingParams(max_tokens=6, seed=3)))
        assert engine.usage.prefilled == 40 + 2 + 1

    _all(play())


def test_who_followed_one_that_was_cancelled_reads_on_alone(
    model: Any, engine: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS", 10)
    prompt = _ids(np.random.default_rng(0), 50, 51)

    async def play() -> Completion:
        leader, follower = (
            asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=4))) for _ in range(2)
        )
        while not engine.usage.prefilled:
            await asyncio.sleep(0)
        leader.cancel()
        return await follower

    _assert_exact(model, prompt, _all(play())[0])
    assert 50 <= engine.usage.prefilled < 80


def test_what_rests_longest_is_dropped_beyond_the_bound(model: Any, chat: Chat) -> None:
    engine = transformers_engine(model, end_id=chat.end_id, keep=200)

    async def play() -> None:
        for k in range(20):
            _assert_exact(
                model, (k + 3,) * 40, await engine.generate((k + 3,) * 40, SamplingParams(max_tokens=4, seed=k))
            )
        before = engine.usage.prefilled
        await engine.generate((22,) * 41, SamplingParams(max_tokens=1))
        assert engine.usage.prefilled == before + 1
        await engine.generate((4,) * 41, SamplingParams(max_tokens=1))
        assert engine.usage.prefilled == before + 1 + 41
        table: Any = engine._core
        assert len(table._rows._rows) <= 7

    _all(play())


def test_greedy_takes_the_most_likely_token_also_beside_others_that_are_not(model: Any, engine: Batching) -> None:
    context = (5, 6, 7)
    sampled, greedy = _all(
        *(engine.generate(context, SamplingParams(temperature, max_tokens=8, seed=3)) for temperature in (1.3, 0))
    )
    _assert_exact(model, context, sampled, 1.3)
    for token in greedy.ids:
        with torch.no_grad():
            assert int(model(torch.tensor([context])).logits[0, -1].argmax()) == token
        context += (token,)
    assert set(greedy.logprobs) == {0.0}


def test_sampling_follows_the_distribution(model: Any, engine: Batching) -> None:
    asked = [engine.generate((9,), SamplingParams(max_tokens=1, seed=seed)) for seed in range(1500)]
    drawn = [completion.ids[0] for completion in _all(*asked)]
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[9]])).logits[0, -1], -1).numpy()
    likely = expected > 0.01
    assert likely.any()
    found = np.bincount(drawn, minlength=len(expected)) / len(drawn)
    assert np.abs(found - expected)[likely].max() < 0.04


def test_the_end_of_turn_ends_a_reply_and_is_part_of_it(engine: Batching, chat: Chat) -> None:
    completions = _all(*(engine.generate((5,), SamplingParams(max_tokens=120, seed=seed)) for seed in range(40)))
    stopped = [completion for completion in completions if completion.finish == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.ids.index(chat.end_id) == len(completion.ids) - 1
    assert all(chat.end_id not in c.ids and len(c.ids) == 120 for c in completions if c.finish == "length")


def test_budgets_end_replies_one_by_one(engine: Batching) -> None:
    asked = [engine.generate((5,) * 3, SamplingParams(max_tokens=n, seed=1)) for n in (1, 3, 2)]
    short, *rest = _all(*asked)
    assert (len(short.ids), short.finish) == (1, "length")
    assert all(completion.ids[:1] == short.ids for completion in rest)
    with pytest.raises(ValueError, match="512 with the budget"):
        _all(engine.generate((5,) * 500, SamplingParams(max_tokens=13)))


def _whole(model: Any, version: int) -> Weights:
    return Weights(version, lambda: iter(model.state_dict().items()))


def test_it_samples_from_the_training_module_as_it_is(new_model: Callable[..., Any], chat: Chat) -> None:
    model = new_model()
    engine = transformers_engine(model, end_id=chat.end_id)

    async def play() -> None:
        before = await engine.generate((5,) * 20, SamplingParams(max_tokens=6))
        model.load_state_dict(new_model(1).state_dict())
        model.train()
        await engine.load(Weights(1, lambda: iter(())))
        after = await engine.generate((5,) * 20, SamplingParams(max_tokens=6))
        _assert_exact(new_model(0).eval(), (5,) * 20, before)
        _assert_exact(new_model(1).eval(), (5,) * 20, after)
        assert (before.version, after.version) == (0, 1)

    _all(play())


def test_a_copy_of_its_own_changes_with_what_is_loaded_only(new_model: Callable[..., Any], chat: Chat) -> None:
    model, other = new_model(0).eval(), new_model(1).eval()
    engine = transformers_engine(model, end_id=chat.end_id, own_copy=True)
    context = (5,) * 20

    async def play() -> None:
        was = new_model(0).eval()
        model.load_state_dict(other.state_dict())
        before = await engine.generate(context, SamplingParams(max_tokens=6))
        _assert_exact(was, context, before)
        await engine.load(_whole(other, 3))
        late = await engine.generate(context, SamplingParams(max_tokens=6))
        _assert_exact(other, context, late)
        assert [before.version, late.version] == [0, 3]

    _all(play())


def test_replies_under_way_go_on_with_new_weights_and_each_token_has_the_numbers_of_its_own(
    new_model: Callable[..., Any], chat: Chat
) -> None:
    models = [new_model(version).eval() for version in range(3)]
    engine = transformers_engine(models[0], end_id=chat.end_id, own_copy=True)
    # Some still read their contexts when the weights change, two share theirs, one has said most of its own.
    contexts = [(5,) * 20, (5,) * 20, (6,) * 30, tuple(range(3, 100)) * 2]

    async def ask(context: Sequence[int], seed: int) -> Completion:
        return await engine.generate(context, SamplingParams(max_tokens=24, seed=seed))

    async def play() -> None:
        asked = [asyncio.create_task(ask(context, seed)) for seed, context in enumerate(contexts)]
        for version in (1, 2):
            for _ in range(8):  # a turn of the loop for each step of the engine
                await asyncio.sleep(0)
            await engine.load(_whole(models[version], version))
        said = await asyncio.gather(*asked)
        mixed = [one for one in said if one.versions]
        assert {version for one in mixed for version in one.versions} == {0, 1, 2}
        for context, one in zip(contexts, said, strict=True):
            versions = one.versions or (one.version,) * len(one.ids)
            assert list(versions) == sorted(versions)
            assert versions[0] == one.version
            read, said_M = (*context, *one.ids), torch.tensor(one.logprobs)
            gaps = [(_full_logprobs(model, read, len(said_M)) - said_M).abs().tolist() for model in models]
            for at, version in enumerate(versions):
                assert gaps[version][at] < EXACT < min(gap[at] for gap in gaps[:version] + gaps[version + 1 :])
        # A reply is as long as its budget lets it be, however often it was interrupted.
        assert all(len(one.ids) == 24 or one.ids[-1] == chat.end_id for one in said)
        assert engine.usage.generated == sum(len(one.ids) for one in said)

    _all(play())


def test_weights_of_another_model_are_refused(new_model: Callable[..., Any], chat: Chat) -> None:
    engine = transformers_engine(new_model(), end_id=chat.end_id, own_copy=True)
    with pytest.raises(EngineGone, match="nonsense, which the engine's model doesn't"):
        _all(engine.load(Weights(1, lambda: iter([("nonsense", torch.zeros(1))]))))


def test_adapters_are_loaded_as_adapters(new_model: Callable[..., Any], chat: Chat) -> None:
    policy = with_lora(new_model(), Lora(rank=4), seed=0).eval()
    engine = transformers_engine(policy, end_id=chat.end_id, own_copy=True)
    plain = new_model().eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
    adapter = Weights(2, lambda: iter(get_peft_model_state_dict(policy).items()), adapter={})

    async def play() -> list[Completion]:
        before = await engine.generate((5,) * 9, SamplingParams(max_tokens=6))
        await engine.load(adapter)
        return [before, await engine.generate((5,) * 9, SamplingParams(max_tokens=6))]

    before, after = _all(play())[0]
    _assert_exact(plain, (5,) * 9, before)
    _assert_exact(policy, (5,) * 9, after)
    assert before.logprobs != pytest.approx(after.logprobs, abs=1e-2)


def test_heads_that_share_keys_agree_too(chat: Chat) -> None:
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    engine = transformers_engine(model, end_id=chat.end_id)
    prompt = _ids(np.random.default_rng(0), 20, 30)
    for context, completion in (
        t for turns in _all(*(_play(engine, k, prompt=prompt) for k in range(6))) for t in turns
    ):
        _assert_exact(model, context, completion)


def test_it_samples_under_autocast(model: Any, chat: Chat) -> None:
    entered: list[bool] = []

    @contextlib.contextmanager
    def autocast() -> Generator[None]:
        entered.append(True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield

    engine = transformers_engine(model, end_id=chat.end_id, autocast=autocast)
    prompts = [_ids(np.random.default_rng(k), 10, 20) for k in range(4)]
    turns = [turn for played in _all(*(_play(engine, k, prompt=prompts[k]) for k in range(4))) for turn in played]
    off = 0.0
    for context, completion in turns:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = _full_logprobs(model, (*context, *completion.ids), len(completion.ids))
        off += (torch.tensor(completion.logprobs) - expected).abs().mean().item() / len(turns)
        assert not torch.equal(_full_logprobs(model, (*context, *completion.ids), len(completion.ids)), expected)
    assert entered
    assert off < 0.05


def test_a_step_that_fails_is_played_again(new_model: Callable[..., Any], chat: Chat) -> None:
    model = new_model().eval()
    calls: list[int] = []

    def fail_once(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("out of memory")

    expected = _all(_play(transformers_engine(model, end_id=chat.end_id), 0, prompt=(5,) * 20))[0]
    model.register_forward_pre_hook(fail_once)
    assert _all(_play(transformers_engine(model, end_id=chat.end_id), 0, prompt=(5,) * 20))[0] == expected


def test_a_model_with_a_sliding_window_is_refused() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="qwen2 has layers of sliding_attention, which the transformers engine can't"):
        transformers_engine(Qwen2ForCausalLM(config), end_id=1)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"max_tokens": 0}])
def test_sampling_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        SamplingParams(**wrong)
