"""Tests of the training loop in the coin environment, with scripted replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import Evaluation
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, FixedHorizon, Stage, StepHorizon
from agentgym_trainer.curriculum.state import Best, TrainingState
from agentgym_trainer.curriculum.task_sampler import MidSuccess
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.rollout.groups import EpisodeGroup, EpisodeOutcome
from agentgym_trainer.run.folder import RunFolder
from coin_loops import COIN, Build, collect_rollouts, initial_state, loop_config, random_guesses, take_step
from metric_lines import without_measured
from toy_learner import episode_with_samples


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_replies_are_sampled_in_the_training_precision(
    build: Build, accelerator_of: Callable[[str], Accelerator]
) -> None:
    loop = build(loop_config(precision="bf16"), accelerator=accelerator_of("bf16"))
    half: list[bool] = []
    loop.learner.policy.register_forward_pre_hook(lambda *_: half.append(torch.is_autocast_enabled("cpu")))
    collect_rollouts(loop, initial_state(loop))
    assert half
    assert all(half)


# Sampling of tasks.


def _tasks_and_tokens(groups: list[EpisodeGroup]) -> list[tuple[str, int, Any]]:
    return [
        (e.task_id, e.sample, [turn.reply.sample.ids for turn in e.turns if turn.reply.sample])
        for group in groups
        for e in group.episodes
    ]


def test_rollouts_depend_only_on_the_seed_and_the_step(build: Build) -> None:
    loop, same_seed = build(loop_config()), build(loop_config(), name="again")
    other_seed = build(loop_config(seed=1), name="other")
    first = _tasks_and_tokens(collect_rollouts(loop, initial_state(loop)).own)
    assert _tasks_and_tokens(collect_rollouts(loop, initial_state(loop, step=1)).own) != first
    assert _tasks_and_tokens(collect_rollouts(loop, initial_state(loop)).own) == first
    assert _tasks_and_tokens(same_seed.collect(initial_state(same_seed)).own) == first
    assert _tasks_and_tokens(other_seed.collect(initial_state(other_seed)).own) != first


def test_the_samplers_state_begins_anew_in_each_stage(build: Build) -> None:
    loop = build(loop_config(sampler=MidSuccess(), horizon=StepHorizon((1, 2), every=2)), lambda: "heads")
    first = take_step(loop, initial_state(loop))
    assert len(first.sampler) == 4
    second = take_step(loop, first)
    assert (second.stage.number, second.sampler) == (1, {})
    late = replace(second, stage=replace(second.stage, number=0))  # as if its groups had begun in another stage
    own = loop.collect(second).own
    loop.collector.collect = lambda _: (own, [group.outcome for group in own])
    assert loop.collect(second).sampler != loop.collect(late).sampler == late.sampler


def test_the_samplers_state_persists_between_steps(build: Build) -> None:
    loop = build(loop_config(sampler=MidSuccess()), lambda: "heads")
    progress = take_step(loop, initial_state(loop))
    assert progress.sampler is not None
    # Constant heads solves only one of the eight sequences.
    assert set(progress.sampler.values()) <= {0.25, 0.75}
    assert len(progress.sampler) == 4
    later = take_step(loop, progress)
    assert later.sampler is not None
    assert progress.sampler.keys() < later.sampler.keys()
    tasks = {group.task for group in collect_rollouts(loop, replace(progress, step=7)).groups}
    zero_success = dict.fromkeys(loop.worlds[0].tasks.train.ids[:12], 0.0)
    assert tasks != {
        group.task for group in collect_rollouts(loop, replace(progress, step=7, sampler=zero_success)).groups
    }


def test_the_sampler_gets_the_mean_success_of_a_tasks_groups(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(loop_config(sampler=MidSuccess()), lambda: "heads")
    collected = collect_rollouts(loop, initial_state(loop))
    group = collected.groups[0]
    lost, won = (
        replace(group, number=n, episodes=tuple(replace(e, success=bool(n)) for e in group.episodes)) for n in (0, 1)
    )
    monkeypatch.setattr(loop.collector, "collect", lambda _: (collected.own, [lost, won]))
    assert loop.step(initial_state(loop)).sampler == {group.task: 0.5}


def test_episodes_end_at_the_horizon_of_the_stage(build: Build) -> None:
    loop = build(loop_config(horizon=FixedHorizon(3)))
    groups = collect_rollouts(loop, TrainingState(stage=Stage(2))).own
    assert {len(e.turns) for group in groups for e in group.episodes if e.stop == "truncated"} <= {2}
    assert max(len(e.turns) for group in groups for e in group.episodes) <= 2


# Complete steps and runs.


@pytest.mark.quick
def test_a_step_has_a_line_with_all_that_happened(build: Build) -> None:
    loop = build(loop_config(evaluation=Evaluation(tasks=4, samples=2, ks=(1,), every=1)), random_guesses())
    progress = loop.run(lambda: False)
    first, last = loop.folder.read_metrics()
    assert (first["step"], last["step"], progress.step) == (1, 2, 2)
    assert first["seconds"].keys() == {"load", "rollout", "engine", "logprobs", "update", "evaluation", "record"}
    assert last["seconds"].keys() == {*first["seconds"].keys(), "checkpoint"}
    for line in (first, last):
        assert sum(line["stops"].values()) == 12
        assert sum(count for kind, count in line["groups"].items() if kind != "all") == line["groups"]["all"] == 4
        assert line["trained"] == 3 * line["groups"]["ok"] > 0
        assert line["tokens"]["total"] >= line["tokens"]["trained"] > 0
        assert line["tokens"]["total"] > line["tokens"]["completion"] > 0
        assert line["tokens"]["padding"] < 0.5
        assert 0 < line["tokens"]["fill"] <= 1
        assert line["tokens_per_s"] > 0
        assert line["memory"].keys() == {"host"}
        assert 0.1 < line["memory"]["host"] < 100
        assert line["grad_norm"] > 0
        assert 0 <= line["clip_fraction"] <= 1
        assert line["dev"].keys() == {"sampled", "greedy"}
        assert line["worlds"][COIN]["success"] == line["success"]
        assert line["worlds"][COIN]["dev"] == line["dev"]
        assert {"ratio", "entropy", "approx_kl", "lr", "return", "advantage_std", "loss"} <= line.keys()
    assert progress.env_steps == last["env_steps"] == round(12 * (first["turns"] + last["turns"]))


def test_seconds_of_a_phase_include_those_after_the_update(build: Build) -> None:
    loop = build(loop_config(evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1)), random_guesses())
    progress = loop.step(initial_state(loop))
    assert progress.learned is not None
    assert progress.learned["line"]["seconds"]["load"] > 0
    progress.learned["line"]["seconds"]["load"] = 1e6
    loop.finish_step(progress)  # loads the weights to evaluate
    (line,) = loop.folder.read_metrics()
    assert line["seconds"]["load"] > 1e6


@pytest.mark.parametrize("drops", [True, False], ids=["drops-weights", "keeps-weights"])
def test_an_evaluation_ends_with_one_sleep_after_which_dropped_weights_are_loaded(
    build: Build, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    """Requests would bring dropped weights back, too, but over TCP."""
    loop = build(loop_config(steps=2, evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1)), random_guesses())
    calls, load, play = list[str](), loop.rollouts.load, loop.rollouts.play

    def logged(name: str, result: Any) -> Any:
        calls.append(name)
        return result

    monkeypatch.setattr(loop.rollouts, "load", lambda weights: logged("load", load(weights)))
    monkeypatch.setattr(loop.rollouts, "play", lambda *args: logged("play", play(*args)))
    monkeypatch.setattr(loop.rollouts, "sleep", lambda: logged("sleep", drops))
    loop.run(lambda: False)
    again = ["load"] if drops else []
    evaluation, rollout = ["load", "play", "play", "sleep"], [*again, "play", "sleep"]
    assert calls == [*evaluation, *rollout, *evaluation, *rollout, *evaluation]


def test_the_best_checkpoint_is_tracked_and_saved(build: Build) -> None:
    config = loop_config(steps=3, save_every=100, evaluation=Evaluation(tasks=4, samples=2, ks=(1,), every=1))
    replies = iter(["heads", *["tails"] * 200])
    loop = build(config, lambda: next(replies, "heads"))
    progress = loop.run(lambda: False)
    assert progress.best is not None
    success = {line["step"]: line["dev"]["sampled"] for line in loop.folder.read_metrics()}
    assert progress.best.success == max(success.values())
    assert success[progress.best.step] == progress.best.success
    assert loop.checkpoints.best.resolve().name == f"step-{progress.best.step:06d}"


def test_a_policy_that_breaks_hard_tasks_is_not_the_best(build: Build) -> None:
    evaluation = Evaluation(tasks=4, samples=1, ks=(1,), every=1)
    horizon = AdaptiveHorizon((2, 3), at_least=1, patience=9, cut=0.0)
    loop = build(loop_config(steps=2, evaluation=evaluation, horizon=horizon, max_failed=1), lambda: "heads")
    solved = EpisodeOutcome.of(replace(episode_with_samples([None], [1.0]), success=True))
    tasks = [f"coin/dev/{i}" for i in range(4)]
    honest = [replace(solved, task=task, success=task < "coin/dev/2") for task in tasks]
    breaking = [*honest[:1], *(replace(outcome, stop="failed", success=None) for outcome in honest[1:])]
    by_step = {0: honest, 1: honest, 2: breaking}
    loop.evaluate = lambda step: {"sampled": by_step[step], "greedy": by_step[step]}
    state = loop.run(lambda: False)
    assert [line["dev"]["sampled"] for line in loop.folder.read_metrics()] == [0.5, 1.0]
    assert state.best == Best(1, 0.5)
    assert state.stage.success == {
        f"{solved.world} {task}": [float(task < "coin/dev/2"), float(task < "coin/dev/1")] for task in tasks
    }


def test_evaluations_happen_every_few_steps(build: Build) -> None:
    loop = build(loop_config(steps=3, evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=2)), random_guesses())
    loop.run(lambda: False)
    assert loop.folder.evaluated_steps("sampled") == loop.folder.evaluated_steps("greedy") == [0, 2, 3]
    assert [bool(line["dev"]) for line in loop.folder.read_metrics()] == [False, True, True]


def test_an_adaptive_horizon_reacts_to_plateaus_and_cut_episodes(build: Build) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=1)
    plateau_horizon = AdaptiveHorizon((2, 3), at_least=1, patience=1, gain=1.0, cut=0.0)
    loop = build(loop_config(steps=3, horizon=plateau_horizon, evaluation=evaluation), lambda: "tails")
    progress = loop.run(lambda: False)
    assert [line["horizon"] for line in loop.folder.read_metrics()] == [2, 2, 3]
    assert (progress.stage.reason, progress.stage.since) == ("plateau", 2)
    cut_horizon = AdaptiveHorizon((2, 3), at_least=1, patience=0, cut=0.01)
    loop = build(loop_config(horizon=cut_horizon), lambda: "tails", name="cut")
    progress = take_step(loop, initial_state(loop))
    # In some tasks the second coin is tails, so the horizon of 2 cut an episode that was still earning.
    assert (progress.stage.turns, progress.stage.reason) == (3, "cut")


def test_a_stopped_run_resumes_identically(build: Build) -> None:
    stop_requests = iter([False, True])
    loop = build(loop_config(save_every=100, sampler=MidSuccess()))
    assert loop.run(lambda: next(stop_requests)).step == 1
    assert loop.checkpoints.latest() == loop.folder.checkpoints / "step-000001"
    assert loop.run(lambda: False).step == 2
    uninterrupted = build(loop_config(save_every=100, sampler=MidSuccess()), name="uninterrupted")
    uninterrupted.run(lambda: False)

    assert _lines(loop.folder) == _lines(uninterrupted.folder)


def _lines(folder: RunFolder) -> list[Any]:
    return without_measured(folder.read_metrics())


@pytest.mark.parametrize(
    ("method", "call"),
    [*(pytest.param(*at, marks=pytest.mark.long) for at in (("collect", 2), ("play", 4))), ("play", 3)],
)
def test_a_run_with_a_lost_engine_is_saved_and_resumes_identically(
    build: Build, monkeypatch: pytest.MonkeyPatch, method: str, call: int
) -> None:
    config = loop_config(
        save_every=100, sampler=MidSuccess(), evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1)
    )
    uninterrupted = build(config, name="uninterrupted")
    uninterrupted.run(lambda: False)
    loop = build(config)
    owner = loop.collector if method == "collect" else loop.evaluator
    original, calls = getattr(owner, method), itertools.count(1)

    def raise_engine_gone(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise EngineGone("It has left for good.")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, method, raise_engine_gone)
    with pytest.raises(EngineGone):
        loop.run(lambda: False)
    # If the engine is lost during an evaluation, the preceding update is saved.
    assert loop.checkpoints.latest() == loop.folder.checkpoints / "step-000001"
    assert [line["step"] for line in loop.folder.read_metrics()] == ([1] if method == "collect" else [])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_save", _interrupt)
        loop.run(lambda: False)
    assert loop.run(lambda: False).step == 2
    assert _lines(loop.folder) == _lines(uninterrupted.folder)


def test_an_interrupted_evaluation_goes_on_where_it_stopped(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(loop_config(save_every=100, evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1)))
    play, played = loop.evaluator._played, list[tuple[int, str]]()

    def play_once_lost(split: str, step: int, decoding: str) -> Any:
        played.append((step, decoding))
        if played.count((1, "greedy")) == 1 and played[-1] == (1, "greedy"):
            raise EngineGone("gone")
        return play(split, step, decoding)

    monkeypatch.setattr(loop.evaluator, "_played", play_once_lost)
    with pytest.raises(EngineGone):
        loop.run(lambda: False)
    loop.run(lambda: False)
    assert played.count((1, "sampled")) == 1
    assert played.count((1, "greedy")) == 2


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "gigpo" else pytest.mark.long) for n in PRESETS if n != "ppo"]
)
def test_every_preset_takes_a_step(build: Build, name: str) -> None:
    loop = build(loop_config(algorithm=PRESETS[name], minibatches=2, epochs=2), random_guesses())
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    assert line["trained"] > 0
    assert line["grad_norm"] > 0
    assert np.isfinite(line["loss"])


def test_checkpoints_are_written_by_elapsed_time(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(loop_config(steps=5, save_every=100, save_minutes=2.0, keep_checkpoints=9))
    minutes = itertools.count()
    monkeypatch.setattr(loop.checkpoints, "_clock", lambda: 60.0 * next(minutes))
    monkeypatch.setattr(loop.checkpoints, "_saved", 0.0)
    monkeypatch.setattr(loop, "evaluate", lambda step: {})
    loop.run(lambda: False)
    # The clock is read at 0, 1 and 2, and again when saving, at 3.
    assert sorted(path.name for path in loop.folder.checkpoints.glob("step-*")) == ["step-000003", "step-000005"]
