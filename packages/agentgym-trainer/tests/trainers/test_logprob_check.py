"""Tests of the comparison of engine and learner log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, Sample
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import Completion, Engine, EngineUsage, LogprobMismatch, SamplingParams
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.weights import Weights
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.logprob_check import PROBES, check_logprobs, last_contexts
from toy_learner import episode_with_samples, make_learner


class UncachedEngine:
    """An engine without a cache, whose log-probabilities may be shifted by an offset."""

    def __init__(self, model: Any, end_id: int, *, offset: float = 0.0) -> None:
        self.model, self.end_id, self.offset = model, end_id, offset
        self.version, self.usage, self.max_context = 3, EngineUsage(), 512
        self.requests: list[tuple[tuple[int, ...], SamplingParams]] = []

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        self.requests.append((tuple(ids), sampling))
        context, logprobs = list(ids), list[float]()
        for _ in range(sampling.max_tokens):
            with torch.no_grad():
                logits = self.model(torch.tensor([context])).logits[0, -1] / sampling.temperature
            context.append(int(logits.argmax()))
            logprobs.append(float(torch.log_softmax(logits, -1)[context[-1]]) + self.offset)
        return Completion(tuple(context[len(ids) :]), tuple(logprobs), "length", self.version)

    async def load(self, weights: Weights) -> None: ...

    async def sleep(self) -> bool:
        return False

    async def close(self) -> None: ...


def _episode(*turns: tuple[int, int], fresh: Sequence[int] = (0,), start: int = 10, **options: Any) -> Episode:
    """Return an episode with the given (prompt, completion) token counts per turn, and ids counting up from `start`."""
    samples: list[Sample] = []
    for number, (prompt, completion) in enumerate(turns):
        ids = tuple(range(start, start + prompt + completion))
        samples.append(Sample(ids[:prompt], ids[prompt:], (-1.0,) * completion, 2, fresh=number in fresh))
        start += prompt + completion
    return episode_with_samples(samples, **options)


@pytest.fixture
def student(new_model: Callable[..., Any]) -> Learner:
    return make_learner(new_model(), temperature=0.7, micro_tokens=512)


Check = Callable[..., float]


@pytest.fixture
def check(student: Learner, chat: Chat) -> Generator[Check]:
    """A function that checks an engine on two contexts, by default an engine with the learner's weights."""
    with ExitStack() as stack:

        def run(engine: Engine | None = None, *, tolerance: float = 1e-5) -> float:
            rollouts = stack.enter_context(RolloutRunner(engine or UncachedEngine(student.policy, chat.end_id)))
            contexts = [(5, 6, 7, 8), (9, 10)]
            return check_logprobs(
                rollouts, student, contexts, ranks=Ranks(), temperature=0.7, tolerance=tolerance, seed=1
            )

        yield run


def test_an_engine_with_the_learners_weights_passes(check: Check) -> None:
    assert 0 < check() < 1e-5


def test_an_engine_with_other_weights_fails(check: Check, new_model: Callable[..., Any], chat: Chat) -> None:
    with pytest.raises(
        LogprobMismatch, match=r"After update 3, .* nats per token, and engine.tolerance allows 0.05"
    ) as error:
        check(UncachedEngine(new_model(1), chat.end_id), tolerance=0.05)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("offset", [-0.2, 0.2])
def test_the_gap_is_the_mean_absolute_difference_per_token(
    check: Check, student: Learner, chat: Chat, offset: float
) -> None:
    engine = UncachedEngine(student.policy, chat.end_id, offset=offset)
    assert check(engine, tolerance=0.25) == pytest.approx(0.2, abs=1e-4)
    with pytest.raises(LogprobMismatch, match=r"0\.2 nats"):
        check(engine, tolerance=0.15)


def test_nan_logprobs_always_fail(check: Check, student: Learner, chat: Chat) -> None:
    with pytest.raises(LogprobMismatch):
        check(UncachedEngine(student.policy, chat.end_id, offset=float("nan")), tolerance=1e9)


def test_probes_fit_into_the_engines_context(check: Check, student: Learner, chat: Chat) -> None:
    engine = UncachedEngine(student.policy, chat.end_id)
    engine.max_context = 7
    check(engine)
    assert [(len(ids), sampling.max_tokens) for ids, sampling in engine.requests] == [(4, 3), (2, 5)]
    assert {(sampling.temperature, sampling.seed) for _, sampling in engine.requests} == {(0.7, 1)}


def test_contexts_end_at_the_last_reply_of_each_episode() -> None:
    complete = _episode((5, 4), (3, 2))
    second_segment = _episode((5, 4), (7, 2), fresh=(0, 1), start=100)
    # With the token budget used up, the last turn or the whole episode has no completion tokens.
    cut = _episode((5, 4), (3, 0), start=200, stop="length")
    empty = _episode((5, 0), stop="length")
    failed = _episode((5, 4), stop="failed")
    contexts = last_contexts([complete, second_segment, cut, empty, failed])
    assert contexts == [tuple(range(10, 22)), tuple(range(109, 116)), tuple(range(200, 205))]
    assert last_contexts([empty, failed]) == last_contexts([]) == []


def test_the_contexts_are_spread_over_all_episodes() -> None:
    first_ids = [ids[0] for ids in last_contexts([_episode((2, 1), start=start) for start in range(10, 110)])]
    assert len(first_ids) == PROBES
    assert max(first_ids) - min(first_ids) > 80
