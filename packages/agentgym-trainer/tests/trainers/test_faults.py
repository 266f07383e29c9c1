"""What isn't finite, and what breaks in an environment or an engine, injected into runs: they end with the right code
and a sentence, what was saved is healthy, and `--resume` goes on as if nothing had been.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from threading import Event
from typing import Any

import pytest
import torch
from agentgym_envs import Feedback, Task
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.hf.engine import _Core as Core
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.runner import RolloutRunner
from coin_world import ENV, Coin
from faulty_runs import SAVED, STEPS, Begun, copied, goes_on, is_healthy, lines_of, resumed, words

# Something isn't finite.


def _bad_gradient(patch: pytest.MonkeyPatch) -> None:
    clip = Learner._clip

    def poisoned(self: Learner) -> dict[str, float]:
        next(p for p in self.actor.parameters() if p.grad is not None).grad.view(-1)[0] = math.nan
        return clip(self)

    patch.setattr(Learner, "_clip", poisoned)


def _bad_loss(patch: pytest.MonkeyPatch) -> None:
    score = resolve_name("agentgym_trainer.learner.learner:_score")

    def poisoned(model: Any, pack: Any) -> Any:
        scores = score(model, pack)
        return scores._replace(logprobs_M=scores.logprobs_M * math.nan) if model.training else scores

    patch.setattr("agentgym_trainer.learner.learner._score", poisoned)


def _bad_advantage(patch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def poisoned(self: Learner, batch: Any, experience: Any, credit: Any, *given: Any, **more: Any) -> Any:
        credit.advantages_N[:] = math.inf
        return update(self, batch, experience, credit, *given, **more)

    patch.setattr(Learner, "update", poisoned)


def _bad_weights(patch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def poisoned(self: Learner, *given: Any, **more: Any) -> Any:
        metrics = update(self, *given, **more)
        next(iter(self.policy.parameters())).data.view(-1)[0] = math.nan
        return metrics

    patch.setattr(Learner, "update", poisoned)


SKIPPED = (
    "3 optimizer steps in a row were skipped (optimizer.max_skips), because there were values that aren't finite in"
)
SICK: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "gradient": (_bad_gradient, f"error: {SKIPPED} the gradients."),
    "loss": (_bad_loss, f"error: {SKIPPED} the log-probabilities, the loss and the gradients."),
    "advantage": (_bad_advantage, f"error: {SKIPPED} the advantages, the loss and the gradients."),
    "weights": (_bad_weights, "weight tensors hold values that aren't finite."),
}


def test_a_sick_run_ends_and_names_the_last_healthy_checkpoint(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    for inject, sentence in SICK.values():
        with pytest.MonkeyPatch.context() as patch:
            inject(patch)
            assert resumed(run) == 1, sentence
        said = words(capfd)
        assert sentence in said
        assert f"The last healthy checkpoint is {run.checkpoints}/step-{SAVED:06d}, and nothing was saved" in said
        assert f"resume with: uv run train --resume {run.path}" in said
        assert not run.model.exists()
        is_healthy(run)
    goes_on(run, whole)


def test_a_step_that_is_skipped_is_told_of_and_counted_and_the_run_goes_on(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, begun = rl
    run, update = copied(begun, tmp_path), Learner.update

    def poisoned(self: Learner, batch: Any, experience: Any, credit: Any, *given: Any, **more: Any) -> Any:
        if len(lines_of(run)) == SAVED:
            credit.advantages_N[0] = math.nan  # of one token, and with it of one of the mini-batches of an epoch
        return update(self, batch, experience, credit, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", poisoned)
        assert resumed(run) == 0
    sick = "In step 2, 2 of the optimizer steps were skipped: values in the advantages, the loss and the gradients"
    assert f"{sick} weren't finite." in words(capfd)
    assert [line["skipped"] for line in lines_of(run)] == [0, 2, 0]
    assert [math.isfinite(line["loss"]) for line in lines_of(run)] == [True] * STEPS
    is_healthy(run, steps=STEPS)


# The environment.


def _deaf(*_: Any) -> Any:
    raise ValueError("the coin is square")


def _nan(_: Any) -> Any:
    return math.nan, False


def _garbage(*_: Any) -> Any:
    return None


def _bytes(*_: Any) -> Any:
    return Feedback(b"heads")  # pyright: ignore[reportArgumentType]


BROKEN: dict[str, tuple[str, Callable[..., Any], str]] = {
    "raising": ("_act", _deaf, f"{ENV.partition(':')[2]} raised ValueError: the coin is square (test_faults.py, line"),
    "raising at the start": ("_start", _deaf, "raised ValueError: the coin is square (test_faults.py, line"),
    "reward": ("_standing", _nan, "`score` must be a finite number in [0, 1], not nan (float)"),
    "garbage": ("_act", _garbage, "`feedback` must be a Feedback, not None (NoneType)"),
    "bytes": ("_act", _bytes, "`observation` must be text (str), not b'heads' (bytes)"),
}


def test_a_run_whose_environment_broke_is_saved_and_ends(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    for hook, broken, sentence in BROKEN.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Coin, hook, broken)
            assert resumed(run) == 1, sentence
        said = words(capfd)
        assert " of 16 episodes failed, more than --max-failed 0.05 allows" in said or "episodes all failed" in said
        assert sentence in said
        assert f"Progress is saved; resume with: uv run train --resume {run.path}" in said
        is_healthy(run)
    goes_on(run, whole)


def test_what_was_trained_since_the_last_checkpoint_is_saved_when_the_environment_breaks(
    rl: Begun, tmp_path: Path
) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    record = json.loads(run.settings.read_text())
    run.settings.write_text(json.dumps(record | {"config": record["config"] | {"save_every": 9}}))
    start = Coin._start

    def start_at_first(self: Coin, task: Task) -> str:
        return start(self, task) if len(lines_of(run)) == SAVED else _deaf()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_start", start_at_first)
        assert resumed(run) == 1
    is_healthy(run, steps=SAVED + 1)
    goes_on(run, whole)


def test_some_failed_episodes_are_borne(rl: Begun, tmp_path: Path) -> None:
    _, begun = rl
    run = copied(begun, tmp_path)
    unlucky, act = list[str](), Coin._act

    def act_mostly(self: Coin, action: str) -> Feedback:
        unlucky.append(self.task.id)
        return _deaf() if self.task.id == unlucky[0] else act(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_act", act_mostly)
        assert resumed(run) == 0
    assert 0 < sum(line["failed"] for line in lines_of(run)) < 10


@pytest.mark.long
def test_an_environment_that_hangs_fails_its_episodes(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = rl
    run, released = copied(begun, tmp_path), Event()
    settings = json.loads(run.settings.read_text())
    world = settings["config"]["world"]
    settings["config"]["world"] = world | {"backend": "thread", "deadline": 0.2}
    run.settings.write_text(json.dumps(settings))

    def hang(*_: Any) -> Feedback:
        released.wait()
        return Feedback("too late", terminated=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coin, "_act", hang)
        assert resumed(run) == 1
    released.set()
    said = words(capfd)
    assert "did not answer within 0.2 seconds and was replaced" in said
    is_healthy(run)
    settings["config"]["world"] = world
    run.settings.write_text(json.dumps(settings))
    goes_on(run, whole)


# The engine.


def _leave(*_: Any) -> Any:
    raise EngineGone("It has left for good.")


FORWARD = Core._forward


def _no_numbers(core: Core, *given: Any) -> torch.Tensor:
    return FORWARD(core, *given) * math.nan


DEAD: list[tuple[type, str, Callable[..., Any], str]] = [
    (RolloutRunner, "play", _leave, "It has left for good."),
    (Core, "_forward", _no_numbers, "EnvFault: The engine's log-probabilities of a reply aren't finite."),
]


@pytest.mark.long
def test_a_run_whose_engine_broke_is_saved_and_ends(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    for owner, method, broken, sentence in DEAD:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, method, broken)
            assert resumed(run) == 1, sentence
        said = words(capfd)
        assert sentence in said
        assert f"Progress is saved; resume with: uv run train --resume {run.path}" in said
        is_healthy(run)
    goes_on(run, whole)
