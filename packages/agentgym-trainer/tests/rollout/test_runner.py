from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, EpisodeSpec, Message, play_many, text_env
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
from agentgym_trainer.tokens.trajectory import Trajectory, trajectory
from agentgym_trainer.trainers.warm_start import warm_start
from chat_templates import FAMILIES, chat_of
from coin_rollouts import Recording, always, chatter, coins, contexts, open_world, played
from toy_learner import learner

TEXTS = ["heads", "tails", "it says <|im_end|> and <|eot_id|>", "</s>[INST]<end_of_turn>"]
THOUGHTS = [*TEXTS, "<think>\nhm\n</think>\n\nheads", "<think>\nwell, well\n</think>\n\ntails"]
# Those that never write what was said in another way than it was said.
FAITHFUL = sorted(set(FAMILIES) - {"qwen3", "mistral-v3"})


@pytest.fixture(scope="module")
def coin() -> Iterator[OpenEnvironment]:
    with open_world() as world:
        yield world


@pytest.fixture(scope="module")
def told() -> Iterator[OpenEnvironment]:
    """Coins with instructions."""
    with open_world(instructions=None) as world:
        yield world


def _player(engine: Any, chat: Chat, **budget: int) -> EnginePolicy:
    return EnginePolicy(engine, chat, TokenBudget(**budget), name="scripted", temperature=0.8)


@pytest.mark.parametrize("instructed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_sampled_is_what_is_trained(
    family: str, instructed: bool, coin: OpenEnvironment, told: OpenEnvironment
) -> None:
    chat = chat_of(family)
    engine = Recording(chatter(chat, THOUGHTS))
    episodes = played(engine, _player(engine, chat), told if instructed else coin, coins(6, samples=2))
    assert sorted(turn for e in episodes for turn in contexts(e)) == sorted((c, r.ids) for c, r in engine.calls)
    for episode in episodes:
        turns, line = list(contexts(episode)), trajectory(episode)
        assert _said(line) == [i for _, ids in turns for i in ids]
        # Every segment is the last context of its turns, and the reply to it.
        last = [i for i, turn in enumerate(episode.turns[1:]) if turn.reply.sample.fresh] + [len(turns) - 1]
        assert [segment.ids for segment in line.segments] == [turns[i][0] + turns[i][1] for i in last]


def _said(line: Trajectory) -> list[int]:
    return [i for s in line.segments for i, said in zip(s.ids, s.loss_mask, strict=True) if said]


def _conversation(episode: Episode, turn: int) -> tuple[Message, ...]:
    conversation = (Message("system", episode.instructions),) if episode.instructions else ()
    for before in episode.turns[:turn]:
        conversation += (Message("user", before.observation), Message("assistant", before.reply.text))
    return (*conversation, Message("user", episode.turns[turn].observation))


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_the_template_rewrites_begins_a_fresh_segment_and_that_is_the_templates_own(
    family: str, told: OpenEnvironment
) -> None:
    chat = chat_of(family)
    engine = chatter(chat, TEXTS if family in FAITHFUL else THOUGHTS)
    episodes = played(engine, _player(engine, chat), told, coins(4, samples=2))
    rewritten = later = 0
    for episode in episodes:
        for number, (turn, (context, _)) in enumerate(zip(episode.turns, contexts(episode), strict=True)):
            later += number > 0
            if turn.reply.sample.fresh:
                rewritten += number > 0
                assert list(context) == chat.open(_conversation(episode, number))
    thoughts = sum("</think>" in turn.reply.text for e in episodes for turn in e.turns[:-1])
    assert rewritten == {"qwen3": thoughts, "mistral-v3": later}.get(family, 0)
    assert thoughts > 0 or family in FAITHFUL


@pytest.mark.parametrize("family", FAITHFUL)
def test_text_that_spells_control_tokens_stays_text(family: str, told: OpenEnvironment) -> None:
    chat = chat_of(family)
    special = set(chat.tokenizer.all_special_ids)
    engine = chatter(chat, [*TEXTS, "".join(chat.tokenizer.all_special_tokens)])
    (episode,) = played(engine, _player(engine, chat), told, coins(1))
    harmless = tuple(Message(m.role, "x") for m in _conversation(episode, 2))
    (context, said) = list(contexts(episode))[-1]
    assert [i for i in context if i in special] == [i for i in chat.open(harmless) if i in special]
    assert [i for i in said if i in special] == [chat.end_id]


def test_at_the_budget_of_a_turn_the_episode_is_cut_and_the_half_reply_is_not_played(
    chat: Chat, coin: OpenEnvironment
) -> None:
    engine = chatter(chat, ["heads", "x", "y", "z"])
    episodes = played(engine, _player(engine, chat, turn=4), coin, coins(12))
    assert {episode.stop for episode in episodes} == {"terminated", "length"}
    for episode in episodes:
        *before, last = episode.turns
        assert all(turn.reply.finish == "stop" for turn in before)
        if episode.stop == "length":
            assert (last.action, last.reward, last.reply.finish) == (None, 0, "length")
            assert last.reply.sample is not None
            assert len(last.reply.sample.ids) == 4
            assert chat.end_id not in last.reply.sample.ids


def test_the_budget_of_an_episode_is_that_of_all_its_replies(chat: Chat, coin: OpenEnvironment) -> None:
    whole = len(chat.reply_ids("heads"))
    engine = Recording(ScriptedEngine(always(chat, "heads"), end_id=chat.end_id))
    (episode,) = played(engine, _player(engine, chat, turn=2 * whole, episode=2 * whole + 1), coin, coins(1))
    assert engine.budgets == [2 * whole, whole + 1, 1]
    assert episode.stop == "length"
    assert len(_said(trajectory(episode))) == 2 * whole + 1
    engine = Recording(engine.engine)
    (episode,) = played(engine, _player(engine, chat, episode=2 * whole), coin, coins(1))
    assert len(engine.calls) == 2
    last = episode.turns[-1].reply
    assert (episode.stop, last.text, last.finish) == ("length", "", "length")
    assert last.sample is not None
    assert last.sample.ids == last.sample.logprobs == ()


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_a_context_never_grows_beyond_its_budget(room: int, chat: Chat, coin: OpenEnvironment) -> None:
    engine = Recording(ScriptedEngine(always(chat, "heads"), end_id=chat.end_id))
    played(engine, _player(engine, chat), coin, coins(1))
    limit = len(engine.calls[1][0]) + room
    engine = Recording(ScriptedEngine(always(chat, "heads"), end_id=chat.end_id))
    (episode,) = played(engine, _player(engine, chat, context=limit), coin, coins(1))
    assert episode.stop == "length"
    assert len(engine.calls) == 1 + (room > 0)
    # Of what the world said no more is kept than fits.
    (segment,) = trajectory(episode).segments
    assert len(segment.ids) == limit
    assert _said(trajectory(episode)) == [i for _, reply in engine.calls for i in reply.ids]


def test_no_context_is_longer_than_the_engine_takes(chat: Chat, coin: OpenEnvironment) -> None:
    engine = ScriptedEngine(always(chat, "heads"), end_id=chat.end_id, max_context=60)
    episodes = played(engine, _player(engine, chat), coin, coins(2))
    assert {episode.stop for episode in episodes} == {"length"}
    assert {len(trajectory(episode).segments[0].ids) for episode in episodes} == {60}


def test_an_attempt_that_begins_again_begins_a_new_context_and_is_forgotten(chat: Chat) -> None:
    engine = Recording(ScriptedEngine(always(chat, "heads"), end_id=chat.end_id))
    player = _player(engine, chat)
    with open_world(broken=(1,)) as world:
        failed, fine = played(engine, player, world, [EpisodeSpec("coin/train/1"), EpisodeSpec("coin/train/0")])
    assert (failed.stop, fine.stop) == ("failed", "terminated")
    with pytest.raises(ValueError, match="a failed episode never trains"):
        trajectory(failed)
    assert len(trajectory(fine).segments) == 1
    opening = [context for context, _ in engine.calls if context == engine.calls[0][0]]
    assert len(opening) == 3  # two attempts at the one, one at the other
    assert player._contexts == {}


def test_samples_carry_the_version_of_the_weights_they_were_drawn_from(chat: Chat, coin: OpenEnvironment) -> None:
    engine = ScriptedEngine(always(chat, "heads"), end_id=chat.end_id)
    asyncio.run(engine.load(Weights(7, tensors=lambda: iter(()))))
    (episode,) = played(engine, _player(engine, chat), coin, coins(1))
    assert {turn.reply.sample.version for turn in episode.turns if turn.reply.sample} == {7}


@pytest.fixture(scope="module")
def crafts() -> Iterator[list[OpenEnvironment]]:
    """Small worlds of text crafting, in one slot and in four."""
    with ExitStack() as stack:
        small = {"instructions": "Go.", "depth": (1, 1), "distractors": 1}
        yield [stack.enter_context(open_world("agentgym/TextCraft-v0", slots, **small)) for slots in (1, 4)]


@pytest.fixture(scope="module")
def model(new_model: Callable[..., Any], chat: Chat, crafts: list[OpenEnvironment]) -> Any:
    """A tiny model that has watched the expert long enough to end its replies now and then."""
    world = crafts[0].wrapped
    jobs = [EpisodeSpec(task.id, seed=0) for task in text_env(world).tasks.train[4:36]]
    student = learner(new_model(), micro_tokens=10_000)
    shown = list(play_many(world, Oracle(), jobs))
    list(warm_start(student, chat, shown, epochs=4, batch=8, seed=0, ranks=Ranks()))
    return student.policy.eval()


def _craft(model: Any, chat: Chat, world: OpenEnvironment) -> tuple[Recording, list[Episode]]:
    engine = Recording(transformers_engine(model, end_id=chat.end_id))
    jobs = [EpisodeSpec(task.id, sample, seed=4) for task in world.tasks.train[:4] for sample in range(2)]
    return engine, played(engine, _player(engine, chat, turn=16, context=500), world, jobs, horizon=3)


def test_the_learner_finds_the_very_log_probabilities_that_were_sampled_with(
    model: Any, chat: Chat, crafts: list[OpenEnvironment]
) -> None:
    engine, episodes = _craft(model, chat, crafts[1])
    assert max(len(episode.turns) for episode in episodes) > 1
    batch = make_batch([trajectory(episode) for episode in episodes])
    sampled = {(context, r.ids): np.float32(r.logprobs) for context, r in engine.calls}
    turns = [turn for episode in episodes for turn in contexts(episode) if turn[1]]
    np.testing.assert_array_equal(
        batch.tokens.rollout_logprobs_N.numpy(), np.concatenate([sampled[turn] for turn in turns])
    )
    student = learner(model, temperature=0.8, micro_tokens=300)
    experience = student.compute_logprobs(batch, Algorithm(correction=Correction(level="token")))
    torch.testing.assert_close(experience.old_or_rollout_logprobs_N, experience.rollout_logprobs_N, atol=1e-4, rtol=0)


def test_the_same_job_gives_the_same_words_whoever_plays_beside_it(
    model: Any, chat: Chat, crafts: list[OpenEnvironment]
) -> None:
    alone, together = (
        [[turn.reply.text for turn in episode.turns] for episode in _craft(model, chat, world)[1]] for world in crafts
    )
    assert alone == together
