"""Tensors over TCP: a learner offers its weights, the workers of a vLLM server fetch them. Nothing touches a disk.

The same for CPUs and GPUs, for one machine and many, whatever the number of workers: each opens a connection of its
own to the learner's machine. Importing this, a server's workers import nothing else of ours. It knows no model and no
vLLM.
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
"""Seconds without a byte after which a worker gives up the learner."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Where tensors can be fetched, for as long as they are offered."""

    host: str
    port: int
    secret: str
    """Who doesn't know it gets nothing."""


@asynccontextmanager
async def offered(
    tensors: Callable[[], Iterator[tuple[str, Tensor]]], *, host: str, dtype: torch.dtype | None = None
) -> AsyncGenerator[Offer]:
    """Serve the tensors to everyone who knows the secret, until the block ends.

    Args:
        tensors: gives all of them anew to each who asks.
        host: address of this machine as the others see it.
        dtype: floating-point tensors travel in this type: what the other side would round them to anyway.
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
                raise failed.exceptions[0]  # what the tensors raised is why the others failed


def fetch(host: str, port: int, secret: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors offered there, on the CPU, one after the other.

    Raises:
        ConnectionError: when nobody is there, or the stream ends too early or is silent for too long.
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
    """Take connections until cancelled; an error in the tensors themselves ends it."""
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
            if not secrets.compare_digest(await _said(connection), bytes(secret, "ascii")):
                return
            for name, tensor in tensors():
                head, data = _packed(name, tensor, dtype)
                await loop.sock_sendall(connection, _SIZE.pack(len(head)) + head)
                await loop.sock_sendall(connection, data)
            await loop.sock_sendall(connection, _SIZE.pack(0))
        except OSError:
            return  # The other side's death is told by its server.


async def _said(connection: socket.socket) -> bytes:
    """The first bytes that the other side sends, as many as a secret has."""
    said = b""
    while len(said) < _SECRET:
        more = await asyncio.get_running_loop().sock_recv(connection, _SECRET - len(said))
        if not more:
            break
        said += more
    return said


def _packed(name: str, tensor: Tensor, dtype: torch.dtype | None) -> tuple[bytes, Any]:
    """What announces a tensor, and its bytes."""
    tensor = tensor.detach()
    tensor = tensor.to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
    head = bytes(json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]), "utf-8")
    return head, _bytes(tensor)


def _bytes(tensor: Tensor) -> Any:
    """The memory of a tensor that lies in one piece on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _filled(connection: socket.socket, data: Any) -> Any:
    """These bytes, with what comes next."""
    view, got = memoryview(data), 0
    while got < len(view):
        try:
            more = connection.recv_into(view[got:])
        except OSError as error:  # silence, and networks that break, are no ConnectionErrors by themselves
            raise ConnectionError(f"The learner was lost before all weights were there: {error}.") from error
        if not more:
            raise ConnectionError("The learner hung up before all weights were there.")
        got += more
    return data
