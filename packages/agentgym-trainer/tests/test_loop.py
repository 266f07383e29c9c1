"""The training loop in a world of coins, with an engine that says what it is told to."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from agentgym_envs import Episode
from agentgym_trainer.algorithms import GRPO, PRESETS, Groups
from agentgym_trainer.chat import Chat
from agentgym_trainer.config import Config, Evaluation, Generation, World
from agentgym_trainer.engines import Engine, EngineGone
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.engines.transformers import transformers_engine
from agentgym_trainer.figures import Group
from agentgym_trainer.horizon import AdaptiveHorizon, FixedHorizon, Stage
from agentgym_trainer.loop import Loop
from agentgym_trainer.progress import Progress
from agentgym_trainer.rollout import Rollouts
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.sampler import Middling
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.worlds import open_worlds
from coin_world import ENV, OTHER
from miniature import episode, learner
from rich.console import Console

COIN = "coin/Coin-v0"
GRPO_PLAIN = replace(GRPO, kl=replace(GRPO.kl, where="off"))


def coins(**settings: Any) -> Config:
    """A configuration whose runs take part of a second."""
    known: dict[str, Any] = {
        "world": World(ENV, wrapper="bare", instructions=False),
        "algorithm": GRPO_PLAIN,
        "horizon": FixedHorizon(3),
        "generation": Generation(max_tokens=12, max_context=400),
        "evaluation": Evaluation(tasks=4, samples=2, ks=(1,)),
        "steps": 2,
        "tasks": 4,
        "samples": 3,
        "save_every": 1,
    }
    return Config(**(known | settings))


Build = Callable[..., Loop]


@pytest.fixture
def build(tmp_path: Path, new_model: Callable[..., Any], chat: Chat) -> Generator[Build]:
    """Makes a loop; what it opens is closed after the test."""
    with ExitStack() as stack:

        def make(config: Config, script: Callable[[], str] | None = None, *, name: str = "run", **more: Any) -> Loop:
            worlds = stack.enter_context(open_worlds(config))
            student = learner(new_model(init=1.0), micro_tokens=400, reference=config.algorithm.needs_reference, **more)
            tracker = Tracker(Console(quiet=True), steps=config.steps)
            folder = RunFolder.create(tmp_path / name, config, "test")
            if script is not None:
                engine: Engine = ScriptedEngine(lambda _: chat.reply_ids(script()), end_id=chat.end_id)
            else:
                engine = transformers_engine(
                    student.policy,
                    end_id=chat.end_id,
                    autocast=student.accelerator.autocast,
                )
            rollouts = stack.enter_context(Rollouts(engine))
            return Loop(config, folder, worlds, student, chat, tracker, rollouts)

        yield make


def _guess(seed: int = 0) -> Callable[[], str]:
    """Heads or tails, each as likely."""
    rng = np.random.default_rng(seed)
    return lambda: ("heads", "tails")[int(rng.integers(2))]


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _begin(loop: Loop, **more: Any) -> Progress:
    return Progress(stage=loop.config.horizon.begin(), **more)


def _step(loop: Loop, progress: Progress) -> Progress:
    return loop.conclude(loop.learn(progress))


def _rules(**groups: Any) -> Any:
    return replace(GRPO_PLAIN, groups=Groups(**groups))


def _kinds(groups: list[Group]) -> dict[str, int]:
    return dict(Counter(group.kind for group in groups))


def test_replies_are_sampled_in_the_precision_that_is_trained_in(
    build: Build, accelerator_of: Callable[[str], Accelerator]
) -> None:
    loop = build(coins(precision="bf16"), accelerator=accelerator_of("bf16"))
    half: list[bool] = []
    loop.learner.policy.register_forward_pre_hook(lambda *_: half.append(torch.is_autocast_enabled("cpu")))
    loop.collect(_begin(loop))
    assert half
    assert all(half)


# Groups.


def _one(reward: float, stop: str = "terminated") -> Episode:
    return episode([None], [reward], stop=stop)


@pytest.mark.parametrize(
    ("episodes", "train_cut", "kind", "usable"),
    [
        ([_one(0.0), _one(1.0)], True, "good", 2),
        ([_one(0.0), _one(1.0, "failed"), _one(1.0)], True, "broken", 2),
        ([_one(1.0, "failed"), _one(1.0)], True, "lonely", 1),
        ([_one(1.0, "failed")], True, "lonely", 0),
        ([_one(0.5), _one(0.5)], True, "flat", 2),
        ([_one(0.5), _one(0.5), _one(0.1, "length")], True, "good", 3),
        ([_one(0.5), _one(0.5), _one(0.1, "length")], False, "flat", 2),
        ([_one(0.5), _one(0.1, "length")], False, "lonely", 1),
    ],
)
def test_a_group_is_judged_by_the_episodes_that_may_train(
    episodes: list[Episode], train_cut: bool, kind: str, usable: int
) -> None:
    group = Group.judged(episodes, Groups(), train_cut=train_cut)
    assert (group.kind, len(group.usable)) == (kind, usable)
    assert group.treatment == ("keep" if kind in ("good", "broken") else "drop")


def test_who_always_says_the_same_makes_flat_groups_and_they_are_left_out(build: Build) -> None:
    loop = build(coins(algorithm=_rules(flat="drop")), lambda: "heads")
    groups = loop.collect(_begin(loop)).own
    assert _kinds(groups) == {"flat": 4}
    before = [parameter.clone() for parameter in loop.learner.policy.parameters()]
    progress = _step(loop, _begin(loop))
    assert progress.step == 1
    (line,) = loop.folder.read_metrics()
    assert (line["trained"], line["groups"]["flat"], line["groups"]["good"]) == (0, 4, 0)
    for was, now in zip(before, loop.learner.policy.parameters(), strict=True):
        assert torch.equal(was, now)


def test_kept_flat_groups_train(build: Build) -> None:
    loop = build(coins(algorithm=_rules(flat="keep")), lambda: "heads")
    _step(loop, _begin(loop))
    (line,) = loop.folder.read_metrics()
    assert (line["trained"], line["groups"]["flat"], line["advantage"]) == (12, 4, 0.0)


@pytest.mark.parametrize(
    ("rounds", "train", "played"), [(1, 16, [4, 4]), (2, 16, [4, 4, 4]), (3, 6, [4, 2]), (2, 4, [4])]
)
def test_resampling_plays_other_tasks_until_rounds_or_tasks_are_used_up(
    build: Build, rounds: int, train: int, played: list[int]
) -> None:
    world = World(ENV, (f"train={train}",), wrapper="bare", instructions=False)
    loop = build(coins(world=world, algorithm=_rules(flat="resample", rounds=rounds)), lambda: "heads")
    groups = loop.collect(_begin(loop)).groups
    assert len({group.task for group in groups}) == len(groups) == sum(played)
    assert all(group.treatment == "resample" and len(group.episodes) == 3 for group in groups)


def test_resampling_replaces_as_many_groups_as_are_flat_and_trains_on_the_others(build: Build) -> None:
    loop = build(coins(samples=2, algorithm=_rules(flat="resample", rounds=2)), _guess(1))
    groups = loop.collect(_begin(loop)).groups
    first = groups[:4]
    flat = sum(group.kind == "flat" for group in first)
    assert 0 < flat < 4
    assert len(groups) >= 4 + flat
    loop = build(coins(samples=2, algorithm=_rules(flat="resample", rounds=2)), _guess(1), name="again")
    _step(loop, _begin(loop))
    (line,) = loop.folder.read_metrics()
    assert line["groups"]["all"] == len(groups)
    assert line["trained"] == 2 * line["groups"]["good"] == 2 * sum(group.kind == "good" for group in groups)


@pytest.mark.parametrize(("treatment", "groups"), [("keep", 4), ("drop", 4), ("resample", 7)])
def test_broken_groups_go_as_configured(build: Build, treatment: Any, groups: int) -> None:
    broken = World(ENV, ("train=8", "gone=(0,1,2,3)"), wrapper="bare", instructions=False)
    algorithm = _rules(broken=treatment, lonely="drop", flat="keep", rounds=3)
    loop = build(coins(world=broken, tasks=4, samples=2, algorithm=algorithm), _guess())
    collected = loop.collect(_begin(loop)).own
    gone = [group for group in collected if all(e.failed for e in group.episodes)]
    # Where nothing is left of a broken group, keeping it means that it is lonely.
    assert {group.kind for group in gone} == ({"lonely"} if treatment == "keep" else {"broken"})
    assert all(not group.usable and group.treatment != "keep" for group in gone)
    assert (len(collected) > 4) == (treatment == "resample")


def test_a_task_that_is_drawn_twice_is_one_group_of_other_samples(build: Build) -> None:
    world = World(ENV, ("train=1",), wrapper="bare", instructions=False)
    loop = build(coins(world=world))
    (group,) = loop.collect(_begin(loop)).own
    assert [e.sample for e in group.episodes] == list(range(12))


def test_in_a_mixture_each_world_gets_its_share_and_stands_in_for_itself(build: Build) -> None:
    other = World(OTHER, wrapper="bare", instructions=False)
    loop = build(coins(others=(other,), tasks=24, samples=1, algorithm=_rules(lonely="keep")), _guess())
    # 12 of each, though the second has ten tasks: some of them are played twice.
    groups = loop.collect(_begin(loop)).groups
    assert Counter(e.world for group in groups for e in group.episodes) == {COIN: 12, "coin/OneSided-v0": 12}
    resampling = _rules(flat="resample", rounds=1)
    loop = build(coins(others=(other,), tasks=4, samples=2, algorithm=resampling), lambda: "heads", name="flat")
    assert Counter(group.world for group in loop.collect(_begin(loop)).groups) == {COIN: 4, "coin/OneSided-v0": 4}


# What is drawn.


def _tasks_and_tokens(groups: list[Group]) -> list[tuple[str, int, Any]]:
    return [
        (e.task_id, e.sample, [turn.reply.sample.ids for turn in e.turns if turn.reply.sample])
        for group in groups
        for e in group.episodes
    ]


def test_what_a_step_plays_depends_on_the_seed_and_the_step_alone(build: Build) -> None:
    loop, again = build(coins()), build(coins(), name="again")
    other = build(coins(seed=1), name="other")
    first = _tasks_and_tokens(loop.collect(_begin(loop)).own)
    assert _tasks_and_tokens(loop.collect(_begin(loop, step=1)).own) != first
    assert _tasks_and_tokens(loop.collect(_begin(loop)).own) == first
    assert _tasks_and_tokens(again.collect(_begin(again)).own) == first
    assert _tasks_and_tokens(other.collect(_begin(other)).own) != first


def test_the_samplers_memory_goes_from_step_to_step(build: Build) -> None:
    loop = build(coins(sampler=Middling()), lambda: "heads")
    progress = _step(loop, _begin(loop))
    assert progress.sampler is not None
    # Only "heads heads heads" of the eight sequences is solved by saying heads.
    assert set(progress.sampler.values()) <= {0.25, 0.75}
    assert len(progress.sampler) == 4
    later = _step(loop, progress)
    assert later.sampler is not None
    assert progress.sampler.keys() < later.sampler.keys()
    with_memory = {group.task for group in loop.collect(replace(progress, step=7)).groups}
    avoided = dict.fromkeys(loop.worlds[0].tasks.train.ids[:12], 0.0)
    assert with_memory != {group.task for group in loop.collect(replace(progress, step=7, sampler=avoided)).groups}


def test_the_sampler_learns_of_all_groups_of_a_task(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = build(coins(sampler=Middling()), lambda: "heads")
    collected = loop.collect(_begin(loop))
    one = collected.groups[0]
    lost, won = (
        replace(one, number=n, episodes=tuple(replace(e, success=bool(n)) for e in one.episodes)) for n in (0, 1)
    )
    monkeypatch.setattr(loop, "collect", lambda _: replace(collected, groups=[lost, won]))
    assert loop.learn(_begin(loop)).sampler == {one.task: 0.5}


def test_the_horizon_of_the_stage_ends_episodes(build: Build) -> None:
    loop = build(coins(horizon=FixedHorizon(3)))
    groups = loop.collect(Progress(stage=Stage(2))).own
    assert {len(e.turns) for group in groups for e in group.episodes if e.stop == "truncated"} <= {2}
    assert max(len(e.turns) for group in groups for e in group.episodes) <= 2


# A whole step, and a whole run.


def test_a_step_has_a_line_with_all_that_happened(build: Build) -> None:
    loop = build(coins(evaluation=Evaluation(tasks=4, samples=2, ks=(1,), every=1)), _guess())
    progress = loop.run(lambda: False)
    first, last = loop.folder.read_metrics()
    assert (first["step"], last["step"], progress.step) == (1, 2, 2)
    assert first["seconds"].keys() == {"load", "rollout", "engine", "assess", "update", "evaluation"}
    assert last["seconds"].keys() == {*first["seconds"].keys(), "checkpoint"}
    for line in (first, last):
        assert sum(line["stops"].values()) == 12
        assert sum(count for kind, count in line["groups"].items() if kind != "all") == line["groups"]["all"] == 4
        assert line["trained"] == 3 * line["groups"]["good"] > 0
        assert line["tokens"]["seen"] >= line["tokens"]["trained"] > 0
        assert line["tokens"]["seen"] > line["tokens"]["said"] > 0
        assert line["tokens"]["padding"] < 0.5
        assert 0 < line["tokens"]["fill"] <= 1
        assert line["tokens_per_s"] > 0
        assert line["grad_norm"] > 0
        assert 0 <= line["clipped"] <= 1
        assert line["held_out"].keys() == {"sampled", "greedy"}
        assert line["worlds"][COIN]["success"] == line["success"]
        assert line["worlds"][COIN]["held_out"] == line["held_out"]
        assert {"ratio", "entropy", "kl_sampled", "lr", "return", "advantage_std", "loss"} <= line.keys()
    assert progress.env_steps == last["env_steps"] == round(12 * (first["turns"] + last["turns"]))


def test_seconds_of_a_phase_are_all_there_whenever_in_a_step_they_passed(build: Build) -> None:
    loop = build(coins(evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1)), _guess())
    progress = loop.learn(_begin(loop))
    assert progress.learned is not None
    assert progress.learned["line"]["seconds"]["load"] > 0
    progress.learned["line"]["seconds"]["load"] = 1e6
    loop.conclude(progress)  # loads what is evaluated
    (line,) = loop.folder.read_metrics()
    assert line["seconds"]["load"] > 1e6


def test_the_best_step_is_told_and_saved(build: Build) -> None:
    config = coins(steps=3, save_every=100, evaluation=Evaluation(tasks=4, samples=2, ks=(1,), every=1))
    said = iter(["heads", *["tails"] * 200])
    loop = build(config, lambda: next(said, "heads"))
    progress = loop.run(lambda: False)
    assert progress.best is not None
    tested = {line["step"]: line["held_out"]["sampled"] for line in loop.folder.read_metrics()}
    assert progress.best.success == max(tested.values())
    assert tested[progress.best.step] == progress.best.success
    assert loop.checkpoints.best.resolve().name == f"step-{progress.best.step:06d}"


def test_evaluation_happens_when_it_is_due(build: Build) -> None:
    loop = build(coins(steps=3, evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=2)), _guess())
    loop.run(lambda: False)
    assert loop.folder.evaluated_steps("sampled") == loop.folder.evaluated_steps("greedy") == [0, 2, 3]
    assert [bool(line["held_out"]) for line in loop.folder.read_metrics()] == [False, True, True]


def test_an_adaptive_horizon_sees_what_was_held_out_and_what_was_cut_short(build: Build) -> None:
    evaluation = Evaluation(tasks=2, samples=1, ks=(1,), every=1)
    plateau = AdaptiveHorizon((2, 3), at_least=1, patience=1, cut=0.0)
    loop = build(coins(steps=3, horizon=plateau, evaluation=evaluation), lambda: "tails")
    progress = loop.run(lambda: False)
    assert [line["horizon"] for line in loop.folder.read_metrics()] == [2, 2, 3]
    assert (progress.stage.why, progress.stage.since) == ("plateau", 2)
    impatient = AdaptiveHorizon((2, 3), at_least=1, patience=0, cut=0.01)
    loop = build(coins(horizon=impatient), lambda: "tails", name="cut")
    progress = _step(loop, _begin(loop))
    # Some task's second side is tails: there the horizon of 2 cut an episode that was still earning.
    assert (progress.stage.turns, progress.stage.why) == (3, "cut")


def test_a_run_is_stopped_after_a_step_and_goes_on_where_it_was(build: Build) -> None:
    asked = iter([False, True])
    loop = build(coins(save_every=100, sampler=Middling()))
    assert loop.run(lambda: next(asked)).step == 1
    assert loop.checkpoints.latest() == loop.folder.checkpoints / "step-000001"
    assert loop.run(lambda: False).step == 2
    whole = build(coins(save_every=100, sampler=Middling()), name="whole")
    whole.run(lambda: False)

    assert _lines(loop.folder) == _lines(whole.folder)


def _lines(folder: RunFolder) -> list[Any]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in folder.read_metrics()]


@pytest.mark.parametrize(
    ("method", "call"),
    [*(pytest.param(*at, marks=pytest.mark.long) for at in (("collect", 2), ("held_out", 4))), ("held_out", 3)],
)
def test_a_run_whose_engine_is_gone_is_saved_and_goes_on_where_it_was(
    build: Build, monkeypatch: pytest.MonkeyPatch, method: str, call: int
) -> None:
    config = coins(save_every=100, sampler=Middling(), evaluation=Evaluation(tasks=2, samples=1, ks=(1,), every=1))
    whole = build(config, name="whole")
    whole.run(lambda: False)
    loop = build(config)
    original, calls = getattr(loop.arena, method), itertools.count(1)

    def leave(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise EngineGone("It has left for good.")
        return original(*args, **kwargs)

    monkeypatch.setattr(loop.arena, method, leave)
    with pytest.raises(EngineGone):
        loop.run(lambda: False)
    # Where it left in an evaluation, the update before it is not lost; nor is half an evaluation.
    assert loop.checkpoints.latest() == loop.folder.checkpoints / "step-000001"
    assert [line["step"] for line in loop.folder.read_metrics()] == ([1] if method == "collect" else [])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_save", _interrupt)
        loop.run(lambda: False)
    assert loop.run(lambda: False).step == 2
    assert _lines(loop.folder) == _lines(whole.folder)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "gigpo" else pytest.mark.long) for n in PRESETS if n != "ppo"]
)
def test_every_preset_takes_a_step(build: Build, name: str) -> None:
    loop = build(coins(algorithm=PRESETS[name], minibatches=2, epochs=2), _guess())
    _step(loop, _begin(loop))
    (line,) = loop.folder.read_metrics()
    assert line["trained"] > 0
    assert line["grad_norm"] > 0
    assert np.isfinite(line["loss"])
