"""Tests of RL runs with injected faults: non-finite values, and broken environments and engines.

Runs end with the right exit code and a message, their checkpoints are intact, and `--resume` continues identically.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from threading import Event
from typing import Any

import pytest
import torch
from agentgym_envs import Feedback, Task, Tasks
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.hf.engine import _Core as Core
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_world import ENV, Coin
from faulty_runs import (
    SAVED,
    STEPS,
    CompleteAndPartialRun,
    assert_checkpoints_intact,
    assert_resumes_identically,
    copy_run,
    read_metrics,
    resume,
    stderr_text,
)

# Non-finite values.


def _nan_gradient(patch: pytest.MonkeyPatch) -> None:
    clip = Learner._clip

    def poisoned(self: Learner) -> dict[str, float]:
        next(p for p in self.actor.parameters() if p.grad is not None).grad.view(-1)[0] = math.nan
        return clip(self)

    patch.setattr(Learner, "_clip", poisoned)


def _nan_loss(patch: pytest.MonkeyPatch) -> None:
    score = resolve_name("agentgym_trainer.learner.learner:_score")

    def poisoned(model: Any, micro_batch: Any) -> Any:
        outputs = score(model, micro_batch)
        return outputs._replace(logprobs_M=outputs.logprobs_M * math.nan) if model.training else outputs

    patch.setattr("agentgym_trainer.learner.learner._score", poisoned)


def _infinite_advantage(patch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def poisoned(self: Learner, batch: Any, token_batch: Any, advantages: Any, *args: Any, **kwargs: Any) -> Any:
        advantages.advantages_N[:] = math.inf
        return update(self, batch, token_batch, advantages, *args, **kwargs)

    patch.setattr(Learner, "update", poisoned)


def _nan_weights(patch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def poisoned(self: Learner, *args: Any, **kwargs: Any) -> Any:
        metrics = update(self, *args, **kwargs)
        next(iter(self.policy.parameters())).data.view(-1)[0] = math.nan
        return metrics

    patch.setattr(Learner, "update", poisoned)


SKIPPED = (
    "3 optimizer steps in a row were skipped (optimizer.max_skips), because there were values that aren't finite in"
)
NON_FINITE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "gradient": (_nan_gradient, f"error: {SKIPPED} the gradients."),
    "loss": (_nan_loss, f"error: {SKIPPED} the log-probabilities, the loss and the gradients."),
    "advantage": (_infinite_advantage, f"error: {SKIPPED} the advantages, the loss and the gradients."),
    "weights": (_nan_weights, "weight tensors hold values that aren't finite."),
}


def test_non_finite_values_end_the_run_naming_the_last_checkpoint(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    for inject, message in NON_FINITE.values():
        with pytest.MonkeyPatch.context() as patch:
            inject(patch)
            assert resume(run) == 1, message
        stderr = stderr_text(capfd)
        assert message in stderr
        assert f"The last healthy checkpoint is {run.checkpoints}/step-{SAVED:06d}, and nothing was saved" in stderr
        assert f"resume with: uv run train --resume {run.path}" in stderr
        assert not run.model.exists()
        assert_checkpoints_intact(run)
    assert_resumes_identically(run, complete)


def test_non_finite_values_before_the_first_checkpoint_end_the_run_with_the_setting_to_change(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, partial = rl
    run = copy_run(partial, tmp_path)
    for removed, setting in ((run.checkpoints, "optimizer.lr"), (run.start, "warm_start.lr")):
        shutil.rmtree(removed)
        with pytest.MonkeyPatch.context() as patch:
            _nan_gradient(patch)
            assert resume(run) == 1
        stderr = stderr_text(capfd)
        assert f"{NON_FINITE['gradient'][1]} No checkpoint was written before that" in stderr or not run.start.exists()
        assert stderr.endswith(f"to change settings, such as to a lower {setting}, start a new run.")


def test_skipped_steps_are_logged_and_counted_and_the_run_continues(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, partial = rl
    run, update = copy_run(partial, tmp_path), Learner.update

    def poisoned(self: Learner, batch: Any, token_batch: Any, advantages: Any, *args: Any, **kwargs: Any) -> Any:
        if len(read_metrics(run)) == SAVED:
            advantages.advantages_N[0] = math.nan  # affects one mini-batch per epoch
        return update(self, batch, token_batch, advantages, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", poisoned)
        assert resume(run) == 0
    notice = "In step 2, 2 of the optimizer steps were skipped: values in the advantages, the loss and the gradients"
    assert f"{notice} weren't finite." in stderr_text(capfd)
    assert [line["skipped"] for line in read_metrics(run)] == [0, 2, 0]
    assert [math.isfinite(line["loss"]) for line in read_metrics(run)] == [True] * STEPS
    assert_checkpoints_intact(run, steps=STEPS)


# Broken environments.


def _raise(*_: Any) -> Any:
    raise ValueError("the coin is square")


def _nan_score(_: Any) -> Any:
    return math.nan, False


def _no_feedback(*_: Any) -> Any:
    return None


def _bytes_observation(*_: Any) -> Any:
    return Feedback(b"heads")  # pyright: ignore[reportArgumentType]


BROKEN_HOOKS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "raising": ("_act", _raise, f"{ENV.partition(':')[2]} raised ValueError: the coin is square (test_faults.py, line"),
    "raising at the start": ("_start", _raise, "raised ValueError: the coin is square (test_faults.py, line"),
    "reward": ("_standing", _nan_score, "`score` must be a finite number in [0, 1], not nan (float)"),
    "garbage": ("_act", _no_feedback, "`feedback` must be a Feedback, not None (NoneType)"),
    "bytes": ("_act", _bytes_observation, "`observation` must be text (str), not b'heads' (bytes)"),
}


@pytest.mark.long
def test_broken_environments_end_the_run_after_saving(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    for hook, broken, message in BROKEN_HOOKS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Coin, hook, broken)
            assert resume(run) == 1, message
        stderr = stderr_text(capfd)
        assert " of 16 episodes failed, more than --max-failed 0.05 allows" in stderr or "episodes all failed" in stderr
        assert message in stderr
        assert f"Progress is saved; resume with: uv run train --resume {run.path}" in stderr
        assert_checkpoints_intact(run)
    assert_resumes_identically(run, complete)


def test_tasks_that_cannot_be_built_end_the_run_after_saving(
    rl: CompleteAndPartialRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, partial = rl
    run = copy_run(partial, tmp_path)
    collect = RLLoop.collect

    def collect_without_tasks(loop: RLLoop, state: Any) -> Any:
        monkeypatch.setattr(Tasks, "__getitem__", _raise)  # the run needed a task before, to open its environments
        return collect(loop, state)

    monkeypatch.setattr(RLLoop, "collect", collect_without_tasks)
    assert resume(run) == 1
    stderr = stderr_text(capfd)
    assert "raised ValueError: the coin is square" in stderr
    assert f"Progress is saved; resume with: uv run train --resume {run.path}" in stderr
    assert_checkpoints_intact(run)


def test_broken_environments_save_steps_since_the_last_checkpoint(rl: CompleteAndPartialRun, tmp_path: Path) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    record = json.loads(run.settings.read_text())
    run.settings.write_text(json.dumps(record | {"config": record["config"] | {"save_every": 9}}))
    start = Coin._start

    def start_only_at_first(self: Coin, task: Task) -> str:
        return start(self, task) if len(read_metrics(run)) == SAVED else _raise()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_start", start_only_at_first)
        assert resume(run) == 1
    assert_checkpoints_intact(run, steps=SAVED + 1)
    assert_resumes_identically(run, complete)


def test_a_few_failed_episodes_are_tolerated(rl: CompleteAndPartialRun, tmp_path: Path) -> None:
    _, partial = rl
    run = copy_run(partial, tmp_path)
    task_ids, act = list[str](), Coin._act

    def act_unless_first_task(self: Coin, action: str) -> Feedback:
        task_ids.append(self.task.id)
        return _raise() if self.task.id == task_ids[0] else act(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_act", act_unless_first_task)
        assert resume(run) == 0
    assert 0 < sum(line["failed"] for line in read_metrics(run)) < 10


@pytest.mark.long
def test_hanging_environments_fail_their_episodes(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run, released = copy_run(partial, tmp_path), Event()
    settings = json.loads(run.settings.read_text())
    world = settings["config"]["world"]
    settings["config"]["world"] = world | {"backend": "thread", "deadline": 0.2}
    run.settings.write_text(json.dumps(settings))

    def hang(*_: Any) -> Feedback:
        released.wait()
        return Feedback("too late", terminated=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_act", hang)
        assert resume(run) == 1
    released.set()
    stderr = stderr_text(capfd)
    assert "did not answer within 0.2 seconds and was replaced" in stderr
    assert_checkpoints_intact(run)
    settings["config"]["world"] = world
    run.settings.write_text(json.dumps(settings))
    assert_resumes_identically(run, complete)


# Broken engines.


def _raise_engine_gone(*_: Any) -> Any:
    raise EngineGone("It has left for good.")


FORWARD = Core._forward


def _nan_logits(core: Core, *args: Any) -> torch.Tensor:
    return FORWARD(core, *args) * math.nan


BROKEN_ENGINES: list[tuple[type, str, Callable[..., Any], str]] = [
    (RolloutRunner, "play", _raise_engine_gone, "It has left for good."),
    (Core, "_forward", _nan_logits, "EnvFault: The engine's log-probabilities of a reply aren't finite."),
]


@pytest.mark.long
def test_broken_engines_end_the_run_after_saving(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    for owner, method, broken, message in BROKEN_ENGINES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, method, broken)
            assert resume(run) == 1, message
        stderr = stderr_text(capfd)
        assert message in stderr
        assert f"Progress is saved; resume with: uv run train --resume {run.path}" in stderr
        assert_checkpoints_intact(run)
    assert_resumes_identically(run, complete)
