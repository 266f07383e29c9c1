"""The JVMs of this process: started on demand, shared by games, and stopped when the last game leaves.

Each process has its own JVMs: a forked child drops its parent's and starts others.
"""

from __future__ import annotations

import os
import threading

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.sciworld.jvm import Jvm, JvmSpec

_jvms: list[Jvm] = []
_lock = threading.RLock()


def jvms() -> tuple[Jvm, ...]:
    """Return the running JVMs of this process."""
    return tuple(jvm for jvm in _jvms if jvm.alive)


def enter(spec: JvmSpec, most: int) -> Jvm:
    """Add a game to a healthy JVM: a new one while fewer than `most` of that spec run, else the one with fewest games.

    A spec that isn't shared always gets a new JVM. `leave` removes the game again.

    Raises:
        DependencyNotInstalled: if there is no suitable Java.
        EnvFault: if no JVM can be started.
    """
    while True:
        with _lock:
            _jvms[:] = jvms()
            running = [jvm for jvm in _jvms if jvm.spec == spec]
            fresh = len(running) < most or not spec.shared
            jvm = Jvm(spec) if fresh else min(running, key=lambda jvm: jvm.games)
            _jvms.extend([jvm] * fresh)
            jvm.games += 1
        # Checked without the lock: another game in this JVM may be slow.
        if jvm.healthy():
            return jvm
        leave(jvm)
        jvm.stop()
        if fresh:
            raise EnvFault("A JVM started, but did not answer.")


def join(jvm: Jvm) -> Jvm:
    """Add another game to a JVM that the caller already has a game in."""
    with _lock:
        jvm.games += 1
    return jvm


def leave(jvm: Jvm) -> None:
    """Remove a game; the JVM ends with its last game."""
    with _lock:
        jvm.games -= 1
        if jvm.games == 0:
            jvm.stop()
            _jvms[:] = [other for other in _jvms if other is not jvm]


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for jvm in _jvms:
        jvm.disown()
    _jvms.clear()


os.register_at_fork(after_in_child=_after_fork)
