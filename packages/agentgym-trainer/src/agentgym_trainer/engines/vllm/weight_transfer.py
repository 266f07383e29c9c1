"""Weight transfer over TCP: a learner offers its weights, and the workers of a vLLM server fetch them, without a disk.

It works the same for CPUs and GPUs, one machine and many, and any number of workers: each opens a connection of its own
to the learner's machine. This module depends on neither vLLM nor a model, and imports nothing else of this package, so
that a server's workers don't either.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SIZE = struct.Struct("!I")
_SECRET = 32
_SILENCE = 120.0
"""Seconds without a byte after which a worker gives up on the learner."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The address from which tensors can be fetched while they are offered."""

    host: str
    port: int
    secret: str
    """Required of every client."""


@asynccontextmanager
async def offered(
    tensors: Callable[[], Iterator[tuple[str, Tensor]]], *, host: str, dtype: torch.dtype | None = None
) -> AsyncGenerator[Offer]:
    """Serve the tensors to every client with the secret, until the block ends.

    Args:
        tensors: Returns a new iterator over all tensors for each client.
        host: Address of this machine as seen from the clients.
        dtype: Floating-point tensors are sent in this type, to which the clients would round them anyway.
    """
    secret = secrets.token_hex(_SECRET // 2)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        listener.setblocking(False)
        serving = asyncio.create_task(_serve(listener, secret, tensors, dtype))
        try:
            yield Offer(host, listener.getsockname()[1], secret)
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            if not serving.cancelled() and isinstance(failed := serving.exception(), ExceptionGroup):
                raise failed.exceptions[0]  # the error of the tensor iterator is the root cause


def fetch(host: str, port: int, secret: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors offered at this address, on the CPU, one after the other.

    Raises:
        ConnectionError: when the address can't be reached, or the stream ends early or is silent for too long.
    """
    try:
        connection = socket.create_connection((host, port), timeout=_SILENCE)
    except OSError as error:
        raise ConnectionError(
            f"The weights are offered at {host}:{port}, which can't be reached from {socket.gethostname()}: {error}. "
            "Workers of a vLLM server must be able to open connections to the machine that trains."
        ) from error
    with connection:
        connection.sendall(bytes(secret, "ascii"))
        while size := _SIZE.unpack(_filled(connection, bytearray(_SIZE.size)))[0]:
            name, dtype, shape = json.loads(_filled(connection, bytearray(size)))
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _filled(connection, _bytes(tensor))
            yield name, tensor


async def _serve(
    listener: socket.socket,
    secret: str,
    tensors: Callable[[], Iterator[tuple[str, Tensor]]],
    dtype: torch.dtype | None,
) -> None:
    """Accept connections until cancelled; an error of the tensor iterator ends it."""
    async with asyncio.TaskGroup() as group:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            group.create_task(_send(connection, secret, tensors, dtype))


async def _send(
    connection: socket.socket,
    secret: str,
    tensors: Callable[[], Iterator[tuple[str, Tensor]]],
    dtype: torch.dtype | None,
) -> None:
    loop = asyncio.get_running_loop()
    with connection:
        try:
            if not secrets.compare_digest(await _read_secret(connection), bytes(secret, "ascii")):
                return
            for name, tensor in tensors():
                head, data = _packed(name, tensor, dtype)
                await loop.sock_sendall(connection, _SIZE.pack(len(head)) + head)
                await loop.sock_sendall(connection, data)
            await loop.sock_sendall(connection, _SIZE.pack(0))
        except OSError:
            return  # the client's vLLM server reports the client's death


async def _read_secret(connection: socket.socket) -> bytes:
    """Read as many bytes as a secret has, or fewer if the stream ends."""
    received = b""
    while len(received) < _SECRET:
        more = await asyncio.get_running_loop().sock_recv(connection, _SECRET - len(received))
        if not more:
            break
        received += more
    return received


def _packed(name: str, tensor: Tensor, dtype: torch.dtype | None) -> tuple[bytes, Any]:
    """Return the header of a tensor and its bytes."""
    tensor = tensor.detach()
    tensor = tensor.to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
    head = bytes(json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]), "utf-8")
    return head, _bytes(tensor)


def _bytes(tensor: Tensor) -> Any:
    """Return a byte view of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _filled(connection: socket.socket, data: Any) -> Any:
    """Fill the buffer from the stream and return it."""
    view, got = memoryview(data), 0
    while got < len(view):
        try:
            more = connection.recv_into(view[got:])
        except OSError as error:  # timeouts and some network failures are no ConnectionErrors
            raise ConnectionError(f"The learner was lost before all weights were there: {error}.") from error
        if not more:
            raise ConnectionError("The learner hung up before all weights were there.")
        got += more
    return data
