"""Sampling ahead in the training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from agentgym_envs import Episode, Reply
from agentgym_envs.episodes.play import TurnContext
from agentgym_trainer.algorithms import Correction
from agentgym_trainer.config import AsyncRollout, EngineSettings, Evaluation, Generation, WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon, Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.curriculum.task_sampler import MidSuccess
from agentgym_trainer.engines.base import Completion, EngineGone, LogprobMismatch, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.weights import Weights
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.batch import Batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_configs import SAMPLES, TASKS, coins, others
from coin_loops import collect, update
from coin_world import OTHER
from patience import eventually_async
from rich.console import Console
from toy_learner import learner

RESTLESS = coins().algorithm
Build = Callable[..., RLLoop]


@pytest.fixture
def build(tmp_path: Path, new_model: Callable[..., Any], chat: Chat) -> Generator[Build]:
    """Makes a loop over a tiny model; what it opens is closed after the test."""
    with ExitStack() as stack:

        def make(name: str = "run", **settings: Any) -> RLLoop:
            generation = Generation(max_tokens=8, max_context=200)
            config = coins(**{"horizon": FixedHorizon(3), "generation": generation, "steps": 3} | settings)
            student = learner(new_model(init=1.0), micro_tokens=400, reference=config.algorithm.needs_reference)
            engine = transformers_engine(
                student.policy, end_id=chat.end_id, own_copy=config.async_rollout.max_staleness > 0
            )
            folder = RunFolder.open(tmp_path / name)[0] if (tmp_path / name).exists() else None
            return RLLoop(
                config,
                folder or RunFolder.create(tmp_path / name, config, "test"),
                stack.enter_context(open_environments(config)),
                student,
                chat,
                RunConsole(Console(quiet=True)),
                stack.enter_context(RolloutRunner(engine)),
            )

        yield make


def _no_evaluation(loop: RLLoop, monkeypatch: pytest.MonkeyPatch) -> RLLoop:
    monkeypatch.setattr(loop, "evaluate", lambda step: {})
    return loop


def _lines(loop: RLLoop) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in loop.folder.read_metrics()
    ]


def _bytes(loop: RLLoop) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in loop.learner.policy.parameters()]


def test_no_version_ahead_is_the_synchronous_loop_to_the_bit(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False, backend="inline")
    mixture: dict[str, Any] = {
        "extra_worlds": (other,),
        "tasks_per_step": 5,
        "slots": 3,
        "sampler": MidSuccess(),
        "save_every": 100,
    }
    plain = _no_evaluation(build("plain", **mixture), monkeypatch)
    plain.run(lambda: False)
    ahead = _no_evaluation(build("ahead", **mixture), monkeypatch)
    ahead.collector.async_collector = ahead.collector.open_async_collector()
    ahead.run(lambda: False)
    assert len(_lines(plain)) == 3
    for line in _lines(plain):
        tokens = line["tokens"]["completion"]
        assert line["staleness"] == {"mean": 0.0, "max": 0, "stale": 0, "token_mean": 0.0, "tokens": {"0": tokens}}
        # Nothing was sampled ahead, so nothing is corrected, and there all that is drawn trains.
        assert "correction" not in line
        assert line["lengths"]["trained"] == line["lengths"]["drawn"]
    assert _lines(ahead) == _lines(plain)
    assert _bytes(ahead) == _bytes(plain) != _bytes(build("start"))


def test_a_run_that_samples_ahead_lags_no_further_than_it_may(build: Build) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=2)
    loop = build(async_rollout=AsyncRollout(1), steps=4, evaluation=evaluation, save_every=100)
    loop.run(lambda: False)
    lines = _lines(loop)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["staleness"]["max"] == 0
    assert max(line["staleness"]["max"] for line in lines) == 1
    assert all(line["staleness"]["stale"] == 0 and line["trained"] == TASKS * SAMPLES for line in lines)
    # The engine has what the learner has trained, right after every update.
    assert all(0 < line["logprob_check_gap"] < 1e-5 for line in lines)
    for step in (0, 2, 4):
        held_out = loop.folder.read_evaluation(step, "sampled") or []
        assert {turn.reply.sample.version for e in held_out for turn in e.turns if turn.reply.sample} == {step}


def test_all_that_was_sampled_ahead_is_counted_and_nothing_else(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=1)
    loop = build(async_rollout=AsyncRollout(1), steps=4, evaluation=evaluation, save_every=100)
    # Without a probe, which is asked at the same time as what is played ahead.
    monkeypatch.setattr(loop, "_check_logprobs", lambda step: 0.0)
    loop.run(lambda: False)
    said, generated = (sum(line["tokens"][name] for line in _lines(loop)) for name in ("completion", "generated"))
    assert said == generated > 0


def test_an_engine_that_is_started_again_while_the_learner_works_gets_the_weights_it_had(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = _no_evaluation(build(async_rollout=AsyncRollout(1), steps=2), monkeypatch)
    load, given = loop.rollouts.engine.load, list[tuple[Weights, dict[str, torch.Tensor]]]()

    async def keep(weights: Weights) -> None:
        given.append((weights, {name: tensor.clone() for name, tensor in weights.tensors()}))
        await load(weights)

    monkeypatch.setattr(loop.rollouts.engine, "load", keep)
    loop.run(lambda: False)
    assert [weights.version for weights, _ in given] == [0, 1]
    for weights, before in given:
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights.tensors())


def test_a_reply_goes_on_with_new_weights_and_each_token_has_the_log_probability_of_its_own(
    build: Build, monkeypatch: pytest.MonkeyPatch, new_model: Callable[..., Any]
) -> None:
    loop = _no_evaluation(
        build(async_rollout=AsyncRollout(1), steps=2, algorithm=replace(RESTLESS, entropy=5.0)), monkeypatch
    )
    engine, player = cast("Any", loop.rollouts.engine), cast("Any", loop.collector.async_collector)._policy
    load, step, reply = engine.load, engine._step, player.reply
    weights_of: dict[int, dict[str, torch.Tensor]] = {}
    begun: list[int] = []

    async def note(weights: Weights) -> None:
        weights_of[weights.version] = {name: tensor.clone() for name, tensor in weights.tensors()}
        await load(weights)

    async def wait_for_the_learner(seat: TurnContext) -> Reply:
        """Before the replies of what is played ahead, to be trained on in the second step."""
        if seat.key not in begun:
            begun.append(seat.key)
        if begun.index(seat.key) >= TASKS * SAMPLES:
            await eventually_async(lambda: taken)
        return await reply(seat)

    async def wait_for_the_update() -> None:
        """When all of these have some tokens."""
        if taken and engine.version == 0:
            await eventually_async(lambda: len(engine._waiting) + len(engine._under_way) == TASKS * SAMPLES)
            drafts = engine._core._drafts.values()
            if drafts and min(len(draft.logprobs) for draft in drafts) > 2:
                await eventually_async(lambda: engine._pausing)
        await step()

    monkeypatch.setattr(engine, "load", note)
    monkeypatch.setattr(engine, "_step", wait_for_the_update)
    monkeypatch.setattr(player, "reply", wait_for_the_learner)
    collect, taken = loop.collector.collect, list[list[Episode]]()

    def watch(progress: TrainingState) -> Any:
        own, groups = collect(progress)
        taken.append([episode for group in own for episode in group.episodes])
        return own, groups

    monkeypatch.setattr(loop.collector, "collect", watch)
    loop.run(lambda: False)
    first, second = _lines(loop)
    assert (first["staleness"]["tokens"].keys(), second["staleness"]["tokens"].keys()) == ({"0"}, {"0", "1"})
    assert 0 < second["staleness"]["token_mean"] < second["staleness"]["mean"] == 1
    models = {version: new_model() for version in weights_of}
    for version, model in models.items():
        model.load_state_dict(weights_of[version], strict=False)
    for episode in taken[1]:
        sample = episode.turns[0].reply.sample
        assert sample is not None
        assert (sample.versions[:3], sample.versions[-3:]) == ((0, 0, 0), (1, 1, 1))
        gaps = {v: _gaps(model, sample.prompt, sample.ids, sample.logprobs) for v, model in models.items()}
        for at, version in enumerate(sample.versions):
            assert gaps[version][at] < 1e-4 < gaps[1 - version][at]
    # What the earlier weights sampled is corrected for: that is no rounding error of engine or learner.
    assert first["rollout_logprob_gap"] < 1e-5 < 1e-4 < second["rollout_logprob_gap"]


@torch.no_grad()
def _gaps(model: Any, context: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]) -> list[float]:
    """The distance of each of the log-probabilities from that of the model."""
    logits = model(torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1]
    own = logits.float().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return (own - torch.tensor(logprobs)).abs().tolist()


@pytest.mark.parametrize(
    ("overlap", "own", "level"),
    [
        (AsyncRollout(0), Correction(), "off"),
        (AsyncRollout(0), Correction("sequence"), "sequence"),
        (AsyncRollout(1), Correction(), "token"),
        (AsyncRollout(1, correction="off"), Correction(), "off"),
        (AsyncRollout(1, correction="sequence"), Correction(bound=3.0), "sequence"),
        (AsyncRollout(1), Correction("sequence"), "sequence"),
    ],
)
def test_what_is_sampled_ahead_is_corrected_for_by_default(overlap: AsyncRollout, own: Correction, level: Any) -> None:
    algorithm = overlap.corrected(replace(RESTLESS, correction=own))
    assert algorithm == replace(RESTLESS, correction=replace(own, level=level))


def test_an_interrupted_run_leaves_nothing_in_play(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _no_evaluation(build(async_rollout=AsyncRollout(2)), monkeypatch)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.learner, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run(lambda: False)
    assert others(loop.rollouts) == 0


@pytest.mark.long
def test_a_run_that_samples_ahead_is_stopped_and_goes_on(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([False, False, True])
    loop = _no_evaluation(build(async_rollout=AsyncRollout(2), steps=4), monkeypatch)
    assert loop.run(lambda: next(asked)).step == 2
    assert others(loop.rollouts) == 0
    (under_way,) = loop.collector.in_flight()
    again = _no_evaluation(build(async_rollout=AsyncRollout(2), steps=4), monkeypatch)
    collect, taken = again.collector.collect, list[str]()

    def watch(progress: TrainingState) -> Any:
        own, groups = collect(progress)
        taken.extend(group.task for group in groups)
        return own, groups

    monkeypatch.setattr(again.collector, "collect", watch)
    assert again.run(lambda: False).step == 4
    assert taken == [deal["task"] for deal in under_way["groups"]]
    assert [line["step"] for line in _lines(again)] == [1, 2, 3, 4]
    assert _lines(again)[2]["staleness"]["max"] == 0


def test_weights_that_do_not_reach_the_engine_end_the_run_and_the_step_is_saved(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(tolerance=1e-4)
    loop = _no_evaluation(build(async_rollout=AsyncRollout(1), save_every=100, engine=settings), monkeypatch)
    load = loop.rollouts.engine.load

    async def lose(weights: Weights) -> None:
        await load(Weights(weights.version, lambda: iter(()), None) if weights.version else weights)

    monkeypatch.setattr(loop.rollouts.engine, "load", lose)
    with pytest.raises(LogprobMismatch, match="After update 1"):
        loop.run(lambda: False)
    again = _no_evaluation(build(async_rollout=AsyncRollout(1), engine=settings), monkeypatch)
    assert again.run(lambda: False).step == 3


@pytest.mark.long
def test_an_engine_that_dies_while_the_learner_works_ends_the_run_and_the_step_is_saved(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = _no_evaluation(build(async_rollout=AsyncRollout(1), save_every=100), monkeypatch)
    engine = loop.rollouts.engine
    generate = engine.generate

    async def die(ids: Sequence[int], sampling: SamplingParams) -> Completion:
        if engine.version == 2:
            raise EngineGone("it is no more")
        return await generate(ids, sampling)

    monkeypatch.setattr(engine, "generate", die)
    with pytest.raises(EngineGone, match="it is no more"):
        loop.run(lambda: False)
    again = _no_evaluation(build(async_rollout=AsyncRollout(1)), monkeypatch)
    assert again.run(lambda: False).step == 3
    assert [line["step"] for line in _lines(again)] == [1, 2, 3]


def test_two_groups_of_one_task_are_not_compared_with_each_other(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build()
    collected = collect(loop, TrainingState(Stage(3)))
    groups = collected.own[:2]
    same = [replace(group, episodes=groups[0].episodes, usable=groups[0].usable) for group in groups]
    compared: list[int] = []
    assess = loop.learner.compute_logprobs

    def watch(batch: Batch, algorithm: Any) -> Any:
        compared.extend(batch.tokens.group_E.tolist())
        return assess(batch, algorithm)

    monkeypatch.setattr(loop.learner, "compute_logprobs", watch)
    update(loop, 0, replace(collected, own=same))
    assert compared == [0] * SAMPLES + [1] * SAMPLES
