"""Tests of environments that fail in a vector: a fault ends only their episode, and a failed reset raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import brittle_world
import psutil
import pytest
from agentgym_envs import EnvFault, Malformed
from agentgym_envs.pool import Call, EnvPool, Result, Step
from agentgym_envs.vector.vector_env import TextVectorEnv
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

DOOR = f"brittle_world:{brittle_world.ENV_ID}"
TASK = {"task": "door/train/1"}


@pytest.fixture
def vectors() -> Iterator[Any]:
    """Return a function that creates a vector of three environments."""
    created: list[TextVectorEnv] = []

    def make(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> TextVectorEnv:
        created.append(TextVectorEnv(DOOR, num_envs=3, autoreset_mode=mode, **options))
        created[-1].reset(options=TASK)
        return created[-1]

    yield make
    for vec in created:
        vec.close()


def test_a_process_that_was_killed_between_two_steps_ends_only_its_episode(vectors: Any) -> None:
    vec = vectors(backend="process")
    process = psutil.Process(vec.call("pid")[1])
    process.kill()
    process.wait(60)
    observations, _, terminated, truncated, infos = vec.step(["knock", "knock", "open"])
    assert (terminated.tolist(), truncated.tolist()) == ([False, False, True], [False, True, False])
    assert observations[0] == "You knocked 1 times."
    assert "ended" in infos["fault"][1]
    assert vec.step(["knock"] * 3)[0][1].startswith("Knock ")  # the first observation of the next task


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_fault_truncates_the_episode_without_a_score(vectors: Any, backend: str) -> None:
    vec = vectors(backend=backend)
    observations, rewards, terminated, truncated, infos = vec.step(["knock", "crash", "open"])
    assert observations == ("You knocked 1 times.", "Knock 1 times.", "The door opens.")
    assert rewards.tolist() == [0.5, 0.0, 0.0]
    assert terminated.tolist() == [False, False, True]
    assert truncated.tolist() == [False, True, False]
    assert infos["fault"].tolist() == [None, "the hinges gave way", None]
    assert infos["_fault"].tolist() == [False, True, False]
    assert infos["_score"].tolist() == infos["_success"].tolist() == [True, False, True]


def test_next_step_after_a_fault_resets(vectors: Any) -> None:
    vec = vectors()
    vec.step(["knock", "crash", "knock"])
    observations, _, _, truncated, infos = vec.step(["open", "open", "knock"])
    assert observations[0] == "The door opens."
    assert observations[1] == f"Knock {infos['task_id'][1].rpartition('/')[2]} times."
    assert not truncated.any()
    assert "fault" not in infos


def test_same_step_mode_puts_the_fault_in_final_info(vectors: Any) -> None:
    vec = vectors(AutoresetMode.SAME_STEP)
    observations, _, _, truncated, infos = vec.step(["knock", "crash", "knock"])
    assert truncated.tolist() == [False, True, False]
    assert infos["final_obs"].tolist() == [None, "Knock 1 times.", None]
    assert infos["final_info"]["fault"].tolist() == [None, "the hinges gave way", None]
    assert infos["_final_info"].tolist() == [False, True, False]
    assert observations[1] == f"Knock {infos['task_id'][1].rpartition('/')[2]} times."
    assert infos["_score"].all()


def test_disabled_autoreset_requires_a_reset_after_a_fault(vectors: Any) -> None:
    vec = vectors(AutoresetMode.DISABLED)
    *_, truncated, _ = vec.step(["knock", "crash", "knock"])
    with pytest.raises(ResetNeeded, match=r"\[1\] of 3 need a reset: .*reset_mask"):
        vec.step(["knock"] * 3)
    observations, infos = vec.reset(options={**TASK, "reset_mask": truncated})
    assert observations == ("You knocked 1 times.", "Knock 1 times.", "You knocked 1 times.")
    assert infos["_task_id"].tolist() == [False, True, False]
    assert vec.step(["open"] * 3)[1].tolist() == [0.5, 0.0, 0.5]


def test_failed_reset_is_retried_once(vectors: Any) -> None:
    vec = vectors()
    vec.call("break_starts", 1)
    observations, _ = vec.reset(options=TASK)
    assert observations == ("Knock 1 times.",) * 3
    assert vec.call("starts") == (3, 3, 3)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_reset_that_fails_twice_names_the_environment(vectors: Any, mode: AutoresetMode) -> None:
    vec = vectors(mode)
    vec.set_attr("broken_starts", [0, 0, 2])
    with pytest.raises(EnvFault, match=r"Environment 2 of 3 .*the frame is bent"):
        vec.reset(options=TASK)
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\]"):
        vec.step(["knock"] * 3)
    vec.reset(options=TASK)
    assert vec.step(["knock"] * 3)[0] == ("You knocked 1 times.",) * 3


def test_failed_autoreset_requires_a_reset_of_all(vectors: Any) -> None:
    vec = vectors(AutoresetMode.SAME_STEP)
    vec.set_attr("broken_starts", (0, 2, 0))
    with pytest.raises(EnvFault, match=r"Environment 1 of 3 .*the frame is bent"):
        vec.step(["knock", "open", "open"])
    with pytest.raises(ResetNeeded):
        vec.step(["knock"] * 3)
    vec.reset()
    vec.step(["knock"] * 3)


def test_bugs_in_an_environment_are_not_faults(vectors: Any) -> None:
    vec = vectors()
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        vec.step(["knock", "explode", "knock"])
    with pytest.raises(ResetNeeded):
        vec.step(["knock"] * 3)


def test_environment_that_ends_its_process_gets_a_new_one() -> None:
    with TextVectorEnv(DOOR, num_envs=2, backend="process") as vec:
        vec.reset(options=TASK)
        first = vec.call("pid")
        _, _, _, truncated, infos = vec.step(["knock", "die"])
        assert truncated.tolist() == [False, True]
        assert "process" in infos["fault"][1]
        observations, *_ = vec.step(["knock", "knock"])
        assert observations[0] == "You knocked 2 times."
        assert observations[1].startswith("Knock")
        second = vec.call("pid")
        assert second[0] == first[0]
        assert second[1] != first[1]


def test_hanging_environment_misses_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = EnvPool._submit

    def submit_expired(pool: EnvPool, slot: int, call: Call, *options: Any, **keywords: Any) -> Any:
        ticket = submit(pool, slot, call, *options, **keywords)
        if call == Step("hang"):
            ticket.expires = 0.0  # only the deadline of this call has passed
        return ticket

    monkeypatch.setattr(EnvPool, "_submit", submit_expired)
    try:
        with TextVectorEnv(DOOR, num_envs=2, backend="thread", deadline=77.0) as vec:
            vec.reset(options=TASK)
            _, _, _, truncated, infos = vec.step(["knock", "hang"])
            assert truncated.tolist() == [False, True]
            assert "did not answer within 77 seconds" in infos["fault"][1]
            assert vec.step(["knock", "knock"])[0][0] == "You knocked 2 times."
    finally:
        brittle_world.BrittleDoor.key.set()


def test_malformed_reply_reaches_the_environment(vectors: Any) -> None:
    observations, *_, infos = vectors().step([Malformed("hm", "Say something."), "knock", "knock"])
    assert observations[0] == "Say something."
    assert infos["valid"].tolist() == [False, True, True]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError])  # the latter from a caller's signal handler
@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_environments_can_be_reset_after_an_interrupt(
    vectors: Any, backend: str, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    vec = vectors(backend=backend)
    receive = EnvPool.recv

    def interrupted(pool: EnvPool, timeout: float | None = None) -> list[Result]:
        if timeout is None:
            raise interrupt
        return receive(pool, timeout)

    with monkeypatch.context() as patch, pytest.raises(interrupt):
        patch.setattr(EnvPool, "recv", interrupted)
        vec.step(["knock"] * 3)
    with pytest.raises(ResetNeeded):
        vec.step(["knock"] * 3)
    vec.reset(options=TASK)
    assert vec.step(["knock"] * 3)[0] == ("You knocked 1 times.",) * 3
