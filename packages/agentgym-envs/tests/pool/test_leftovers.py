"""Tests that threads, processes and descriptors of a pool end with it, also if it isn't closed or if its owner dies."""

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


class Resources:
    """The threads, processes and descriptors at its creation, to compare with those later."""

    def __init__(self) -> None:
        gc.collect()
        self._threads = set(threading.enumerate())
        self._processes = set(psutil.Process().children(recursive=True))
        self._descriptors = psutil.Process().num_fds()

    def added(self) -> tuple[int, int]:
        """Return the numbers of processes and threads that were added."""
        processes = set(psutil.Process().children(recursive=True)) - self._processes
        return len(processes), len(set(threading.enumerate()) - self._threads)

    def nothing_left(self) -> bool:
        return self.added() == (0, 0) and psutil.Process().num_fds() <= self._descriptors


def start_pool(backend: str, slots: int, world: str | WorldSpec = TOY) -> EnvPool:
    pool = EnvPool(world, slots, backend)
    for slot in range(slots):
        pool.reset(slot)
        (result,) = pool.recv()
        check_ready("ready" if result.error is None else repr(result.error))
    return pool


def check_ready(line: str) -> None:
    """Skip environments that aren't installed, except in CI."""
    if line.startswith("DependencyNotInstalled"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(line)
    assert line == "ready"


@pytest.mark.parametrize(("backend", "added"), [("inline", (0, 0)), ("thread", (0, 1)), ("process", (1, 1))])
@pytest.mark.long
def test_pool_releases_processes_threads_and_descriptors(backend: str, added: tuple[int, int]) -> None:
    start_pool("inline", 1).close()  # fills imports and caches
    before = Resources()
    pool = start_pool(backend, 1)
    assert before.added() == added
    pool.close()
    eventually(before.nothing_left)
    pool = start_pool(backend, 1)
    del pool  # without closing it
    gc.collect()
    eventually(before.nothing_left)


def test_process_of_a_hanging_environment_is_released(gates: Any) -> None:
    before = Resources()
    with start_pool("process", 1) as pool:
        pool.send(0, gates.wait_action("gate"), deadline=0.01)
        pool.recv()
        eventually(before.nothing_left)


def test_unpicklable_options_leave_nothing_behind() -> None:
    before = Resources()
    with pytest.raises(ValueError, match="can't be sent"):
        EnvPool(TOY, backend="process", slots=2, options=[{}, {"judge": lambda: 1}])
    eventually(before.nothing_left)


def test_garbage_collected_host_ends() -> None:
    before = Resources()
    host = Host()
    assert host.alive
    assert before.added() == (1, 1)
    del host
    gc.collect()
    eventually(before.nothing_left)


def start_owner(script: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a process that runs `script` until its input ends; return it and the processes that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in (HERE, HERE.parent))},
    )
    assert process.stdout is not None
    check_ready(process.stdout.readline().strip())
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.long
@pytest.mark.parametrize("end", (signal.SIGKILL, *(pytest.param(end, marks=LONG) for end in (signal.SIGINT, None))))
def test_worker_processes_end_with_their_owner(end: signal.Signals | None) -> None:
    owner, processes = start_owner(SCRIPT.format(world=TOY, slots=1, backend="process", more=""))
    assert len(processes) == 2
    with owner:
        if end is not None:
            owner.send_signal(end)
    assert all_end(processes)


@LONG
def test_hanging_environment_ends_with_its_killed_owner(tmp_path: Path) -> None:
    hanging = f"pool.reset(0, 'door/test/0'); pool.recv(); pool.send(0, 'await {tmp_path / 'never'}')"
    owner, processes = start_owner(SCRIPT.format(world=TOY, slots=1, backend="process", more=hanging))
    with owner:
        eventually((tmp_path / "never.begun").exists)
        owner.kill()
    assert all_end(processes)


@LONG
@pytest.mark.parametrize(
    ("world", "backend"),
    [
        (WorldSpec("agentgym/SciWorld-v0", {"patience": 57.0}), "thread"),  # a value that no other test's JVM has
        (WorldSpec("agentgym/WebArena-v0"), "process"),
    ],
    ids=["SciWorld", "WebArena"],
)
def test_close_ends_processes_that_environments_started(world: WorldSpec, backend: str) -> None:
    before = psutil.Process().children(recursive=True)
    pool = start_pool(backend, 2, world)
    processes = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert len(processes) >= 1
    pool.close()
    assert all_end(processes)


@LONG
@pytest.mark.parametrize("world", ("agentgym/SciWorld-v0", "agentgym/WebArena-v0"))
def test_processes_of_environments_end_with_a_killed_owner(world: str) -> None:
    owner, processes = start_owner(SCRIPT.format(world=world, slots=2, backend="process", more=""))
    assert len(processes) >= 5  # a host, two workers, and the processes of each environment
    with owner:
        owner.kill()
    assert all_end(processes)
