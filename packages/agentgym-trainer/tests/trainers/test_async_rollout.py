"""Tests of asynchronous rollouts in the training loop."""

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
from coin_configs import SAMPLES, TASKS, coin_config, count_other_tasks
from coin_loops import collect_rollouts, update_on_rollouts
from coin_world import OTHER
from metric_lines import without_measured
from patience import eventually_async
from rich.console import Console
from toy_learner import make_learner

ALGORITHM = coin_config().algorithm
Build = Callable[..., RLLoop]


@pytest.fixture
def build(tmp_path: Path, new_model: Callable[..., Any], chat: Chat) -> Generator[Build]:
    """A function that builds a loop over a tiny model. Everything it opens is closed after the test."""
    with ExitStack() as stack:

        def make(name: str = "run", **settings: Any) -> RLLoop:
            generation = Generation(max_tokens=8, max_context=200)
            config = coin_config(**{"horizon": FixedHorizon(3), "generation": generation, "steps": 3} | settings)
            student = make_learner(new_model(init=1.0), micro_tokens=400, reference=config.algorithm.needs_reference)
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


def _without_evaluation(loop: RLLoop, monkeypatch: pytest.MonkeyPatch) -> RLLoop:
    monkeypatch.setattr(loop, "evaluate", lambda step: {})
    return loop


def _lines(loop: RLLoop) -> list[dict[str, Any]]:
    return without_measured(loop.folder.read_metrics())


def _parameter_bytes(loop: RLLoop) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in loop.learner.policy.parameters()]


def test_max_staleness_0_equals_the_synchronous_loop_exactly(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False, backend="inline")
    mixture: dict[str, Any] = {
        "extra_worlds": (other,),
        "tasks_per_step": 5,
        "slots": 3,
        "sampler": MidSuccess(),
        "save_every": 100,
    }
    synchronous = _without_evaluation(build("synchronous", **mixture), monkeypatch)
    synchronous.run(lambda: False)
    asynchronous = _without_evaluation(build("asynchronous", **mixture), monkeypatch)
    asynchronous.collector.async_collector = asynchronous.collector.open_async_collector()
    asynchronous.run(lambda: False)
    assert len(_lines(synchronous)) == 3
    for line in _lines(synchronous):
        tokens = line["tokens"]["completion"]
        assert line["staleness"] == {"mean": 0.0, "max": 0, "stale": 0, "token_mean": 0.0, "tokens": {"0": tokens}}
        # Nothing was sampled ahead, so nothing is corrected, and all drawn episodes are trained.
        assert "correction" not in line
        assert line["lengths"]["trained"] == line["lengths"]["drawn"]
    assert _lines(asynchronous) == _lines(synchronous)
    assert _parameter_bytes(asynchronous) == _parameter_bytes(synchronous) != _parameter_bytes(build("start"))


def test_staleness_stays_within_max_staleness(build: Build) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=2)
    loop = build(async_rollout=AsyncRollout(1), steps=4, evaluation=evaluation, save_every=100)
    loop.run(lambda: False)
    lines = _lines(loop)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["staleness"]["max"] == 0
    assert max(line["staleness"]["max"] for line in lines) == 1
    assert all(line["staleness"]["stale"] == 0 and line["trained"] == TASKS * SAMPLES for line in lines)
    # The engine gets the learner's weights right after every update. Some processors compute equal log-probabilities.
    gaps = [line["logprob_check_gap"] for line in lines]
    assert all(0 <= gap < 1e-5 for gap in gaps) and any(gaps)
    for step in (0, 2, 4):
        held_out = loop.folder.read_evaluation(step, "sampled") or []
        assert {turn.reply.sample.version for e in held_out for turn in e.turns if turn.reply.sample} == {step}


def test_all_tokens_sampled_ahead_are_counted(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=1)
    loop = build(async_rollout=AsyncRollout(1), steps=4, evaluation=evaluation, save_every=100)
    # Without the log-probability check, whose tokens would be counted, too.
    monkeypatch.setattr(loop, "_check_logprobs", lambda step: 0.0)
    loop.run(lambda: False)
    completion, generated = (sum(line["tokens"][name] for line in _lines(loop)) for name in ("completion", "generated"))
    assert completion == generated > 0


def test_weights_kept_for_engine_restarts_are_not_overwritten_by_updates(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = _without_evaluation(build(async_rollout=AsyncRollout(1), steps=2), monkeypatch)
    engine = cast("Any", loop.rollouts.engine)
    load, update, versions = engine.load, loop.learner.update, list[int]()
    loaded: dict[str, torch.Tensor] = {}

    async def record_load(weights: Weights) -> None:
        loaded.update((name, tensor.clone()) for name, tensor in weights.tensors())
        await load(weights)

    def compare_after_update(*args: Any, **options: Any) -> Any:
        metrics = update(*args, **options)
        versions.append(engine._weights.version)
        assert all(torch.equal(tensor, loaded[name]) for name, tensor in engine._weights.tensors())
        assert not all(torch.equal(tensor, loaded[name]) for name, tensor in loop.learner.weights(0).tensors())
        return metrics

    monkeypatch.setattr(engine, "load", record_load)
    monkeypatch.setattr(loop.learner, "update", compare_after_update)
    loop.run(lambda: False)
    assert versions == [0, 1]


def test_replies_across_a_weight_sync_keep_logprobs_per_version(
    build: Build, monkeypatch: pytest.MonkeyPatch, new_model: Callable[..., Any]
) -> None:
    loop = _without_evaluation(
        build(async_rollout=AsyncRollout(1), steps=2, algorithm=replace(ALGORITHM, entropy=5.0)), monkeypatch
    )
    engine, policy = cast("Any", loop.rollouts.engine), cast("Any", loop.collector.async_collector)._policy
    load, step, reply = engine.load, engine._step, policy.reply
    weights_by_version: dict[int, dict[str, torch.Tensor]] = {}
    started: list[int] = []

    async def record_load(weights: Weights) -> None:
        weights_by_version[weights.version] = {name: tensor.clone() for name, tensor in weights.tensors()}
        await load(weights)

    async def wait_for_the_learner(context: TurnContext) -> Reply:
        """Delay replies of episodes sampled ahead until the first step has collected its groups."""
        if context.key not in started:
            started.append(context.key)
        if started.index(context.key) >= TASKS * SAMPLES:
            await eventually_async(lambda: collected)
        return await reply(context)

    async def wait_for_the_update() -> None:
        """Once all of these replies have some tokens, wait for the update."""
        if collected and engine.version == 0:
            await eventually_async(lambda: len(engine._waiting) + len(engine._under_way) == TASKS * SAMPLES)
            drafts = engine._core._drafts.values()
            if drafts and min(len(draft.logprobs) for draft in drafts) > 2:
                await eventually_async(lambda: engine._pausing)
        await step()

    monkeypatch.setattr(engine, "load", record_load)
    monkeypatch.setattr(engine, "_step", wait_for_the_update)
    monkeypatch.setattr(policy, "reply", wait_for_the_learner)
    collect, collected = loop.collector.collect, list[list[Episode]]()

    def record_collect(progress: TrainingState) -> Any:
        own, groups = collect(progress)
        collected.append([episode for group in own for episode in group.episodes])
        return own, groups

    monkeypatch.setattr(loop.collector, "collect", record_collect)
    loop.run(lambda: False)
    first, second = _lines(loop)
    assert (first["staleness"]["tokens"].keys(), second["staleness"]["tokens"].keys()) == ({"0"}, {"0", "1"})
    assert 0 < second["staleness"]["token_mean"] < second["staleness"]["mean"] == 1
    models = {version: new_model() for version in weights_by_version}
    for version, model in models.items():
        model.load_state_dict(weights_by_version[version], strict=False)
    for episode in collected[1]:
        sample = episode.turns[0].reply.sample
        assert sample is not None
        assert (sample.versions[:3], sample.versions[-3:]) == ((0, 0, 0), (1, 1, 1))
        gaps = {v: _gaps(model, sample.prompt, sample.ids, sample.logprobs) for v, model in models.items()}
        for i, version in enumerate(sample.versions):
            assert gaps[version][i] < 1e-4 < gaps[1 - version][i]
    # The gap of tokens from earlier weights is corrected for; it is no rounding error of engine or learner.
    assert first["rollout_logprob_gap"] < 1e-5 < 1e-4 < second["rollout_logprob_gap"]


@torch.no_grad()
def _gaps(model: Any, context: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]) -> list[float]:
    """Return the differences of log-probabilities to those of the model."""
    logits = model(torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1]
    expected = logits.float().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return (expected - torch.tensor(logprobs)).abs().tolist()


@pytest.mark.parametrize(
    ("async_rollout", "correction", "level"),
    [
        (AsyncRollout(0), Correction(), "off"),
        (AsyncRollout(0), Correction("sequence"), "sequence"),
        (AsyncRollout(1), Correction(), "token"),
        (AsyncRollout(1, correction="off"), Correction(), "off"),
        (AsyncRollout(1, correction="sequence"), Correction(bound=3.0), "sequence"),
        (AsyncRollout(1), Correction("sequence"), "sequence"),
    ],
)
def test_async_rollouts_are_corrected_by_default(
    async_rollout: AsyncRollout, correction: Correction, level: Any
) -> None:
    algorithm = async_rollout.corrected(replace(ALGORITHM, correction=correction))
    assert algorithm == replace(ALGORITHM, correction=replace(correction, level=level))


def test_an_interrupted_run_leaves_no_tasks(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _without_evaluation(build(async_rollout=AsyncRollout(2)), monkeypatch)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.learner, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run(lambda: False)
    assert count_other_tasks(loop.rollouts) == 0


@pytest.mark.long
def test_a_stopped_async_run_resumes_its_groups_in_flight(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_requests = iter([False, False, True])
    loop = _without_evaluation(build(async_rollout=AsyncRollout(2), steps=4), monkeypatch)
    assert loop.run(lambda: next(stop_requests)).step == 2
    assert count_other_tasks(loop.rollouts) == 0
    (in_flight,) = loop.collector.in_flight()
    resumed = _without_evaluation(build(async_rollout=AsyncRollout(2), steps=4), monkeypatch)
    collect, collected = resumed.collector.collect, list[str]()

    def record_collect(progress: TrainingState) -> Any:
        own, groups = collect(progress)
        collected.extend(group.task for group in groups)
        return own, groups

    monkeypatch.setattr(resumed.collector, "collect", record_collect)
    assert resumed.run(lambda: False).step == 4
    assert collected == [group["task"] for group in in_flight["groups"]]
    assert [line["step"] for line in _lines(resumed)] == [1, 2, 3, 4]
    assert _lines(resumed)[2]["staleness"]["max"] == 0


def test_a_failed_weight_sync_ends_the_run_after_saving(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(tolerance=1e-4)
    loop = _without_evaluation(build(async_rollout=AsyncRollout(1), save_every=100, engine=settings), monkeypatch)
    load = loop.rollouts.engine.load

    async def load_nothing(weights: Weights) -> None:
        await load(Weights(weights.version, lambda: iter(()), None) if weights.version else weights)

    monkeypatch.setattr(loop.rollouts.engine, "load", load_nothing)
    with pytest.raises(LogprobMismatch, match="After update 1"):
        loop.run(lambda: False)
    resumed = _without_evaluation(build(async_rollout=AsyncRollout(1), engine=settings), monkeypatch)
    assert resumed.run(lambda: False).step == 3


@pytest.mark.long
def test_an_engine_lost_during_an_update_ends_the_run_after_saving(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = _without_evaluation(build(async_rollout=AsyncRollout(1), save_every=100), monkeypatch)
    engine = loop.rollouts.engine
    generate = engine.generate

    async def fail(ids: Sequence[int], sampling: SamplingParams) -> Completion:
        if engine.version == 2:
            raise EngineGone("it is no more")
        return await generate(ids, sampling)

    monkeypatch.setattr(engine, "generate", fail)
    with pytest.raises(EngineGone, match="it is no more"):
        loop.run(lambda: False)
    resumed = _without_evaluation(build(async_rollout=AsyncRollout(1)), monkeypatch)
    assert resumed.run(lambda: False).step == 3
    assert [line["step"] for line in _lines(resumed)] == [1, 2, 3]


def test_two_groups_of_one_task_have_separate_baselines(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build()
    collected = collect_rollouts(loop, TrainingState(Stage(3)))
    groups = collected.own[:2]
    same = [replace(group, episodes=groups[0].episodes, usable=groups[0].usable) for group in groups]
    group_numbers: list[int] = []
    compute_logprobs = loop.learner.compute_logprobs

    def record(batch: Batch, algorithm: Any) -> Any:
        group_numbers.extend(batch.tokens.group_E.tolist())
        return compute_logprobs(batch, algorithm)

    monkeypatch.setattr(loop.learner, "compute_logprobs", record)
    update_on_rollouts(loop, 0, replace(collected, own=same))
    assert group_numbers == [0] * SAMPLES + [1] * SAMPLES
