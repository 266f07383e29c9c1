"""Batch pending calls into one request per server. Each call completes as soon as its response line arrives.

There is no barrier: any number of batches may be in flight, and a slow call does not delay others. A call without a
response, or with a transient error, is retried unchanged, with the same idempotency key. The calls of a rejected batch
are resent one by one, since a single call may have caused the rejection. This module does not depend on sessions or
environments. Everything except `send` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.remote.answers import SessionLost, line_refusal, refusal
from agentgym_envs.remote.client import Client, Server

_CLOSED = "The connection to the servers was closed before the answer came."
_BUSY_REQUESTS = 2  # with this many requests in flight, waiting longer for more calls pays off
_BUSY_DELAY = 0.002  # seconds
_decode = json.JSONDecoder().raw_decode  # skips the extra checks of `json.loads`
_SPLIT_STATUSES = {400, 413, 422}  # statuses of a batch that a single call may have caused
_MAX_CALLS = 256
_MAX_CHARS = 1_000_000  # per request, unless a single call is longer


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call without an outcome yet."""

    server: Server
    path: str
    """`/v1/step` or `/v1/reset`."""
    body: str
    """JSON of the call, with its session and key."""
    settle: Callable[[dict[str, Any] | Exception], None]
    """Takes the outcome or an error; called exactly once, on the loop's thread."""
    retries: int = 0
    """Number of retries so far."""


class Batches:
    """Collects the calls of all slots and sends them to their servers in batches."""

    def __init__(self, loop: LoopThread, client: Client) -> None:
        self._loop = loop
        self._client = client
        self._queue: deque[PendingCall] = deque()
        self._flushing = False
        self._posting: set[asyncio.Task[None]] = set()
        self._backing_off: set[asyncio.Task[None]] = set()

    def send(self, call: PendingCall) -> None:
        """Queue a call for the next batch, from any thread, without waiting.

        Raises:
            RuntimeError: If the loop is stopped.
        """
        self._queue.append(call)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush, 0)

    def close(self) -> None:
        """Fail the queued calls. Sent ones fail when the loop stops and cancels their tasks."""
        while self._queue:
            self._queue.popleft().settle(SessionLost(_CLOSED))

    def _flush(self, seen: int) -> None:
        """Send the queue once it stops growing between two iterations of the loop. If enough requests are in flight,
        wait a little longer, since a request costs as much as a dozen calls.
        """
        loop = asyncio.get_running_loop()
        if len(self._queue) > seen:
            loop.call_soon(self._flush, len(self._queue))
        elif len(self._posting) >= _BUSY_REQUESTS:
            loop.call_later(_BUSY_DELAY, self._post_all)
        else:
            self._post_all()

    def _post_all(self) -> None:
        self._flushing = False  # first, so that a call queued from now on schedules another flush
        routes: dict[tuple[Server, str], list[PendingCall]] = defaultdict(list)
        while self._queue:
            call = self._queue.popleft()
            routes[call.server, call.path].append(call)
        for (server, path), calls in routes.items():
            for batch in _divided(calls):
                self._start(self._post(server, path, batch), self._posting)

    async def _post(self, server: Server, path: str, batch: list[PendingCall]) -> None:
        pending = dict(enumerate(batch))
        fault, wait = SessionLost(f"{server.url} responded to only some of the calls of a batch."), 0.0
        try:
            response = await self._client.stream(server, path, _joined(batch))
            try:
                if response.is_success:
                    await self._read(response, pending)
                else:
                    refused = refusal(response.status_code, await response.aread(), response.headers)
                    fault, wait = refused.error(server.url), refused.retry_after
                    if refused.status in _SPLIT_STATUSES and len(batch) > 1:
                        for call in pending.values():
                            self._start(self._post(server, path, [call]), self._posting)
                        pending.clear()
                    elif not refused.transient:
                        _fail(pending, fault)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            fault = self._client.missed(server, error)
        except Exception as error:  # noqa: BLE001 - the answer may be anything, and every call needs an outcome
            fault = SessionLost(f"{server.url} does not respond like an agentgym-envs server: {error!r}.")
        except asyncio.CancelledError:
            _fail(pending, SessionLost(_CLOSED))
            raise
        for call in pending.values():
            self._retry(call, fault, wait)

    async def _read(self, response: httpx.Response, pending: dict[int, PendingCall]) -> None:
        """Settle calls as their lines arrive. Calls without a line stay in `pending`."""
        rest = b""
        async for chunk in response.aiter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            for text in filter(None, lines):
                line: dict[str, Any] = _decode(text.decode())[0]
                call = pending[line["index"]]
                if line["status"] == 200:
                    call.settle(line["outcome"])
                else:
                    self._on_refusal(call, line)
                del pending[line["index"]]

    def _on_refusal(self, call: PendingCall, line: dict[str, Any]) -> None:
        refused = line_refusal(line)
        fault = refused.error(call.server.url)
        if refused.transient:
            self._retry(call, fault, 0.0)
        else:
            call.settle(fault)

    def _retry(self, call: PendingCall, fault: Exception, wait: float) -> None:
        """Send a call again after a backoff, or fail it after the last retry."""
        pauses = self._client.pauses
        if call.retries == len(pauses):
            call.settle(fault)
            return
        pause = self._client.jittered(pauses[call.retries], wait)
        call.retries += 1
        self._start(self._send_later(call, pause), self._backing_off)

    async def _send_later(self, call: PendingCall, pause: float) -> None:
        try:
            await asyncio.sleep(pause)
        except asyncio.CancelledError:
            call.settle(SessionLost(_CLOSED))
            raise
        self.send(call)

    def _start(self, coroutine: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
        """Run a coroutine as a task that is in `running` until it ends."""
        task = asyncio.create_task(coroutine)
        running.add(task)
        task.add_done_callback(running.discard)


def _joined(batch: Iterable[PendingCall]) -> bytes:
    return f'{{"calls":[{",".join(call.body for call in batch)}]}}'.encode()


def _divided(calls: list[PendingCall]) -> Iterator[list[PendingCall]]:
    """Split calls, in order, into batches within the size limits."""
    batch: list[PendingCall] = []
    chars = 0
    for call in calls:
        chars += len(call.body)
        if batch and (len(batch) == _MAX_CALLS or chars > _MAX_CHARS):
            yield batch
            batch, chars = [], len(call.body)
        batch.append(call)
    yield batch


def _fail(pending: dict[int, PendingCall], error: Exception) -> None:
    while pending:
        pending.popitem()[1].settle(error)
