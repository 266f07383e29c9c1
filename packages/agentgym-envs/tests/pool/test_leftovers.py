"""Nothing that a pool starts outlives it: threads, processes, descriptors; also when it is forgotten or its process is
killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from agentgym_envs.pool import EnvPool, WorldSpec
from agentgym_envs.pool.process import Host
from faulty_worlds import TOY
from patience import all_end, eventually

LONG = pytest.mark.long
HERE = Path(__file__).parent
SCRIPT = """
import sys
from agentgym_envs.pool import EnvPool
from agentgym_envs.pool.process import Host
import faulty_worlds
pool, host = EnvPool({world!r}, {slots}, {backend!r}), Host()
for slot in range(len(pool)):
    pool.reset(slot)
    (result,) = pool.recv()
{more}
print("ready" if result.error is None else repr(result.error), flush=True)
sys.stdin.read()
"""


class Counted:
    """What there is now, to ask later what was added."""

    def __init__(self) -> None:
        gc.collect()
        self._threads = set(threading.enumerate())
        self._processes = set(psutil.Process().children(recursive=True))
        self._descriptors = psutil.Process().num_fds()

    def added(self) -> tuple[int, int]:
        """Processes and threads."""
        processes = set(psutil.Process().children(recursive=True)) - self._processes
        return len(processes), len(set(threading.enumerate()) - self._threads)

    def nothing_left(self) -> bool:
        return self.added() == (0, 0) and psutil.Process().num_fds() <= self._descriptors


def play(backend: str, slots: int, world: str | WorldSpec = TOY) -> EnvPool:
    pool = EnvPool(world, slots, backend)
    for slot in range(slots):
        pool.reset(slot)
        (result,) = pool.recv()
        check_up("ready" if result.error is None else repr(result.error))
    return pool


def check_up(said: str) -> None:
    """A world that isn't installed is skipped, but not in CI."""
    if said.startswith("DependencyNotInstalled"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(said)
    assert said == "ready"


@pytest.mark.parametrize(("backend", "added"), [("inline", (0, 0)), ("thread", (0, 1)), ("process", (1, 1))])
@pytest.mark.long
def test_a_pool_leaves_nothing_behind(backend: str, added: tuple[int, int]) -> None:
    play("inline", 1).close()  # what is imported and cached stays
    before = Counted()
    pool = play(backend, 1)
    assert before.added() == added
    pool.close()
    eventually(before.nothing_left)
    pool = play(backend, 1)
    del pool  # forgotten
    gc.collect()
    eventually(before.nothing_left)


def test_a_world_that_hangs_does_not_keep_its_process(gates: Any) -> None:
    before = Counted()
    with play("process", 1) as pool:
        pool.send(0, gates.closed("gate"), deadline=0.01)
        pool.recv()
        eventually(before.nothing_left)


def test_options_that_cannot_be_sent_leave_nothing_behind() -> None:
    before = Counted()
    with pytest.raises(ValueError, match="can't be sent"):
        EnvPool(TOY, backend="process", slots=2, options=[{}, {"judge": lambda: 1}])
    eventually(before.nothing_left)


def test_a_host_that_is_forgotten_ends() -> None:
    before = Counted()
    host = Host()
    assert host.alive
    assert before.added() == (1, 1)
    del host
    gc.collect()
    eventually(before.nothing_left)


def started(script: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A process that runs `script` until its input ends, and what it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in (HERE, HERE.parent))},
    )
    assert process.stdout is not None
    check_up(process.stdout.readline().strip())
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("end", (signal.SIGKILL, *(pytest.param(end, marks=LONG) for end in (signal.SIGINT, None))))
def test_processes_end_with_their_owner(end: signal.Signals | None) -> None:
    owner, processes = started(SCRIPT.format(world=TOY, slots=1, backend="process", more=""))
    assert len(processes) == 2
    with owner:
        if end is not None:
            owner.send_signal(end)
    assert all_end(processes)


@LONG
def test_a_world_that_hangs_ends_with_its_killed_owner(tmp_path: Path) -> None:
    hanging = f"pool.reset(0, 'door/test/0'); pool.recv(); pool.send(0, 'await {tmp_path / 'never'}')"
    owner, processes = started(SCRIPT.format(world=TOY, slots=1, backend="process", more=hanging))
    with owner:
        eventually((tmp_path / "never.begun").exists)
        owner.kill()
    assert all_end(processes)


@LONG
@pytest.mark.parametrize(
    ("world", "backend"),
    [
        (WorldSpec("agentgym/SciWorld-v0", {"patience": 57.0}), "thread"),  # which no other test's JVM has
        (WorldSpec("agentgym/WebArena-v0"), "process"),
    ],
    ids=["SciWorld", "WebArena"],
)
def test_worlds_with_processes_of_their_own_leave_none(world: WorldSpec, backend: str) -> None:
    before = psutil.Process().children(recursive=True)
    pool = play(backend, 2, world)
    processes = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert len(processes) >= 1
    pool.close()
    assert all_end(processes)


@LONG
@pytest.mark.parametrize("world", ("agentgym/SciWorld-v0", "agentgym/WebArena-v0"))
def test_their_processes_end_with_a_killed_owner(world: str) -> None:
    owner, processes = started(SCRIPT.format(world=world, slots=2, backend="process", more=""))
    assert len(processes) >= 5  # a host, two more with a world, and what each world has started
    with owner:
        owner.kill()
    assert all_end(processes)
