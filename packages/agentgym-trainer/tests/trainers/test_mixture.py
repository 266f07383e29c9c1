"""Tests of runs with several environments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import Evaluation, Generation, RLConfig, WarmStart, WorldConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.rollout.environments import episode_specs, open_environments
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.rl import train
from coin_world import ENV, OTHER
from rich.console import Console

COIN, ONE_SIDED = "coin/Coin-v0", "coin/OneSided-v0"


def _config(*weights: float, slots: int = 100) -> RLConfig:
    first, *others = (WorldConfig(env, agent="bare", weight=w) for env, w in zip((ENV, OTHER), weights, strict=False))
    return RLConfig(
        world=first, extra_worlds=tuple(others), horizon=FixedHorizon(3), tasks_per_step=8, group_size=2, slots=slots
    )


def test_each_environment_is_opened_once_with_its_slots() -> None:
    with open_environments(_config(3, 1, slots=5)) as worlds:
        assert [world.name for world in worlds] == [COIN, ONE_SIDED]
        assert [len(world.pool) for world in worlds] == [5, 5]
        assert [world.tasks.train[0].env for world in worlds] == [COIN, ONE_SIDED]


def test_repeated_tasks_get_distinct_samples() -> None:
    with open_environments(_config(1)) as (world,):
        specs = episode_specs([world.tasks.train[i] for i in (3, 5, 3)], samples=2, seed=0)
    assert [(spec.task_id, spec.sample) for spec in specs] == [
        *(("coin/train/3", sample) for sample in range(4)),
        *(("coin/train/5", sample) for sample in range(2)),
    ]


def test_unknown_backends_are_rejected() -> None:
    config = replace(_config(1), world=WorldConfig(ENV, agent="bare", backend="cloud"))
    with pytest.raises(UsageError, match="There is no backend 'cloud'; choose one of inline, thread, process"):
        open_environments(config).__enter__()


def test_repeated_environments_are_rejected() -> None:
    config = replace(_config(1), extra_worlds=(WorldConfig(ENV, ("train=3",), agent="bare"),))
    with pytest.raises(UsageError, match=r"each environment once; coin/Coin-v0 is in it twice\. Merge the two entries"):
        open_environments(config).__enter__()


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (WorldConfig("agentgym/Nowhere-v0"), "Nowhere"),
        (WorldConfig(ENV, ("sides=3",)), "sides"),
        (WorldConfig(ENV, ("train=0",)), f"{ENV} has no train tasks under these options"),
    ],
)
def test_unusable_environments_are_rejected(world: WorldConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_environments(replace(_config(1), world=world)).__enter__()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    config = replace(
        _config(3, 1),
        model="scratch",
        scratch=Scratch(vocab=280, hidden=32, layers=1, heads=2, context=512),
        generation=Generation(max_tokens=6, max_context=512),
        warm_start=WarmStart(episodes=32, noise=0.5, imitate_noise=True, batch=8, lr=1e-2),
        evaluation=Evaluation(tasks=4, samples=2, ks=(1,), every=1),
        steps=2,
        device="cpu",
    )
    folder = RunFolder.create(tmp_path_factory.mktemp("mixture") / "run", config, "test")
    assert train(config, folder, RunConsole(Console(quiet=True)), Stopping()).step == 2
    return folder


def test_steps_play_environments_in_proportion_to_their_weights(run: RunFolder) -> None:
    for line in run.read_metrics():
        by_name = line["worlds"]
        assert by_name.keys() == {COIN, ONE_SIDED}
        assert [by_name[name]["episodes"] for name in (COIN, ONE_SIDED)] == [12, 4]
        assert sum(by_name[name]["episodes"] * by_name[name]["success"] for name in by_name) == pytest.approx(
            16 * line["success"]
        )
        assert Counter(by_name[COIN]["stops"]) + Counter(by_name[ONE_SIDED]["stops"]) == Counter(line["stops"])


def test_held_out_tasks_of_all_environments_are_evaluated(run: RunFolder, tmp_path: Path) -> None:
    for path in run.evaluations.iterdir():
        assert {e.env for e in read_episodes(path)} == {COIN, ONE_SIDED}
    *_, last = run.read_metrics()
    tasks = {COIN: 4, ONE_SIDED: 3}
    for decoding, success in last["dev"].items():
        by_world = sum(tasks[name] * last["worlds"][name]["dev"][decoding] for name in tasks)
        assert by_world / 7 == pytest.approx(success)
