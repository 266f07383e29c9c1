from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode, Job, Message, make, play_many, text_env
from agentgym_envs.wrappers import Bare
from agentgym_eval.policies import Oracle
from agentgym_trainer.algorithms import Algorithm, Correction
from agentgym_trainer.batch import make_batch
from agentgym_trainer.chat import Chat
from agentgym_trainer.engines import Completion, Request, Sampling
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.engines.transformers import TransformersEngine
from agentgym_trainer.rollout import EnginePolicy
from agentgym_trainer.trajectory import trajectory
from agentgym_trainer.warm_start import imitate
from coin_world import Coin
from miniature import learner

SAMPLING = Sampling(temperature=0.8, max_tokens=20, max_context=800)


class Recording:
    """An engine that keeps every id it was given and every id it sampled, by trajectory."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.version = 3
        self.tokens: dict[int, list[tuple[int, bool, float]]] = {}
        self.released: list[int] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        completions = self.engine.generate(requests, sampling)
        for request, completion in zip(requests, completions, strict=True):
            tokens = self.tokens.setdefault(request.key, [])
            assert request.fresh == (not tokens)
            tokens += [(i, False, 0.0) for i in request.ids]
            tokens += [(i, True, p) for i, p in zip(completion.ids, completion.logprobs, strict=True)]
        return completions

    def release(self, keys: Sequence[int]) -> None:
        self.released += keys
        self.engine.release(keys)


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[Any]]:
    """Three small worlds of text crafting."""
    envs = [Bare(make("agentgym/TextCraft-v0", depth=(1, 1), distractors=1), instructions="Go.") for _ in range(3)]
    yield envs
    for env in envs:
        env.close()


@pytest.fixture(scope="module")
def model(new_model: Callable[..., Any], chat: Chat, worlds: list[Any]) -> Any:
    """A tiny model that has watched the expert long enough to end its replies now and then."""
    jobs = [Job(task.id, seed=0) for task in text_env(worlds[0]).tasks.train[4:36]]
    student = learner(new_model(), micro_tokens=10_000)
    list(imitate(student, chat, list(play_many(worlds, Oracle(), jobs)), epochs=4, batch=8, seed=0))
    return student.policy.eval()


@pytest.fixture(scope="module")
def played(model: Any, chat: Chat, worlds: list[Any]) -> tuple[Recording, list[Episode]]:
    """Eight episodes of text crafting on three worlds, by a model that knows nothing."""
    engine = Recording(TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id))
    jobs = [Job(task.id, sample, seed=4) for task in text_env(worlds[0]).tasks.train[:4] for sample in range(2)]
    policy = EnginePolicy(engine, chat, SAMPLING, name="tiny")
    episodes = list(play_many(worlds, policy, jobs, horizon=4))
    policy.release()
    return engine, episodes


def test_the_sampled_ids_are_the_trained_ids(played: tuple[Recording, list[Episode]], model: Any) -> None:
    engine, episodes = played
    assert max(len(episode.turns) for episode in episodes) > 1
    batch = make_batch([trajectory(episode) for episode in episodes])
    logp_S = torch.zeros(len(batch.ids_S))
    logp_S[batch.at_N] = batch.experience.sampled_N
    said_S = torch.zeros(len(batch.ids_S), dtype=torch.bool)
    said_S[batch.at_N] = True
    tokens = list(zip(batch.ids_S.tolist(), said_S.tolist(), logp_S.tolist(), strict=True))
    found = [tokens[start:end] for start, end in itertools.pairwise(batch.starts)]
    sampled = [[(i, said, float(np.float32(p))) for i, said, p in tokens] for tokens in engine.tokens.values()]
    assert sorted(found) == sorted(sampled)
    student = learner(model, temperature=0.8, micro_tokens=300)
    experience = student.assess(batch, Algorithm(correction=Correction(level="token")))
    torch.testing.assert_close(experience.before_N, experience.sampled_N, atol=1e-4, rtol=0)


def test_every_trajectory_is_released_and_samples_carry_the_version(
    played: tuple[Recording, list[Episode]],
) -> None:
    engine, episodes = played
    assert sorted(engine.released) == sorted(engine.tokens)
    assert engine.engine._cache.keys == []
    assert {turn.reply.sample.version for e in episodes for turn in e.turns if turn.reply.sample} == {3}


def test_a_reply_cut_by_the_budget_ends_the_episode_and_is_not_played(
    played: tuple[Recording, list[Episode]], chat: Chat
) -> None:
    cut = [episode for episode in played[1] if episode.stop == "length"]
    assert cut
    for episode in cut:
        last = episode.turns[-1]
        assert last.action is None
        assert last.reward == 0
        assert last.reply.sample is not None
        assert chat.end_id not in last.reply.sample.ids
        assert all(turn.reply.finish == "stop" for turn in episode.turns[:-1])


def test_the_same_job_gives_the_same_words_whoever_plays_beside_it(model: Any, chat: Chat) -> None:
    def said(slots: int) -> dict[tuple[str, int], list[str]]:
        engine = TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id)
        envs = [Bare(Coin()) for _ in range(slots)]
        policy = EnginePolicy(engine, chat, SAMPLING, name="tiny")
        jobs = [Job(f"coin/train/{i}", sample, seed=1) for i in range(3) for sample in range(2)]
        episodes = play_many(envs, policy, jobs)
        return {(e.task_id, e.sample): [turn.reply.text for turn in e.turns] for e in episodes}

    assert said(1) == said(4)


def _script(chat: Chat, text: str) -> ScriptedEngine:
    return ScriptedEngine(lambda context: chat.reply_ids(text), end_id=chat.end_id)


def test_the_engine_is_fed_the_whole_conversation_and_control_tokens_only_by_the_template(chat: Chat) -> None:
    engine = _script(chat, "tails")
    contexts: list[tuple[int, ...]] = []
    policy = EnginePolicy(engine, chat, Sampling(), name="scripted")
    reply = policy.reply

    def watching(seats: Any) -> Any:
        replies = reply(seats)
        contexts.extend(engine.contexts.values())
        return replies

    policy.reply = watching  # type: ignore[method-assign]
    episode = next(play_many([Bare(Coin(), instructions="Go.")], policy, [Job("coin/train/7", seed=0)]))
    assert episode.success
    conversation = (Message("system", "Go."),)
    for turn, context in zip(episode.turns, contexts, strict=True):
        conversation += (Message("user", turn.observation),)
        assert list(context) == chat.open(conversation) + chat.reply_ids("tails")
        conversation += (Message("assistant", "tails"),)
    # System, three observations and three replies begin and end a turn each; what the world spells adds none.
    assert contexts[-1].count(chat.end_id) == 7


def test_an_attempt_that_begins_again_begins_a_new_context(chat: Chat) -> None:
    engine = _script(chat, "heads")
    policy = EnginePolicy(engine, chat, Sampling(), name="scripted")
    episodes = list(play_many([Bare(Coin(broken=(1,)))], policy, [Job("coin/train/1"), Job("coin/train/0")]))
    assert [episode.stop for episode in episodes] == ["failed", "terminated"]
    with pytest.raises(ValueError, match="a failed episode never trains"):
        trajectory(episodes[0])
    assert len(trajectory(episodes[1]).segments) == 1
    assert len(engine.contexts) == 1
    policy.release()
    assert engine.contexts == {}
