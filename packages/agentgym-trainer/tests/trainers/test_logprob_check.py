"""Engine and learner asked for the log-probabilities of the same tokens."""

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
from toy_learner import episode, learner


class Plain:
    """An engine without a cache: whole forward passes of a model, whose numbers may be put out."""

    def __init__(self, model: Any, end_id: int, *, off: float = 0.0) -> None:
        self.model, self.end_id, self.off = model, end_id, off
        self.version, self.usage, self.max_context = 3, EngineUsage(), 512
        self.asked: list[tuple[tuple[int, ...], SamplingParams]] = []

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        self.asked.append((tuple(ids), sampling))
        context, logprobs = list(ids), list[float]()
        for _ in range(sampling.max_tokens):
            with torch.no_grad():
                logits = self.model(torch.tensor([context])).logits[0, -1] / sampling.temperature
            context.append(int(logits.argmax()))
            logprobs.append(float(torch.log_softmax(logits, -1)[context[-1]]) + self.off)
        return Completion(tuple(context[len(ids) :]), tuple(logprobs), "length", self.version)

    async def load(self, weights: Weights) -> None: ...

    async def sleep(self) -> None: ...

    async def close(self) -> None: ...


def _play(*turns: tuple[int, int], fresh: Sequence[int] = (0,), start: int = 10, **more: Any) -> Episode:
    """An episode of so many seen and said tokens each turn, the ids counting up from `start`."""
    samples: list[Sample] = []
    for number, (seen, said) in enumerate(turns):
        ids = tuple(range(start, start + seen + said))
        samples.append(Sample(ids[:seen], ids[seen:], (-1.0,) * said, 2, fresh=number in fresh))
        start += seen + said
    return episode(samples, **more)


@pytest.fixture
def student(new_model: Callable[..., Any]) -> Learner:
    return learner(new_model(), temperature=0.7, micro_tokens=512)


Check = Callable[..., float]


@pytest.fixture
def check(student: Learner, chat: Chat) -> Generator[Check]:
    """Checks an engine, by default one that is right, on two contexts."""
    with ExitStack() as stack:

        def run(engine: Engine | None = None, *, tolerance: float = 1e-5) -> float:
            rollouts = stack.enter_context(RolloutRunner(engine or Plain(student.policy, chat.end_id)))
            contexts = [(5, 6, 7, 8), (9, 10)]
            return check_logprobs(
                rollouts, student, contexts, ranks=Ranks(), temperature=0.7, tolerance=tolerance, seed=1
            )

        yield run


def test_an_engine_with_the_learners_weights_agrees(check: Check) -> None:
    assert 0 < check() < 1e-5


def test_an_engine_with_other_weights_does_not(check: Check, new_model: Callable[..., Any], chat: Chat) -> None:
    with pytest.raises(
        LogprobMismatch, match=r"After update 3, .* nats per token, and engine.tolerance allows 0.05"
    ) as error:
        check(Plain(new_model(1), chat.end_id), tolerance=0.05)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("off", [-0.2, 0.2])
def test_the_gap_is_a_mean_over_tokens_whichever_way_it_goes(
    check: Check, student: Learner, chat: Chat, off: float
) -> None:
    engine = Plain(student.policy, chat.end_id, off=off)
    assert check(engine, tolerance=0.25) == pytest.approx(0.2, abs=1e-4)
    with pytest.raises(LogprobMismatch, match=r"0\.2 nats"):
        check(engine, tolerance=0.15)


def test_what_is_not_a_number_never_agrees(check: Check, student: Learner, chat: Chat) -> None:
    with pytest.raises(LogprobMismatch):
        check(Plain(student.policy, chat.end_id, off=float("nan")), tolerance=1e9)


def test_no_probe_is_longer_than_the_engine_can_take(check: Check, student: Learner, chat: Chat) -> None:
    engine = Plain(student.policy, chat.end_id)
    engine.max_context = 7
    check(engine)
    assert [(len(ids), sampling.max_tokens) for ids, sampling in engine.asked] == [(4, 3), (2, 5)]
    assert {(sampling.temperature, sampling.seed) for _, sampling in engine.asked} == {(0.7, 1)}


def test_contexts_are_those_in_which_the_agent_spoke_last() -> None:
    whole = _play((5, 4), (3, 2))
    second_segment = _play((5, 4), (7, 2), fresh=(0, 1), start=100)
    # The budget was used up: the last turn says nothing, and so does a whole episode.
    cut = _play((5, 4), (3, 0), start=200, stop="length")
    silent = _play((5, 0), stop="length")
    failed = _play((5, 4), stop="failed")
    contexts = last_contexts([whole, second_segment, cut, silent, failed])
    assert contexts == [tuple(range(10, 22)), tuple(range(109, 116)), tuple(range(200, 205))]
    assert last_contexts([silent, failed]) == last_contexts([]) == []


def test_a_few_contexts_come_from_all_over() -> None:
    firsts = [ids[0] for ids in last_contexts([_play((2, 1), start=start) for start in range(10, 110)])]
    assert len(firsts) == PROBES
    assert max(firsts) - min(firsts) > 80
