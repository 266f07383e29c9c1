"""Tests of evaluation on the test split, in complete runs of every kind."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
import os
import signal
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Task, Tasks, TaskSet, read_episodes
from agentgym_eval.util.errors import UsageError
from agentgym_trainer import load_run
from agentgym_trainer.config import (
    AgentEvolConfig,
    BaseConfig,
    DataConfig,
    DPOConfig,
    Evaluation,
    Exploration,
    Generation,
    Optimizer,
    RLConfig,
    SFTConfig,
    WarmStart,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, FixedHorizon
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.runner import EnginePolicy
from agentgym_trainer.run import trackers
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import remove
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers import test_split
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.test_split import play_test
from coin_world import ENV, Coin
from device_memory import exempt_existing, live_bytes
from patience import PATIENCE
from rich.console import Console
from safetensors.torch import load_file
from toy_learner import StopAfterCalls, coin_flags, sft_flags, train_cli

COMMON: dict[str, Any] = {
    "model": "scratch",
    "scratch": Scratch(vocab=280, hidden=32, layers=1, heads=2),
    "world": WorldConfig(ENV, agent="bare", instructions=False, backend="inline"),
    "generation": Generation(max_tokens=6, max_context=200),
    "optimizer": Optimizer(lr=1e-2),
    "evaluation": Evaluation(tasks=3, test_tasks=0, samples=1, ks=(1,), every=1),
    "save_every": 1,
    "device": "cpu",
    "slots": 8,
}
FROM_DATA: dict[str, Any] = COMMON | {
    "horizon": FixedHorizon(3),
    "data": DataConfig(episodes=16, keep="all"),
    "batch": 8,
}
ADAPTIVE = AdaptiveHorizon((2, 3), at_least=1, patience=1, gain=1.0, cut=0.0)
RL = RLConfig(
    **COMMON,
    horizon=ADAPTIVE,
    warm_start=WarmStart(episodes=16, noise=0.5, imitate_noise=True),
    steps=3,
    tasks_per_step=2,
    group_size=2,
)
KINDS: dict[str, tuple[BaseConfig, int]] = {
    "rl": (RL, 3),
    "sft": (SFTConfig(**FROM_DATA), 2),
    "dpo": (DPOConfig(**(FROM_DATA | {"data": DataConfig(episodes=32, noise=0.5, keep="all")}), player="expert"), 0),
    "evol": (AgentEvolConfig(**FROM_DATA, iterations=1, exploration=Exploration(tasks=4)), 2),
}
TEST_TASKS = [f"coin/test/{number}" for number in range(4)]


@pytest.fixture
def drawn_test_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """A list that gets the id of every test task drawn or played, and whether the final model existed by then."""
    drawn: list[tuple[str, bool]] = []
    start = Coin._start

    def record(task: Task) -> Task:
        if task.split == "test":
            drawn.append((task.id, RunFolder(tmp_path / "run").model.exists()))
        return task

    def tasks(self: Coin) -> TaskSet:
        original = self._tasks
        marked = Tasks(original.test.ids, lambda task_id: record(original.test.build(task_id)))
        return TaskSet(train=original.train, dev=original.dev, test=marked)

    monkeypatch.setattr(Coin, "tasks", property(tasks))
    monkeypatch.setattr(Coin, "_start", lambda self, task: start(self, record(task)))
    return drawn


@pytest.fixture
def uncollected() -> Generator[None]:
    """Have Python's garbage collector run only where the program calls it."""
    gc.disable()
    yield
    gc.enable()


def create_run(path: Path, config: BaseConfig) -> RunFolder:
    return RunFolder.create(path / "run", config, "coins")


def resume(folder: RunFolder) -> int:
    return train_cli(["--resume", str(folder.path)])


def replies(folder: RunFolder, step: int, decoding: str) -> list[Any]:
    episodes = folder.read_evaluation(step, decoding, test=True) or []
    return [(episode.task_id, [turn.reply.text for turn in episode.turns]) for episode in episodes]


@pytest.mark.parametrize("kind", [k if k == "rl" else pytest.param(k, marks=pytest.mark.long) for k in KINDS])
@pytest.mark.usefixtures("uncollected")
def test_nothing_of_the_training_is_in_memory_when_the_models_are_loaded_to_test(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What accelerate prepares is in cycles, which keep their memory until they are collected."""
    load, held = test_split.saved_model, list[int]()

    def loaded(*args: Any, **options: Any) -> Any:
        held.append(live_bytes(collect=False) - before)
        return load(*args, **options)

    monkeypatch.setattr(test_split, "saved_model", loaded)
    folder = create_run(tmp_path, KINDS[kind][0])
    exempt_existing()
    before = live_bytes()
    assert resume(folder) == 0
    weights = sum(tensor.nbytes for tensor in load_file(folder.model / "model.safetensors").values())
    assert len(held) == 2
    assert max(held) < 0.1 * weights, (held, weights)


@pytest.mark.parametrize("kind", [k if k == "rl" else pytest.param(k, marks=pytest.mark.long) for k in KINDS])
def test_tasks_of_the_test_split_are_drawn_once_after_training(
    kind: str, tmp_path: Path, drawn_test_tasks: list[tuple[str, bool]]
) -> None:
    config, steps = KINDS[kind]
    folder = create_run(tmp_path, config)
    assert resume(folder) == 0
    assert {task for task, _ in drawn_test_tasks} == set(TEST_TASKS)
    assert all(finished for _, finished in drawn_test_tasks)
    training_files = [
        folder.data,
        *folder.rollouts.glob("step-*[0-9].jsonl"),
        *folder.path.glob("iteration-*/sampled.jsonl"),
    ]
    assert {e.split for path in training_files if path.exists() for e in read_episodes(path)} == {"train"}
    last = steps or folder.evaluated_steps("sampled")[-1]
    for decoding in ("sampled", "greedy"):
        assert folder.evaluated_steps(decoding, test=True) == [0, last]
        for step in folder.evaluated_steps(decoding):
            assert {e.split for e in folder.read_evaluation(step, decoding) or []} == {"dev"}
        for step in (0, last):
            episodes = folder.read_evaluation(step, decoding, test=True) or []
            assert sorted(e.task_id for e in episodes) == TEST_TASKS
            assert {t.reply.sample.version for e in episodes for t in e.turns if t.reply.sample} == {step}
    summary = json.loads(folder.summary.read_text())
    assert {split: [*of_split["greedy"]] for split, of_split in summary["evaluations"].items()} == {
        "dev": [str(step) for step in folder.evaluated_steps("greedy")],
        "test": ["0", str(last)],
    }
    before = [replies(folder, step, "sampled") for step in (0, last)]
    drawn_test_tasks.clear()
    assert resume(folder) == 0
    assert drawn_test_tasks == []
    assert [replies(folder, step, "sampled") for step in (0, last)] == before


@pytest.mark.long
def test_truncated_evaluations_are_played_again(tmp_path: Path) -> None:
    folder, log = create_run(tmp_path, RL), tmp_path / "log"
    assert resume(folder) == 0
    before = replies(folder, 3, "sampled")
    path = folder.evaluations / "test-000003-sampled.jsonl"
    sizes = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    os.truncate(path, sum(sizes[:2]) + sizes[2] // 2)
    assert train_cli(["--resume", str(folder.path)], log) == 0
    said = f"sampled on test tasks, is incomplete: {path}, line 3: half a line. It is played again.\n"
    assert f"The saved evaluation after 3 steps, {said}" in log.read_text()
    assert replies(folder, 3, "sampled") == before

    for name, kept in (("test-000000-sampled", 3), ("step-000000-greedy", 2)):
        path = folder.evaluations / f"{name}.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    for of_version_0_2 in (folder.path / "evaluations.json", folder.checkpoints, folder.model):
        remove(of_version_0_2)
    for test_file in folder.evaluations.glob("test-*-greedy.jsonl"):
        test_file.unlink()
    assert train_cli(["--resume", str(folder.path)], log) == 0
    said = [line.partition("steps, ")[2] for line in log.read_text().splitlines() if "incomplete" in line]
    assert said == [
        "greedy on dev tasks, is incomplete: it has 2 of 3 episodes. It is played again.",
        "sampled on test tasks, is incomplete: it has 3 of 4 episodes. It is played again.",
    ]
    assert len(folder.read_evaluation(0, "sampled", test=True) or []) == 4
    assert len(folder.read_evaluation(0, "greedy") or []) == 3


@pytest.mark.parametrize(
    "flags_of",
    [
        lambda out: coin_flags(out, "--steps", "3"),
        pytest.param(lambda out: sft_flags(out, "--data.episodes", "24", "--epochs", "1"), marks=pytest.mark.long),
    ],
    ids=["rl", "sft"],
)
@pytest.mark.long
def test_final_model_is_that_of_the_best_checkpoint_if_asked(
    flags_of: Callable[[Path], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def best_after_2(self: TrainingState, _: float | None) -> TrainingState:
        return evaluated(self, 0.75 if self.step == 2 else 0.5)

    evaluated = TrainingState.evaluated
    monkeypatch.setattr(TrainingState, "evaluated", best_after_2)
    folder, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    more = ("--evaluation.load-best-model-at-end", "--evaluation.every", "1", "--keep-checkpoints", "1")
    for arguments in ([*flags_of(folder.path), *more], ["--resume", str(folder.path)]):
        assert train_cli(arguments, log) == 0
        test, during = capfd.readouterr().out.split("tasks, played")[1:]
        assert "before" in test and "after" in test
        results = json.loads(folder.summary.read_text())["evaluations"]
        for shown, split in ((test, "test"), (during, "dev")):
            assert f"{results[split]['sampled']['2']['turns']['mean']:.3f}" in shown.partition("turns, sampled")[2]
        assert load_run(folder.path).model_step == 2
        said = "The final model is that after update 2 of 3: the best on dev tasks, with 75.0%.\n"
        assert log.read_text().count(said) == 1
        final, best, last = (
            load_file(path / "model.safetensors")
            for path in (folder.model, folder.checkpoints / "step-000002", folder.checkpoints / "step-000003")
        )
        assert all(torch.equal(weight, best[name]) for name, weight in final.items())
        assert any(not torch.equal(weight, last[name]) for name, weight in final.items())
        assert folder.evaluated_steps("sampled", test=True) == [0, 2]
    episodes = folder.read_evaluation(2, "sampled", test=True) or []
    assert {t.reply.sample.version for e in episodes for t in e.turns if t.reply.sample} == {2}


@pytest.mark.long
def test_initial_and_final_model_are_tested_once_if_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tested = create_run(tmp_path, RL), list[tuple[str, int]]()
    saved_model = test_split.saved_model

    def record_model(config: BaseConfig, model: str, *rest: Any, version: int) -> Any:
        tested.append((Path(model).name, version))
        return saved_model(config, model, *rest, version=version)

    monkeypatch.setattr(test_split, "saved_model", record_model)
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_trainer.api.play_test", lambda *_, **__: False)
        assert resume(folder) == 130
    assert not folder.evaluated_steps("sampled", test=True)

    def test(stopping: Stopping) -> bool:
        return play_test(RL, folder, RunConsole(Console(file=io.StringIO())), stopping, steps=3)

    assert not test(StopAfterCalls(2))
    assert tested == [("start", 0)]
    assert test(Stopping())
    assert tested == [("start", 0), ("model", 3)]
    (folder.evaluations / "test-000003-greedy.jsonl").unlink()
    sampled = (folder.evaluations / "test-000003-sampled.jsonl").read_bytes()
    assert test(Stopping())
    assert tested == [("start", 0), ("model", 3), ("model", 3)]
    assert (folder.evaluations / "test-000003-sampled.jsonl").read_bytes() == sampled


@pytest.mark.long
def test_a_signal_ends_the_test_and_keeps_completed_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, log = create_run(tmp_path, RL), tmp_path / "log"
    group_specs, calls = Evaluator._group_specs, itertools.count(1)

    async def wait_forever(*_: Any) -> None:
        await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

    with monkeypatch.context() as patch:

        def terminate_in_second_evaluation(self: Evaluator, split: Any, *rest: Any) -> Any:
            if split == "test" and next(calls) == 2:
                patch.setattr(EnginePolicy, "reply", wait_forever)
                os.kill(os.getpid(), signal.SIGTERM)
            return group_specs(self, split, *rest)

        patch.setattr(Evaluator, "_group_specs", terminate_in_second_evaluation)
        assert train_cli(["--resume", str(folder.path)], log) == 143
    assert f"Terminated. Progress is saved; resume with: uv run train --resume {folder.path}\n" in log.read_text()
    kept = folder.evaluations / "test-000000-sampled.jsonl"
    assert sorted(folder.evaluations.glob("test-*")) == [kept]
    before = kept.read_bytes()
    assert resume(folder) == 0
    assert folder.evaluated_steps("greedy", test=True) == [0, 3]
    assert kept.read_bytes() == before


@pytest.mark.long
def test_results_of_the_test_split_go_to_trackers_only(tmp_path: Path) -> None:
    config = RLConfig(
        **(COMMON | {"evaluation": Evaluation(tasks=2, test_tasks=2, samples=1, ks=(1,))}), steps=1, tasks_per_step=1
    )
    folder = create_run(tmp_path, config)
    assert resume(folder) == 0
    tracked: list[dict[str, float]] = []
    folder.listener = lambda line: tracked.append(trackers.flat(line))
    assert play_test(config, folder, RunConsole(Console(file=io.StringIO())), Stopping(), steps=1)
    names = {"step", "test/sampled", "test/greedy", "worlds/coin/Coin-v0/test/sampled"}
    assert all(names <= metrics.keys() for metrics in tracked)
    assert [metrics["step"] for metrics in tracked] == [0, 1]
    (line,) = folder.read_metrics()
    assert "test" not in line
    assert line["dev"].keys() == {"sampled", "greedy"}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "dev",
            r"no dev tasks .* its 16 train tasks are too few to set some .* --evaluation\.split train",
        ),
        ("test", r"no test tasks under these options, .* --evaluation\.no-test"),
    ],
)
def test_missing_splits_give_errors_with_a_remedy(missing: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def tasks(self: Coin) -> TaskSet:
        original = self._tasks
        return TaskSet(
            train=original.train,
            dev=None if missing == "dev" else original.dev,
            test=original.test[:0] if missing == "test" else original.test,
        )

    monkeypatch.setattr(Coin, "tasks", property(tasks))
    with pytest.raises(UsageError, match=message), open_environments(RL):
        pass
    evaluation = Evaluation(split="train" if missing == "dev" else "dev", test=missing != "test")
    with open_environments(replace(RL, evaluation=replace(evaluation, every=1))) as opened:
        assert len(opened) == 1


@pytest.mark.long
def test_a_run_without_a_test_has_no_test_results(
    tmp_path: Path, drawn_test_tasks: list[tuple[str, bool]], capfd: pytest.CaptureFixture[str]
) -> None:
    evaluation = Evaluation(split="train", tasks=2, samples=1, ks=(1,), test=False)
    config = RLConfig(**(COMMON | {"evaluation": evaluation}), steps=1, tasks_per_step=1)
    folder = create_run(tmp_path, config)
    assert resume(folder) == 0
    assert drawn_test_tasks == []
    assert json.loads(folder.summary.read_text())["evaluations"].keys() == {"train"}
    out = capfd.readouterr().out
    assert "2 train tasks, played during training; 95% intervals over tasks" in out
    assert "test tasks, played" not in out
