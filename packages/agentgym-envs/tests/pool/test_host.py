"""Tests of `Host`, a process with many slots, as used by servers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from agentgym_envs.core.registry import UnknownOption
from agentgym_envs.core.text_env import EnvFault, Malformed
from agentgym_envs.pool import Ask, Reset, Result, Step, WorldSpec
from agentgym_envs.pool.orders import packed, unpacked
from agentgym_envs.pool.process import Host
from agentgym_envs.pool.slots import Slot
from faulty_worlds import TOY, BrokenUnpickleError, UnpicklableFault
from gymnasium.error import DependencyNotInstalled, ResetNeeded
from patience import PATIENCE


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()
    assert host.join(PATIENCE)


def call(slot: Slot, request: Any) -> Result:
    results = SimpleQueue[Result]()
    slot.submit(request, results.put)
    return results.get(timeout=PATIENCE)


@pytest.mark.parametrize("backend", ("inline", "thread", None))
def test_slots_share_only_their_process(host: Host, backend: str | None) -> None:
    slots = [host.open(number, WorldSpec(TOY), backend) for number in (5, 5, 7)]
    for knocks, slot in enumerate(slots):
        assert call(slot, Reset(f"door/test/{knocks}")).observation == f"Hello. Knock {knocks} times."
    assert call(slots[0], Step("knock"))[:2] == (5, "You knocked 1 times.")
    assert call(slots[2], Step("knock"))[:2] == (7, "You knocked 1 times.")
    assert call(slots[1], Step(Malformed("hm", "Say knock."))).observation == "Say knock."
    assert {call(slot, Ask("pid")).value for slot in slots} == {host.pid}
    slots[1].replace()
    assert isinstance(call(slots[1], Step("knock")).error, ResetNeeded)
    assert call(slots[0], Step("knock")).observation == "You knocked 2 times."
    for slot in slots:
        slot.close()
        slot.close()
        assert slot.join(PATIENCE)
        assert isinstance(call(slot, Step("knock")).error, EnvFault)
        slot.replace()
    assert host.alive


@pytest.mark.parametrize("backend", ("inline", "thread"))
def test_hanging_environment_is_replaced_and_others_continue(host: Host, backend: str, gates: Any) -> None:
    hanging, other = (host.open(number, WorldSpec(TOY), backend) for number in range(2))
    for slot in (hanging, other):
        call(slot, Reset("door/test/0"))
    late = SimpleQueue[Result]()
    hanging.submit(Step(gates.wait_action("gate")), late.put)
    if backend == "inline":  # the other slot waits for its turn
        waiting = SimpleQueue[Result]()
        other.submit(Step("knock"), waiting.put)
        hanging.replace()
        assert waiting.get(timeout=PATIENCE).observation == "You knocked 1 times."
    else:
        assert call(other, Step("knock")).observation == "You knocked 1 times."
        hanging.replace()
    assert isinstance(call(hanging, Step("knock")).error, ResetNeeded)
    gates.open("gate")
    assert call(hanging, Reset("door/test/2")).observation == "Hello. Knock 2 times."
    assert call(other, Step("knock")).observation == "You knocked 2 times."
    assert late.empty()
    for slot in (hanging, other):
        slot.close()
        assert slot.join(PATIENCE)


def test_unpicklable_values_fail_only_that_call(host: Host) -> None:
    slot = host.open(0, WorldSpec(TOY), "inline")
    error = call(slot, Ask("step", (threading.Lock(),))).error
    assert isinstance(error, TypeError) and "can't be sent to another process" in str(error)
    error = call(slot, Ask("generator")).error
    assert isinstance(error, TypeError) and "generator can't be sent to another process" in str(error)
    with pytest.raises(ValueError, match=r"Toy-v0 or one of its options can't be sent to another process"):
        host.open(0, WorldSpec(TOY, {"judge": lambda: 1}))
    slot.close()


def test_failed_construction_is_reported_at_every_call(host: Host) -> None:
    for option, kind, message in (
        ("lacking", DependencyNotInstalled, "pip install child"),
        ("colour", UnknownOption, "co"),
    ):
        slot = host.open(0, WorldSpec(TOY, {option: True}), "inline")
        for _ in range(2):
            error = call(slot, Reset()).error
            assert type(error) is kind and message in str(error)
        slot.close()


def test_error_has_a_note_where_it_was_raised(host: Host) -> None:
    slot = host.open(0, WorldSpec(TOY), "inline")
    call(slot, Reset("door/test/0"))
    error = call(slot, Step("raise value")).error
    assert error is not None
    (note,) = error.__notes__
    assert note.startswith(f"In process {host.pid}:") and "faulty_worlds.py" in note
    slot.close()


def test_values_that_cannot_be_unpickled_fail_only_that_slot(host: Host) -> None:
    module = type(sys)("only_here")
    exec("class Judge: pass", module.__dict__)
    sys.modules["only_here"] = module
    try:
        slot = host.open(0, WorldSpec(TOY, {"judge": module.Judge()}), "inline")
        for _ in range(2):
            assert isinstance(call(slot, Reset()).error, ModuleNotFoundError)
        other = host.open(1, WorldSpec(TOY), "inline")
        assert isinstance(call(other, Ask("step", (module.Judge(),))).error, ModuleNotFoundError)
    finally:
        del sys.modules["only_here"]
    slot.close()
    other.close()


def test_death_of_the_process_fails_every_call(gates: Any) -> None:
    host = Host()
    slots = [host.open(number, WorldSpec(TOY), "thread") for number in range(3)]
    results = SimpleQueue[Result]()
    for slot in slots:
        call(slot, Reset("door/test/0"))
        slot.submit(Step(gates.wait_action("gate")), results.put)
    os.kill(host.pid, signal.SIGKILL)
    faults = sorted((results.get(timeout=PATIENCE) for _ in slots), key=lambda result: result.slot)
    for number, result in enumerate(faults):
        assert isinstance(result.error, EnvFault)
        assert str(result.error) == f"{TOY} in slot {number}: its process (pid {host.pid}) was ended by signal 9."
    for slot in slots:
        slot.replace()
        assert isinstance(call(slot, Reset()).error, EnvFault)
        slot.close()
        assert slot.join(PATIENCE)
    assert host.join(PATIENCE) and not host.alive
    host.kill()
    host.close()


def test_output_of_environments_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    host = Host()
    slot = host.open(0, WorldSpec(TOY))
    call(slot, Reset("door/test/0"))
    assert call(slot, Step("print many words")).observation == "done"
    host.close()
    assert host.join(PATIENCE)
    captured = capfd.readouterr()
    assert captured.out == "" and "many words" in captured.err


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_child_cannot_use_its_parents_host(host: Host) -> None:
    slot = host.open(0, WorldSpec(TOY))
    call(slot, Reset("door/test/1"))

    def child(answers: Any) -> None:
        error = call(slot, Step("knock")).error
        host.close()
        host.kill()
        answers.send((type(error).__name__, str(error)))

    receiver, sender = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    name, message = receiver.recv()
    process.join()
    assert name == "EnvFault" and "belongs to the process that this one was forked from" in message
    assert call(slot, Step("knock")).observation == "You knocked 1 times."
    slot.close()


WITH_LOCK = Exception("locked")
WITH_LOCK.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
UNDECODABLE = UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (EnvFault("the tower fell"), EnvFault, "the tower fell"),
        (KeyError("a", 1), KeyError, "('a', 1)"),
        (ValueError("no"), ValueError, "no"),
        (ResetNeeded("first"), ResetNeeded, "first"),
        (DependencyNotInstalled("pip"), DependencyNotInstalled, "pip"),
        (BrokenUnpickleError(7, "odd"), ValueError, "7 is odd"),
        (UnpicklableFault(), EnvFault, "the tower fell"),
        (WITH_LOCK, RuntimeError, "Exception: locked"),
        (UNDECODABLE, UnicodeDecodeError, "'utf-8' codec can't decode byte 0x78 in position 0: bad"),
    ],
)
def test_errors_survive_packing(error: Exception, kind: type[Exception], message: str) -> None:
    received = unpacked(3, packed(Result(0, error=error)))
    assert received.slot == 3 and type(received.error) is kind
    assert str(received.error) == message
