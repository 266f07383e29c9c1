from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import psutil
import pytest
from agentgym_envs import make
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.sciworld import jvm as jvm_module
from agentgym_envs.worlds.sciworld import jvm_pool
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.jvm import Jvm, JvmSpec
from agentgym_envs.worlds.sciworld.simulator import find_jar
from gymnasium.vector import AsyncVectorEnv
from patience import eventually

TASK = "sciworld/train/boil/0"
ALONE = 3_600.0
"""A patience that no other test asks for: worlds of another patience are in other JVMs."""


def runs(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() != "" and not state.startswith("Z")


def ends(pid: int) -> bool:
    """Whether it ends."""
    return eventually(lambda: not runs(pid))


def started(**options: Any) -> SciWorld:
    world = SciWorld(patience=ALONE, **options)
    world.reset(options={"task": TASK})
    return world


def pid_of(world: SciWorld) -> int:
    assert world.jvm_pid is not None
    return world.jvm_pid


@pytest.fixture
def world() -> Iterator[SciWorld]:
    world = started()
    yield world
    world.close()


@pytest.mark.long
def test_a_jvm_killed_in_the_middle_is_a_fault_and_the_next_reset_has_another(world: SciWorld) -> None:
    before = world.step("look around")[0]
    killed = pid_of(world)
    os.kill(killed, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EnvFault, match=r"reset\(\) starts another"):
            world.step("look around")
    world.reset(options={"task": TASK})
    assert pid_of(world) != killed
    assert world.step("look around")[0] == before


@pytest.mark.long
def test_a_fault_says_nothing_to_the_terminal(world: SciWorld, capfd: pytest.CaptureFixture[str]) -> None:
    os.kill(pid_of(world), signal.SIGKILL)
    with pytest.raises(EnvFault):
        world.step("look around")
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_jvm_that_died_between_two_games_is_no_fault(world: SciWorld) -> None:
    os.kill(pid_of(world), signal.SIGKILL)
    assert world.reset(options={"task": TASK})[0].startswith("Your task")


@pytest.mark.long
def test_a_fault_is_shared_by_the_games_of_the_jvm_and_so_is_the_new_one(world: SciWorld) -> None:
    other = started()
    assert pid_of(other) == pid_of(world)
    os.kill(pid_of(world), signal.SIGKILL)
    for one in (world, other):
        with pytest.raises(EnvFault):
            one.step("look around")
    for one in (world, other):
        one.reset(options={"task": TASK})
    assert pid_of(other) == pid_of(world)
    other.close()


@pytest.mark.long
def test_a_hung_jvm_is_a_fault_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    hung = pid_of(world)
    (jvm,) = (jvm for jvm in jvm_pool.jvms() if jvm.pid == hung)
    calls = jvm.calls
    monkeypatch.setattr(jvm, "calls", lambda *_: calls(0.5))
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(EnvFault, match="died or hung"):
        world.step("look around")
    assert not runs(hung)
    world.close()


@pytest.mark.long
def test_a_jvm_that_hung_between_two_games_is_replaced_for_a_newcomer() -> None:
    first, second = SciWorld(patience=ALONE + 1), SciWorld(patience=ALONE + 1)
    first.reset(options={"task": TASK})
    hung = pid_of(first)
    os.kill(hung, signal.SIGSTOP)
    eventually(lambda: psutil.Process(hung).status() == psutil.STATUS_STOPPED)  # until then it may answer the newcomer
    second.reset(options={"task": TASK})
    assert pid_of(second) != hung
    assert not runs(hung)
    with pytest.raises(EnvFault):
        first.step("look around")
    first.close()
    second.close()


@pytest.mark.long
def test_the_last_world_to_close_ends_the_jvm(world: SciWorld) -> None:
    other, pid = started(), pid_of(world)
    world.close()
    assert runs(pid)
    assert other.step("look around")[0]
    other.close()
    assert ends(pid)
    with pytest.raises(EnvFault, match="is closed"):
        other.step("look around")


@pytest.mark.long
def test_a_world_that_is_forgotten_gives_its_place_back() -> None:
    pid = pid_of(started())
    assert ends(pid)


@pytest.mark.long
def test_worlds_spread_over_as_many_jvms_as_allowed() -> None:
    worlds = [started(jvms=2) for _ in range(4)]
    games = [pid_of(world) for world in worlds]
    assert len(set(games)) == 2
    assert {games.count(pid) for pid in games} == {2}
    for world in worlds:
        world.close()
    assert all(ends(pid) for pid in games)


def test_a_jvm_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_module, "_OPTIONS", ("-XX:NoSuchOption=1",))
    with pytest.raises(EnvFault, match=r"did not start: .*NoSuchOption"):
        Jvm(JvmSpec(find_jar(), ALONE))


def test_what_java_throws_is_a_fault_and_leaves_the_jvm_alive() -> None:
    jvm = jvm_pool.enter(JvmSpec(find_jar(), ALONE), 1)
    with pytest.raises(EnvFault, match="NumberFormatException"), jvm.calls():
        jvm.java.java.lang.Integer.parseInt("x")
    assert jvm.healthy()
    jvm_pool.leave(jvm)


@pytest.mark.long
def test_games_that_are_over_leave_no_memory_behind() -> None:
    world = started()
    (jvm,) = (jvm for jvm in jvm_pool.jvms() if jvm.pid == world.jvm_pid)

    def used() -> int:
        with jvm.calls():
            memory = jvm.java.java.lang.management.ManagementFactory.getMemoryMXBean()
            memory.gc()
            return memory.getHeapMemoryUsage().getUsed()

    gc.disable()  # Python's comes when it likes
    try:
        before = used()
        for _ in range(5):
            world.reset(options={"task": TASK})
        assert used() < before + 20_000_000
        other = started()
        world.close()
        assert used() < before + 20_000_000
        other.close()
    finally:
        gc.enable()


# Owners of all sorts. Each prints the id of its JVM and then ends in its own way.

_OWNER = """
import os, signal, sys
from agentgym_envs.worlds.sciworld.env import SciWorld
world = SciWorld()
world.reset(options={"task": "sciworld/train/boil/0"})
print(world.jvm_pid, flush=True)
"""
ENDS = {
    "close": "world.close()",
    "end": "",
    "exit": "sys.exit('no')",
    "os._exit": "os._exit(0)",
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "sigterm": "os.kill(os.getpid(), signal.SIGTERM)",
    "kill -9 while a fork lives on": (
        "if os.fork() == 0: os.close(1); os.close(2); signal.alarm(20); signal.pause()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    ),
}


EVERYDAY = {"kill -9 while a fork lives on"}


@pytest.mark.parametrize(
    "end",
    [pytest.param(code, id=name, marks=[pytest.mark.long] * (name not in EVERYDAY)) for name, code in ENDS.items()],
)
def test_no_jvm_outlives_its_owner(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", _OWNER + end], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    assert ends(int(done.stdout))


@pytest.mark.long
def test_ctrl_c_is_for_the_owner_alone() -> None:
    code = _OWNER + (
        "try: os.kill(0, signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt: print(world.step('look around')[0][:4])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, process_group=0)
    assert done.stdout.split()[1:] == ["This"], done.stderr


@pytest.mark.long
def test_a_forked_child_has_a_jvm_of_its_own(world: SciWorld) -> None:
    """The child meets a fault in the game it inherited, begins another, and the parent doesn't notice."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            world.step("look around")
        except EnvFault:
            world.reset(options={"task": TASK})
            os.write(write, str(world.jvm_pid).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    told = int(os.read(read, 100))
    os.close(read)
    assert told != pid_of(world)
    assert ends(told)
    assert world.step("look around")[0].startswith("This room")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_inside_gymnasiums_async_vector_env() -> None:
    one = functools.partial(gymnasium.make, "agentgym_envs:agentgym/SciWorld-v0")
    vec = AsyncVectorEnv([one, one])
    vec.reset(options={"task": TASK})
    pids = vec.get_attr("jvm_pid")
    assert len(set(pids)) == 2
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(EnvFault), pytest.warns():
        vec.step(("look around", "look around"))
    for process in vec.processes:
        process.kill()
        process.join()
    vec.close(terminate=True)
    assert all(ends(pid) for pid in pids)


@pytest.mark.long
def test_a_played_episode_survives_a_killed_jvm() -> None:
    """`play` retries the task on a fresh JVM."""
    from agentgym_envs import EpisodeSpec, Policy, Reply, TurnContext, play

    killed: list[int] = []

    class Killer(Policy):
        name = "killer"
        needs_env = True

        async def reply(self, context: TurnContext) -> Reply:
            inner: SciWorld = context.env.unwrapped  # pyright: ignore[reportOptionalMemberAccess]
            if not killed:
                killed.append(pid_of(inner))
                os.kill(killed[0], signal.SIGKILL)
            return Reply(inner.oracle() if inner.jvm_pid not in killed else "look around")

    env = make("agentgym/SciWorld-v0", patience=ALONE)
    episode = play(env, Killer(), EpisodeSpec("sciworld/test/lifespan-longest-lived/93"))  # pyright: ignore[reportArgumentType]
    assert killed
    assert episode.success
    env.close()
