"""One JVM as a child process, which no death of its owner leaves behind.

Its standard input is a pipe that the owner alone holds open, and the JVM ends when the pipe does: also after `kill -9`
of the owner. Knows nothing about ScienceWorld but that a jar is to be on the class path.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.java import find_java
from agentgym_envs.worlds.sciworld.bridge import Bridge, Py4JError, Py4JNetworkError, find_jar_path

OLDEST_JAVA = 17
"""The oldest Java that transcripts were compared on."""
_PING_PATIENCE = 10.0
_OPTIONS = (
    "-Xmx1g",  # a game is 11 MB; 32 in half of it kept the garbage collector busy two thirds of the time
    "-XX:+UseSerialGC",
    # ScienceWorld walks over sets that are ordered by identity hash; with a constant one they keep their own order.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+ExitOnOutOfMemoryError",
)


@dataclass(frozen=True, slots=True)
class JvmSpec:
    """What a JVM is started for; games with equal specs may share one."""

    jar: Path
    """The jar with the simulator."""
    patience: float
    """Seconds after which a call that isn't answered counts as broken."""
    shared: bool = True
    """False for a game that wants no other beside it."""


class Jvm:
    """A JVM and the connection to it. Every use of `java` belongs inside `calls()`, which lets in one caller at a time.

    Raises:
        DependencyNotInstalled: when there is no suitable Java.
        EnvFault: when the JVM doesn't come up.
    """

    def __init__(self, spec: JvmSpec) -> None:
        self.spec = spec
        self.games = 0
        """How many games are in it; `pool` counts them."""
        self._lock = threading.RLock()
        self._process = subprocess.Popen(
            _command(spec.jar),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=spec.jar.parent,  # where ScienceWorld looks for a table of its own, and would else write one
            start_new_session=True,  # Ctrl-C is for the owner, which may want to play its step to the end
        )
        self._bridge: Bridge | None = None
        try:
            self._bridge = self._connect()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, is this process's own and has answered so far."""
        return self._bridge is not None and self._bridge.is_connected and self._process.poll() is None

    @property
    def java(self) -> Any:
        """The way to Java's classes: `jvm.java.java.util.Random()` makes a Java object."""
        if self._bridge is None:
            raise EnvFault("This JVM never came up.")
        return self._bridge.java

    @contextmanager
    def calls(self, patience: float | None = None) -> Generator[None]:
        """Have the JVM for oneself.

        Args:
            patience: Seconds per call, where other than the spec's.

        Raises:
            EnvFault: for whatever goes wrong inside on the way to Java (which ends the JVM) or in Java.
        """
        with self._lock:
            if self._bridge is None or not self.alive:
                self.stop()
                raise EnvFault("The JVM of this game is gone; reset() brings up another.")
            try:
                with self._bridge.patience(patience or self.spec.patience):
                    yield
            except Py4JNetworkError as error:
                self.stop()
                raise EnvFault("The JVM of this game died or hung; reset() brings up another.") from error
            except Py4JError as error:
                raise EnvFault(f"The simulator failed: {error}") from error

    def let_go(self, java_object: Any) -> None:
        """Tell Java, with the next call, that nobody here needs an object any more."""
        if self._bridge is not None:
            self._bridge.detach(java_object)

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            with self.calls(min(self.spec.patience, _PING_PATIENCE)):
                self.java.java.lang.System.nanoTime()
        except EnvFault:
            return False
        return True

    def stop(self) -> None:
        """End the JVM, if it is still there. May be called twice."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if self._bridge is not None:
            self._bridge.hang_up()

    def disown(self) -> None:
        """In a forked child: let go of what is the parent's, without ending or disturbing it."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._process.returncode = 0  # not a child of this process: nothing to wait for
        self.stop()

    def _connect(self) -> Bridge:
        port, token = self._greeting()
        try:
            bridge = Bridge(port, token, self.spec.patience)
        except Py4JError as error:
            raise EnvFault(f"The JVM started and then could not be reached at port {port}.") from error
        # The simulator prints as it goes. Nobody would read it, and a full pipe would stop the JVM.
        system, io = bridge.java.java.lang.System, bridge.java.java.io
        system.setOut(io.PrintStream(io.OutputStream.nullOutputStream()))
        system.setErr(io.PrintStream(io.OutputStream.nullOutputStream()))
        return bridge

    def _greeting(self) -> tuple[int, str]:
        """The port and the token, the first things the gateway prints; what the JVM itself prints may come before."""
        watchdog = threading.Timer(self.spec.patience, self._process.kill)
        watchdog.start()
        try:
            said: list[str] = []
            for line in self._process.stdout or ():
                said.append(line.decode(errors="replace").strip())
                if len(said) > 1 and said[-2].isdigit():
                    return int(said[-2]), said[-1]
        finally:
            watchdog.cancel()
        raise EnvFault(f"The JVM did not come up: {' '.join(said) or 'it said nothing'}")


def _command(jar: Path) -> list[str]:
    classes = os.pathsep.join((find_jar_path(), str(jar)))
    gateway = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
    return [str(find_java(OLDEST_JAVA)), *_OPTIONS, "-cp", classes, *gateway]
