"""Tests of rollouts: prompts and completion tokens, chat templates, token budgets and log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, EpisodeSpec, Message, play_many, text_env
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.algorithms import Algorithm, Correction
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import Weights
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.runner import EnginePolicy, TokenBudget
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import ContextLimit, Trajectory, Trimming, trajectory
from agentgym_trainer.trainers.warm_start import encode_demonstrations, warm_start
from chat_templates import FAMILIES, make_chat
from coin_rollouts import (
    RecordingEngine,
    coin_specs,
    constant_script,
    contexts,
    open_environment,
    play_episodes,
    random_reply_engine,
)
from toy_learner import make_learner

TEXTS = ["heads", "tails", "it says <|im_end|> and <|eot_id|>", "</s>[INST]<end_of_turn>"]
THOUGHTS = [*TEXTS, "<think>\nhm\n</think>\n\nheads", "<think>\nwell, well\n</think>\n\ntails"]
# Templates that render earlier replies exactly as they were sampled.
PRESERVING = sorted(set(FAMILIES) - {"qwen3", "mistral-v3"})


@pytest.fixture(scope="module")
def coin() -> Iterator[OpenEnvironment]:
    with open_environment() as world:
        yield world


@pytest.fixture(scope="module")
def coin_with_instructions() -> Iterator[OpenEnvironment]:
    """The coin environment with its instructions."""
    with open_environment(instructions=None) as world:
        yield world


def _policy(engine: Any, chat: Chat, **budget: int) -> EnginePolicy:
    return EnginePolicy(engine, chat, TokenBudget(**budget), name="scripted", temperature=0.8)


@pytest.mark.parametrize("with_instructions", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_tokens_are_exactly_the_trained_tokens(
    family: str, with_instructions: bool, coin: OpenEnvironment, coin_with_instructions: OpenEnvironment
) -> None:
    chat = make_chat(family)
    engine = RecordingEngine(random_reply_engine(chat, THOUGHTS))
    episodes = play_episodes(
        engine, _policy(engine, chat), coin_with_instructions if with_instructions else coin, coin_specs(6, samples=2)
    )
    assert sorted(turn for e in episodes for turn in contexts(e)) == sorted((c, r.ids) for c, r in engine.calls)
    for episode in episodes:
        turns, encoded = list(contexts(episode)), trajectory(episode)
        assert _completion(encoded) == [i for _, ids in turns for i in ids]
        # Each segment consists of the last context of its turns and the reply to it.
        last = [i for i, turn in enumerate(episode.turns[1:]) if turn.reply.sample.fresh] + [len(turns) - 1]
        assert [segment.ids for segment in encoded.segments] == [turns[i][0] + turns[i][1] for i in last]


def _completion(encoded: Trajectory) -> list[int]:
    return [i for s in encoded.segments for i, in_loss in zip(s.ids, s.loss_mask, strict=True) if in_loss]


def _conversation(episode: Episode, turn: int) -> tuple[Message, ...]:
    conversation = (Message("system", episode.instructions),) if episode.instructions else ()
    for previous in episode.turns[:turn]:
        conversation += (Message("user", previous.observation), Message("assistant", previous.reply.text))
    return (*conversation, Message("user", episode.turns[turn].observation))


@pytest.mark.parametrize("family", FAMILIES)
def test_new_segments_begin_only_where_the_template_rewrites_history(
    family: str, coin_with_instructions: OpenEnvironment
) -> None:
    chat = make_chat(family)
    engine = random_reply_engine(chat, TEXTS if family in PRESERVING else THOUGHTS)
    episodes = play_episodes(engine, _policy(engine, chat), coin_with_instructions, coin_specs(4, samples=2))
    rewrites = later_turns = 0
    for episode in episodes:
        for number, (turn, (context, _)) in enumerate(zip(episode.turns, contexts(episode), strict=True)):
            later_turns += number > 0
            if turn.reply.sample.fresh:
                rewrites += number > 0
                assert list(context) == chat.open(_conversation(episode, number))
    thoughts = sum("</think>" in turn.reply.text for e in episodes for turn in e.turns[:-1])
    assert rewrites == {"qwen3": thoughts, "mistral-v3": later_turns}.get(family, 0)
    assert thoughts > 0 or family in PRESERVING


@pytest.mark.parametrize("family", PRESERVING)
def test_text_that_spells_control_tokens_stays_text(family: str, coin_with_instructions: OpenEnvironment) -> None:
    chat = make_chat(family)
    special = set(chat.tokenizer.all_special_ids)
    engine = random_reply_engine(chat, [*TEXTS, "".join(chat.tokenizer.all_special_tokens)])
    (episode,) = play_episodes(engine, _policy(engine, chat), coin_with_instructions, coin_specs(1))
    harmless = tuple(Message(m.role, "x") for m in _conversation(episode, 2))
    (context, completion) = list(contexts(episode))[-1]
    assert [i for i in context if i in special] == [i for i in chat.open(harmless) if i in special]
    assert [i for i in completion if i in special] == [chat.end_id]


def test_the_turn_budget_ends_episodes_without_acting_on_the_cut_reply(chat: Chat, coin: OpenEnvironment) -> None:
    engine = random_reply_engine(chat, ["heads", "x", "y", "z"])
    episodes = play_episodes(engine, _policy(engine, chat, turn=4), coin, coin_specs(12))
    assert {episode.stop for episode in episodes} == {"terminated", "length"}
    for episode in episodes:
        *earlier, last = episode.turns
        assert all(turn.reply.finish == "stop" for turn in earlier)
        if episode.stop == "length":
            assert (last.action, last.reward, last.reply.finish) == (None, 0, "length")
            assert last.reply.sample is not None
            assert len(last.reply.sample.ids) == 4
            assert chat.end_id not in last.reply.sample.ids


def test_the_episode_budget_covers_all_replies(chat: Chat, coin: OpenEnvironment) -> None:
    length = len(chat.reply_ids("heads"))
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    (episode,) = play_episodes(
        engine, _policy(engine, chat, turn=2 * length, episode=2 * length + 1), coin, coin_specs(1)
    )
    assert engine.budgets == [2 * length, length + 1, 1]
    assert episode.stop == "length"
    assert len(_completion(trajectory(episode))) == 2 * length + 1
    engine = RecordingEngine(engine.engine)
    (episode,) = play_episodes(engine, _policy(engine, chat, episode=2 * length), coin, coin_specs(1))
    assert len(engine.calls) == 2
    last = episode.turns[-1].reply
    assert (episode.stop, last.text, last.finish) == ("length", "", "length")
    assert last.sample is not None
    assert last.sample.ids == last.sample.logprobs == ()


@pytest.mark.parametrize("slack", [-1, 0, 1])
def test_contexts_never_exceed_their_budget(slack: int, chat: Chat, coin: OpenEnvironment) -> None:
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    play_episodes(engine, _policy(engine, chat), coin, coin_specs(1))
    limit = len(engine.calls[1][0]) + slack
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    (episode,) = play_episodes(engine, _policy(engine, chat, context=limit), coin, coin_specs(1))
    assert episode.stop == "length"
    assert len(engine.calls) == 1 + (slack > 0)
    # Observations are truncated to what fits.
    (segment,) = trajectory(episode).segments
    assert len(segment.ids) == limit
    assert _completion(trajectory(episode)) == [i for _, reply in engine.calls for i in reply.ids]


def test_contexts_never_exceed_the_engines_limit(chat: Chat, coin: OpenEnvironment) -> None:
    engine = ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id, max_context=60)
    episodes = play_episodes(engine, _policy(engine, chat), coin, coin_specs(2))
    assert {episode.stop for episode in episodes} == {"length"}
    assert {len(trajectory(episode).segments[0].ids) for episode in episodes} == {60}


@pytest.mark.parametrize("slack", [-1, 0])
def test_summaries_are_due_by_the_tokens_of_the_chat(slack: int, chat: Chat, coin: OpenEnvironment) -> None:
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    play_episodes(engine, _policy(engine, chat), coin, coin_specs(1))
    third = len(engine.calls[2][0])
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    with open_environment(agent=f"bare+compact:{third + slack}") as world:
        (episode,) = play_episodes(engine, _policy(engine, chat), world, coin_specs(1))
    assert [turn.kind for turn in episode.turns] == ["act", "act", *(["summary"] if slack else []), "act"]
    encoded = trajectory(episode)
    assert len(encoded.segments) == (2 if slack else 1)
    assert _completion(encoded) == [i for _, reply in engine.calls for i in reply.ids]
    *_, (context, _) = contexts(episode)
    *_, (conversation, _) = replay(episode)
    assert not slack or list(context) == chat.open(conversation)


def test_a_retried_episode_begins_with_a_new_context(chat: Chat) -> None:
    engine = RecordingEngine(ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id))
    policy = _policy(engine, chat)
    with open_environment(fault_on_step=(1,)) as world:
        failed, successful = play_episodes(
            engine, policy, world, [EpisodeSpec("coin/train/1"), EpisodeSpec("coin/train/0")]
        )
    assert (failed.stop, successful.stop) == ("failed", "terminated")
    with pytest.raises(ValueError, match="a failed episode never trains"):
        trajectory(failed)
    assert len(trajectory(successful).segments) == 1
    openings = [context for context, _ in engine.calls if context == engine.calls[0][0]]
    assert len(openings) == 3  # two attempts at the failed episode, one at the other
    assert policy._contexts == {}


def test_samples_have_the_version_of_their_weights(chat: Chat, coin: OpenEnvironment) -> None:
    engine = ScriptedEngine(constant_script(chat, "heads"), end_id=chat.end_id)
    asyncio.run(engine.load(Weights(7, tensors=lambda: iter(()))))
    (episode,) = play_episodes(engine, _policy(engine, chat), coin, coin_specs(1))
    assert {turn.reply.sample.version for turn in episode.turns if turn.reply.sample} == {7}


@pytest.fixture(scope="module")
def textcrafts() -> Iterator[list[OpenEnvironment]]:
    """TextCraft environments with small tasks, in one slot and in four."""
    with ExitStack() as stack:
        small = {"instructions": "Go.", "depth": (1, 1), "distractors": 1}
        yield [stack.enter_context(open_environment("agentgym/TextCraft-v0", slots, **small)) for slots in (1, 4)]


@pytest.fixture(scope="module")
def model(new_model: Callable[..., Any], chat: Chat, textcrafts: list[OpenEnvironment]) -> Any:
    """A tiny model that has imitated the expert enough to end some of its replies."""
    world = textcrafts[0].wrapped
    specs = [EpisodeSpec(task.id, seed=0) for task in text_env(world).tasks.train[4:36]]
    student = make_learner(new_model(), micro_tokens=10_000)
    encoded = encode_demonstrations(chat, list(play_many(world, Oracle(), specs)), Trimming(ContextLimit(10_000)))
    list(warm_start(student, encoded, epochs=4, batch=8, seed=0, ranks=Ranks()))
    return student.policy.eval()


def _craft(model: Any, chat: Chat, world: OpenEnvironment) -> tuple[RecordingEngine, list[Episode]]:
    engine = RecordingEngine(transformers_engine(model, end_id=chat.end_id))
    specs = [EpisodeSpec(task.id, sample, seed=4) for task in world.tasks.train[:4] for sample in range(2)]
    return engine, play_episodes(engine, _policy(engine, chat, turn=16, context=500), world, specs, horizon=3)


def test_the_learner_reproduces_the_rollout_logprobs(model: Any, chat: Chat, textcrafts: list[OpenEnvironment]) -> None:
    engine, episodes = _craft(model, chat, textcrafts[1])
    assert max(len(episode.turns) for episode in episodes) > 1
    batch = make_batch([trajectory(episode) for episode in episodes])
    sampled = {(context, r.ids): np.float32(r.logprobs) for context, r in engine.calls}
    turns = [turn for episode in episodes for turn in contexts(episode) if turn[1]]
    np.testing.assert_array_equal(
        batch.tokens.rollout_logprobs_N.numpy(), np.concatenate([sampled[turn] for turn in turns])
    )
    student = make_learner(model, temperature=0.8, micro_tokens=300)
    token_batch = student.compute_logprobs(batch, Algorithm(correction=Correction(level="token")))
    torch.testing.assert_close(token_batch.old_or_rollout_logprobs_N, token_batch.rollout_logprobs_N, atol=1e-4, rtol=0)


def test_replies_do_not_depend_on_concurrent_episodes(
    model: Any, chat: Chat, textcrafts: list[OpenEnvironment]
) -> None:
    alone, together = (
        [[turn.reply.text for turn in episode.turns] for episode in _craft(model, chat, world)[1]]
        for world in textcrafts
    )
    assert alone == together
