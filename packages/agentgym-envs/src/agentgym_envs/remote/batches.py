"""Calls that wait at the same time go to their server as one request; each is answered as soon as its line arrives.

There is no barrier: any number of batches are on their way at once, and a slow call holds up no other. A call whose
answer didn't come, or said to come back later, is sent again as it was, idempotency key included. Calls that are
refused as one are sent one by one, for a single one may be to blame. Knows nothing of sessions or worlds. Everything
but `send` happens on the loop.
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
_ENOUGH = 2  # requests on their way
_MOMENT = 0.002  # seconds
_decode = json.JSONDecoder().raw_decode  # without what `json.loads` does before and after
_FAULT_OF_ONE = {400, 413, 422}  # statuses of a batch of which one call may be to blame
_MOST_CALLS = 256
_MOST_CHARS = 1_000_000  # of a request, unless a single call has more


@dataclass(eq=False, slots=True)
class Errand:
    """A call on its way."""

    server: Server
    path: str
    """`/v1/step` or `/v1/reset`."""
    body: str
    """JSON of the call, with its session and key."""
    settle: Callable[[dict[str, Any] | Exception], None]
    """Takes the outcome, or what went wrong; called once, on the loop."""
    tries: int = 0
    """How often it was sent again."""


class Batches:
    """The calls of all slots to all servers."""

    def __init__(self, loop: LoopThread, client: Client) -> None:
        self._loop = loop
        self._client = client
        self._waiting: deque[Errand] = deque()
        self._gathering = False
        self._posting: set[asyncio.Task[None]] = set()
        self._pausing: set[asyncio.Task[None]] = set()

    def send(self, errand: Errand) -> None:
        """Send it with those that wait already. From any thread; returns at once.

        Raises:
            RuntimeError: when the loop is stopped.
        """
        self._waiting.append(errand)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._gather, 0)

    def close(self) -> None:
        """Settle what wasn't sent yet, as a fault; what was is cancelled with the loop."""
        while self._waiting:
            self._waiting.popleft().settle(SessionLost(_CLOSED))

    def _gather(self, seen: int) -> None:
        """Send what waits, once no more comes: whoever sends now gets on with it while the loop looks for news. Where
        the servers have enough to do, a moment longer is waited, for a request costs as much as a dozen calls.
        """
        loop = asyncio.get_running_loop()
        if len(self._waiting) > seen:
            loop.call_soon(self._gather, len(self._waiting))
        elif len(self._posting) >= _ENOUGH:
            loop.call_later(_MOMENT, self._post_all)
        else:
            self._post_all()

    def _post_all(self) -> None:
        self._gathering = False  # before they are taken: what comes from here on calls again
        ways: dict[tuple[Server, str], list[Errand]] = defaultdict(list)
        while self._waiting:
            errand = self._waiting.popleft()
            ways[errand.server, errand.path].append(errand)
        for (server, path), errands in ways.items():
            for batch in _divided(errands):
                self._start(self._post(server, path, batch), self._posting)

    async def _post(self, server: Server, path: str, batch: list[Errand]) -> None:
        open_ = dict(enumerate(batch))
        fault, wait = SessionLost(f"{server.url} answered only a part of the calls."), 0.0
        try:
            answer = await self._client.stream(server, path, _joined(batch))
            try:
                if answer.is_success:
                    await self._read(answer, open_)
                else:
                    refused = refusal(answer.status_code, await answer.aread(), answer.headers)
                    fault, wait = refused.error(server.url), refused.retry_after
                    if refused.status in _FAULT_OF_ONE and len(batch) > 1:
                        for errand in open_.values():
                            self._start(self._post(server, path, [errand]), self._posting)
                        open_.clear()
                    elif not refused.transient:
                        _settle(open_, fault)
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            fault = self._client.missed(server, error)
        except (ValueError, KeyError, TypeError) as error:
            fault = SessionLost(f"{server.url} doesn't answer as a server of ours does: {error!r}.")
        except asyncio.CancelledError:
            _settle(open_, SessionLost(_CLOSED))
            raise
        for errand in open_.values():
            self._again(errand, fault, wait)

    async def _read(self, answer: httpx.Response, open_: dict[int, Errand]) -> None:
        """Settle errands as their lines arrive; those without one stay open."""
        rest = b""
        async for chunk in answer.aiter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            for text in filter(None, lines):
                line: dict[str, Any] = _decode(text.decode())[0]
                errand = open_[line["index"]]
                if line["status"] == 200:
                    errand.settle(line["outcome"])
                else:
                    self._refused(errand, line)
                del open_[line["index"]]

    def _refused(self, errand: Errand, line: dict[str, Any]) -> None:
        refused = line_refusal(line)
        fault = refused.error(errand.server.url)
        if refused.transient:
            self._again(errand, fault, 0.0)
        else:
            errand.settle(fault)

    def _again(self, errand: Errand, fault: Exception, wait: float) -> None:
        """Send it once more after a pause, unless that was done often enough."""
        pauses = self._client.pauses
        if errand.tries == len(pauses):
            errand.settle(fault)
            return
        pause = self._client.jittered(pauses[errand.tries], wait)
        errand.tries += 1
        self._start(self._later(errand, pause), self._pausing)

    async def _later(self, errand: Errand, pause: float) -> None:
        try:
            await asyncio.sleep(pause)
        except asyncio.CancelledError:
            errand.settle(SessionLost(_CLOSED))
            raise
        self.send(errand)

    def _start(self, coroutine: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
        """Run it as a task, which is among `running` until it ends."""
        task = asyncio.create_task(coroutine)
        running.add(task)
        task.add_done_callback(running.discard)


def _joined(batch: Iterable[Errand]) -> bytes:
    return f'{{"calls":[{",".join(errand.body for errand in batch)}]}}'.encode()


def _divided(errands: list[Errand]) -> Iterator[list[Errand]]:
    """In order, in batches that a server takes."""
    batch: list[Errand] = []
    chars = 0
    for errand in errands:
        chars += len(errand.body)
        if batch and (len(batch) == _MOST_CALLS or chars > _MOST_CHARS):
            yield batch
            batch, chars = [], len(errand.body)
        batch.append(errand)
    yield batch


def _settle(open_: dict[int, Errand], error: Exception) -> None:
    while open_:
        open_.popitem()[1].settle(error)
