"""Tests of the JVMs of SciWorld: sharing, crashes and hangs, and cleanup."""

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
OWN_TIMEOUT = 3_600.0
"""A timeout that no other test uses, since environments with different timeouts don't share a JVM."""


def is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() != "" and not state.startswith("Z")


def ends(pid: int) -> bool:
    """Return whether the process ends."""
    return eventually(lambda: not is_running(pid))


def start_env(**options: Any) -> SciWorld:
    env = SciWorld(patience=OWN_TIMEOUT, **options)
    env.reset(options={"task": TASK})
    return env


def pid_of(env: SciWorld) -> int:
    assert env.jvm_pid is not None
    return env.jvm_pid


@pytest.fixture
def env() -> Iterator[SciWorld]:
    env = start_env()
    yield env
    env.close()


@pytest.mark.long
def test_texts_do_not_depend_on_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr -Duser.country=TR")
    env = SciWorld(patience=OWN_TIMEOUT + 1)  # a JVM of its own
    env.reset(options={"task": TASK})
    assert env.step("INVENTORY")[4]["valid"]  # in Turkish, its first letter is no i
    env.close()


@pytest.mark.long
def test_killed_jvm_is_a_fault_and_reset_starts_another(env: SciWorld) -> None:
    before = env.step("look around")[0]
    killed_pid = pid_of(env)
    os.kill(killed_pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EnvFault, match=r"reset\(\) starts another"):
            env.step("look around")
    env.reset(options={"task": TASK})
    assert pid_of(env) != killed_pid
    assert env.step("look around")[0] == before


@pytest.mark.long
def test_fault_prints_nothing_to_the_terminal(env: SciWorld, capfd: pytest.CaptureFixture[str]) -> None:
    os.kill(pid_of(env), signal.SIGKILL)
    with pytest.raises(EnvFault):
        env.step("look around")
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_jvm_that_died_between_episodes_is_replaced(env: SciWorld) -> None:
    os.kill(pid_of(env), signal.SIGKILL)
    assert env.reset(options={"task": TASK})[0].startswith("Your task")


@pytest.mark.long
def test_environments_of_a_jvm_share_its_fault_and_replacement(env: SciWorld) -> None:
    other = start_env()
    assert pid_of(other) == pid_of(env)
    os.kill(pid_of(env), signal.SIGKILL)
    for shared in (env, other):
        with pytest.raises(EnvFault):
            shared.step("look around")
    for shared in (env, other):
        shared.reset(options={"task": TASK})
    assert pid_of(other) == pid_of(env)
    other.close()


@pytest.mark.long
def test_hung_jvm_is_a_fault_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    env = start_env()
    hung = pid_of(env)
    (jvm,) = (jvm for jvm in jvm_pool.jvms() if jvm.pid == hung)
    calls = jvm.calls
    monkeypatch.setattr(jvm, "calls", lambda *_: calls(0.5))
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(EnvFault, match="died or hung"):
        env.step("look around")
    assert not is_running(hung)
    env.close()


@pytest.mark.long
def test_jvm_that_hung_between_episodes_is_replaced() -> None:
    first, second = SciWorld(patience=OWN_TIMEOUT + 1), SciWorld(patience=OWN_TIMEOUT + 1)
    first.reset(options={"task": TASK})
    hung = pid_of(first)
    os.kill(hung, signal.SIGSTOP)
    eventually(lambda: psutil.Process(hung).status() == psutil.STATUS_STOPPED)  # until then it may reply to `second`
    second.reset(options={"task": TASK})
    assert pid_of(second) != hung
    assert not is_running(hung)
    with pytest.raises(EnvFault):
        first.step("look around")
    first.close()
    second.close()


@pytest.mark.long
def test_closing_the_last_environment_ends_the_jvm(env: SciWorld) -> None:
    other, pid = start_env(), pid_of(env)
    env.close()
    assert is_running(pid)
    assert other.step("look around")[0]
    other.close()
    assert ends(pid)
    with pytest.raises(EnvFault, match="is closed"):
        other.step("look around")


@pytest.mark.long
def test_garbage_collected_environment_releases_its_jvm() -> None:
    pid = pid_of(start_env())
    assert ends(pid)


@pytest.mark.long
def test_environments_spread_over_the_allowed_jvms() -> None:
    envs = [start_env(jvms=2) for _ in range(4)]
    pids = [pid_of(env) for env in envs]
    assert len(set(pids)) == 2
    assert {pids.count(pid) for pid in pids} == {2}
    for env in envs:
        env.close()
    assert all(ends(pid) for pid in pids)


def test_failed_jvm_start_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_module, "_OPTIONS", ("-XX:NoSuchOption=1",))
    with pytest.raises(EnvFault, match=r"did not start: .*NoSuchOption"):
        Jvm(JvmSpec(find_jar(), OWN_TIMEOUT))


def test_java_exception_is_a_fault_and_leaves_the_jvm_alive() -> None:
    jvm = jvm_pool.enter(JvmSpec(find_jar(), OWN_TIMEOUT), 1)
    with pytest.raises(EnvFault, match="NumberFormatException"), jvm.calls():
        jvm.java.java.lang.Integer.parseInt("x")
    assert jvm.healthy()
    jvm_pool.leave(jvm)


@pytest.mark.long
def test_finished_episodes_leak_no_memory() -> None:
    env = start_env()
    (jvm,) = (jvm for jvm in jvm_pool.jvms() if jvm.pid == env.jvm_pid)

    def heap_bytes() -> int:
        with jvm.calls():
            memory = jvm.java.java.lang.management.ManagementFactory.getMemoryMXBean()
            memory.gc()
            return memory.getHeapMemoryUsage().getUsed()

    gc.disable()  # so that Python's doesn't run during the measurement
    try:
        before = heap_bytes()
        for _ in range(5):
            env.reset(options={"task": TASK})
        assert heap_bytes() < before + 20_000_000
        other = start_env()
        env.close()
        assert heap_bytes() < before + 20_000_000
        other.close()
    finally:
        gc.enable()


# Processes that own a JVM. Each prints the JVM's process id and then ends in a different way.

_OWNER_SCRIPT = """
import os, signal, sys
from agentgym_envs.worlds.sciworld.env import SciWorld
world = SciWorld()
world.reset(options={"task": "sciworld/train/boil/0"})
print(world.jvm_pid, flush=True)
"""
ENDINGS = {
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
    "ending",
    [pytest.param(code, id=name, marks=[pytest.mark.long] * (name not in EVERYDAY)) for name, code in ENDINGS.items()],
)
def test_jvm_does_not_outlive_its_owner(ending: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _OWNER_SCRIPT + ending], capture_output=True, text=True, check=False
    )
    assert process.stdout, process.stderr
    assert ends(int(process.stdout))


@pytest.mark.long
def test_ctrl_c_reaches_only_the_owner() -> None:
    code = _OWNER_SCRIPT + (
        "try: os.kill(0, signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt: print(world.step('look around')[0][:4])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, process_group=0)
    assert process.stdout.split()[1:] == ["This"], process.stderr


@pytest.mark.long
def test_forked_child_gets_its_own_jvm(env: SciWorld) -> None:
    """The child gets a fault in the inherited episode and starts another; the parent is unaffected."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            env.step("look around")
        except EnvFault:
            env.reset(options={"task": TASK})
            os.write(write, str(env.jvm_pid).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    child_jvm = int(os.read(read, 100))
    os.close(read)
    assert child_jvm != pid_of(env)
    assert ends(child_jvm)
    assert env.step("look around")[0].startswith("This room")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_async_vector_env_workers_have_their_own_jvms() -> None:
    make_one = functools.partial(gymnasium.make, "agentgym_envs:agentgym/SciWorld-v0")
    vec = AsyncVectorEnv([make_one, make_one])
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
def test_played_episode_survives_a_killed_jvm() -> None:
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

    env = make("agentgym/SciWorld-v0", patience=OWN_TIMEOUT)
    episode = play(env, Killer(), EpisodeSpec("sciworld/test/lifespan-longest-lived/93"))  # pyright: ignore[reportArgumentType]
    assert killed
    assert episode.success
    env.close()
