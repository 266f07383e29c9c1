"""A JVM as a child process that never outlives its owner.

Its stdin is a pipe that only the owner holds open, and the JVM exits when the pipe closes, even after `kill -9` of the
owner. Apart from the jar on the class path, nothing here is specific to ScienceWorld.
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
"""The oldest Java version on which transcripts were compared."""
_PING_PATIENCE = 10.0
_OPTIONS = (
    "-Xmx1g",  # a game takes 11 MB; with 32 games in 512 MB, garbage collection took two thirds of the time
    "-XX:+UseSerialGC",
    # ScienceWorld iterates over sets ordered by identity hash; a constant hash makes their order deterministic.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+ExitOnOutOfMemoryError",
    # The game prints numbers and changes case in the machine's locale.
    *("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"),
)


@dataclass(frozen=True, slots=True)
class JvmSpec:
    """The settings of a JVM; games with equal specs may share one."""

    jar: Path
    """The jar with the simulator."""
    patience: float
    """Timeout of each call in seconds."""
    shared: bool = True
    """False for a game that needs a JVM of its own."""


class Jvm:
    """A JVM and the connection to it. Use `java` only inside `calls()`, which admits one caller at a time.

    Raises:
        DependencyNotInstalled: if there is no suitable Java.
        EnvFault: if the JVM doesn't start.
    """

    def __init__(self, spec: JvmSpec) -> None:
        self.spec = spec
        self.games = 0
        """The number of games in it, maintained by `jvm_pool`."""
        self._lock = threading.RLock()
        self._process = subprocess.Popen(
            _command(spec.jar),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=spec.jar.parent,  # ScienceWorld reads a table from its working directory, or writes one if it's missing
            start_new_session=True,  # leaves Ctrl-C to the owner, which may finish its step first
        )
        self._bridge: Bridge | None = None
        try:
            self._bridge = self._connect()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, belongs to this process, and no call has failed yet."""
        return self._bridge is not None and self._bridge.is_connected and self._process.poll() is None

    @property
    def java(self) -> Any:
        """The root of Java's packages and classes: `jvm.java.java.util.Random()` creates a Java object."""
        if self._bridge is None:
            raise EnvFault("This JVM did not start.")
        return self._bridge.java

    @contextmanager
    def calls(self, patience: float | None = None) -> Generator[None]:
        """Lock the JVM for the calls inside the context.

        Args:
            patience: Timeout of each call in seconds; the spec's by default.

        Raises:
            EnvFault: if the connection fails, which ends the JVM, or if Java raises an exception.
        """
        with self._lock:
            if self._bridge is None or not self.alive:
                self.stop()
                raise EnvFault("The JVM of this game has ended; reset() starts another.")
            try:
                with self._bridge.patience(patience or self.spec.patience):
                    yield
            except Py4JNetworkError as error:
                self.stop()
                raise EnvFault("The JVM of this game died or hung; reset() starts another.") from error
            except Py4JError as error:
                raise EnvFault(f"The simulator failed: {error}") from error

    def let_go(self, java_object: Any) -> None:
        """Release a Java object; Java is notified with the next call."""
        if self._bridge is not None:
            self._bridge.detach(java_object)

    def healthy(self) -> bool:
        """Whether it responds to a ping."""
        try:
            with self.calls(min(self.spec.patience, _PING_PATIENCE)):
                self.java.java.lang.System.nanoTime()
        except EnvFault:
            return False
        return True

    def stop(self) -> None:
        """End the JVM if it still runs. Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if self._bridge is not None:
            self._bridge.hang_up()

    def disown(self) -> None:
        """Close the parent's connection in a forked child, without affecting the JVM."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._process.returncode = 0  # not a child of this process, so it can't be waited for
        self.stop()

    def _connect(self) -> Bridge:
        port, token = self._greeting()
        try:
            bridge = Bridge(port, token, self.spec.patience)
        except Py4JError as error:
            raise EnvFault(f"The JVM started, but could not be reached on port {port}.") from error
        # The simulator prints while it runs. The pipe isn't read, and a full pipe would block the JVM.
        system, io = bridge.java.java.lang.System, bridge.java.java.io
        system.setOut(io.PrintStream(io.OutputStream.nullOutputStream()))
        system.setErr(io.PrintStream(io.OutputStream.nullOutputStream()))
        return bridge

    def _greeting(self) -> tuple[int, str]:
        """Read port and token, the gateway's first two lines; output of the JVM itself may precede them."""
        watchdog = threading.Timer(self.spec.patience, self._process.kill)
        watchdog.start()
        try:
            lines: list[str] = []
            for line in self._process.stdout or ():
                lines.append(line.decode(errors="replace").strip())
                if len(lines) > 1 and lines[-2].isdigit():
                    return int(lines[-2]), lines[-1]
        finally:
            watchdog.cancel()
        raise EnvFault(f"The JVM did not start: {' '.join(lines) or 'it printed nothing'}")


def _command(jar: Path) -> list[str]:
    classes = os.pathsep.join((find_jar_path(), str(jar)))
    gateway = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
    return [str(find_java(OLDEST_JAVA)), *_OPTIONS, "-cp", classes, *gateway]
