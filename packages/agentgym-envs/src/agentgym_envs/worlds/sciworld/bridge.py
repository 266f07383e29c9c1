"""The connection to one JVM: py4j's objects over one socket, without what py4j does by itself.

py4j's own client says a lost command once more (a step would be played twice), reports every fault to the log, and
calls Java from Python's garbage collector, on whatever thread and in whatever child process that happens. This one
does none of it. It knows nothing about processes or locks: one caller at a time is its user's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install

try:
    from py4j.java_gateway import (
        GatewayClient,
        GatewayConnection,
        GatewayParameters,
        JavaGateway,
        find_jar_path,
        quiet_close,
    )
    from py4j.protocol import MEMORY_COMMAND_NAME, MEMORY_DEL_SUBCOMMAND_NAME, Py4JError, Py4JNetworkError
except ImportError as missing:
    raise DependencyNotInstalled(
        f"agentgym/SciWorld-v0 needs the package py4j: {install('agentgym-envs[sciworld]')}"
    ) from missing

__all__ = ["Bridge", "Py4JError", "Py4JNetworkError", "find_jar_path"]


class Bridge(JavaGateway):
    """A gateway to the JVM that listens at `port` of this machine; `bridge.java` leads to its classes.

    Args:
        port: Of the JVM.
        token: What it wants to hear first.
        patience: Seconds after which a call that isn't answered fails.

    Raises:
        Py4JNetworkError: when the JVM isn't there; so does every later call once it is gone or too slow.
    """

    def __init__(self, port: int, token: str, patience: float) -> None:
        super().__init__(gateway_parameters=GatewayParameters(port=port, auth_token=token, read_timeout=patience))

    @property
    def java(self) -> Any:
        """The way to Java's classes."""
        return self.jvm

    @property
    def is_connected(self) -> bool:
        """Whether every call was answered so far."""
        return self._gateway_client.is_connected

    @contextmanager
    def patience(self, seconds: float) -> Generator[None]:
        """Other patience for the calls inside."""
        with self._gateway_client.patience(seconds):
            yield

    def hang_up(self) -> None:
        """Drop the connection without a word to the JVM. May be called twice."""
        self._gateway_client.hang_up()

    def _create_gateway_client(self) -> _Client:
        return _Client(self.gateway_parameters)


class _Client(GatewayClient):
    def __init__(self, parameters: Any) -> None:
        super().__init__(gateway_parameters=parameters)
        self._unneeded: deque[str] = deque()  # ids of Java objects that Python has let go of
        self._connection = GatewayConnection(parameters)
        self._connection.start()

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        while self._unneeded:
            self._send(f"{MEMORY_COMMAND_NAME}{MEMORY_DEL_SUBCOMMAND_NAME}{self._unneeded.popleft()}\ne\n")
        return self._send(command)

    def garbage_collect_object(self, target_id: str) -> None:
        self._unneeded.append(target_id)

    @contextmanager
    def patience(self, seconds: float) -> Generator[None]:
        usual = self._connection.socket.gettimeout()
        self._connection.socket.settimeout(seconds)
        try:
            yield
        finally:
            if self.is_connected:
                self._connection.socket.settimeout(usual)

    def hang_up(self) -> None:
        self.is_connected = False
        quiet_close(self._connection.stream)
        quiet_close(self._connection.socket)

    def _send(self, command: str) -> str:
        if not self.is_connected:
            raise Py4JNetworkError("not connected")
        try:
            return self._connection.send_command(command)
        except BaseException:  # Ctrl-C too: the answer that is still to come would be taken for the next one's
            self.hang_up()
            raise
