"""The JVMs of this process: started when first needed, shared by games, stopped when the last game leaves.

Each process has its own: a forked child lets go of its parent's and starts others.
"""

from __future__ import annotations

import os
import threading

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.sciworld.jvm import Jvm, JvmSpec

_jvms: list[Jvm] = []
_lock = threading.RLock()


def jvms() -> tuple[Jvm, ...]:
    """The JVMs that run for this process now."""
    return tuple(jvm for jvm in _jvms if jvm.alive)


def enter(spec: JvmSpec, most: int) -> Jvm:
    """A place in a JVM that answers: a new one while fewer than `most` of that spec run, else that with the fewest
    games. One that isn't shared is always new. `leave` gives the place back.

    Raises:
        DependencyNotInstalled: when there is no suitable Java.
        EnvFault: when no JVM can be brought up.
    """
    while True:
        with _lock:
            _jvms[:] = jvms()
            running = [jvm for jvm in _jvms if jvm.spec == spec]
            fresh = len(running) < most or not spec.shared
            jvm = Jvm(spec) if fresh else min(running, key=lambda jvm: jvm.games)
            _jvms.extend([jvm] * fresh)
            jvm.games += 1
        # Asked without the lock: a game in there may take its time.
        if jvm.healthy():
            return jvm
        leave(jvm)
        jvm.stop()
        if fresh:
            raise EnvFault("A JVM came up and then did not answer.")


def join(jvm: Jvm) -> Jvm:
    """One more place in a JVM that the caller has a place in."""
    with _lock:
        jvm.games += 1
    return jvm


def leave(jvm: Jvm) -> None:
    """Give a place back; the last one to leave ends the JVM."""
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
