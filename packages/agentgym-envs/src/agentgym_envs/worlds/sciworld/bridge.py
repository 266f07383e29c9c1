"""The connection to one JVM: py4j's objects over one socket, without py4j's automatic behaviour.

py4j's own client resends a lost command (a step would be executed twice), logs every error, and calls Java from
Python's garbage collector, on any thread and in any child process. This client does none of these. It doesn't manage
processes or locks: the caller must serialize all calls.
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
    """A gateway to the JVM that listens on the local `port`; `bridge.java` gives access to its classes.

    Args:
        port: The JVM's port.
        token: The JVM's authentication token.
        patience: Timeout of each call in seconds.

    Raises:
        Py4JNetworkError: if the JVM can't be reached; later calls raise it after the JVM ended or a call timed out.
    """

    def __init__(self, port: int, token: str, patience: float) -> None:
        super().__init__(gateway_parameters=GatewayParameters(port=port, auth_token=token, read_timeout=patience))

    @property
    def java(self) -> Any:
        """The root of Java's packages and classes."""
        return self.jvm

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open, which it is until the first call that fails."""
        return self._gateway_client.is_connected

    @contextmanager
    def patience(self, seconds: float) -> Generator[None]:
        """Set another timeout for the calls inside the context."""
        with self._gateway_client.patience(seconds):
            yield

    def hang_up(self) -> None:
        """Close the connection without sending anything to the JVM. Idempotent."""
        self._gateway_client.hang_up()

    def _create_gateway_client(self) -> _Client:
        return _Client(self.gateway_parameters)


class _Client(GatewayClient):
    def __init__(self, parameters: Any) -> None:
        super().__init__(gateway_parameters=parameters)
        self._unneeded: deque[str] = deque()  # ids of Java objects that Python has released
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
        except BaseException:  # Ctrl-C too: the late answer would be read as the answer to the next command
            self.hang_up()
            raise
