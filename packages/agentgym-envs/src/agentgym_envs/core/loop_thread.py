"""An asyncio event loop on its own thread, with a synchronous interface.

Synchronous libraries on top of asyncio refuse to run where a loop is already running, as in a notebook. Asynchronous
libraries bind their objects to the loop in which they were started. A private loop avoids both problems.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.abandoned_threads import note_abandoned

T = TypeVar("T")
_STOP_TIMEOUT = 5.0  # seconds


class LoopThread:
    """A running asyncio loop. Any thread of the process that created it may use it, but not a forked process."""

    def __init__(self, partner: str) -> None:
        """Start the thread.

        Args:
            partner: The system that the coroutines communicate with (`The browser`); error messages begin with it.
        """
        self.pid = os.getpid()
        self._partner = partner
        self._gone = f"{partner}: the loop is gone. It was stopped, or this process was forked after its start."
        self._abandoned = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-loop", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the loop is running in this process and not abandoned."""
        return self.pid == os.getpid() and self._thread.is_alive() and not self._abandoned

    def abandon(self) -> None:
        """Give up the loop, since something blocks its thread; nothing can run in it any more.

        Other threads, which the blocked one has started, may keep the process from ending: see `abandoned_threads`.
        """
        self._abandoned = True
        note_abandoned()

    @property
    def current(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `coroutine` on the loop, wait for it, and return its result or raise its exception.

        Args:
            coroutine: The coroutine to run.
            timeout: Seconds after which the coroutine is cancelled.

        Raises:
            EnvFault: on timeout, or if the loop belongs to another process or is stopped.
            RuntimeError: if called on the loop's own thread, which would be a deadlock.
        """
        if self.current:
            coroutine.close()
            raise RuntimeError("LoopThread.run was called on its own thread. Await the coroutine there instead.")
        if not self.alive:
            coroutine.close()
            raise EnvFault(self._gone)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise EnvFault(f"{self._partner}: the loop was stopped while a request was running.") from error
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # the coroutine itself raised TimeoutError
            raise EnvFault(f"{self._partner} did not answer within {timeout:g} seconds.") from error
        finally:
            future.cancel()  # also after Ctrl-C; no effect on a finished future

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call of `function`, which must not block, on the loop and return immediately.

        Raises:
            RuntimeError: if the loop is stopped, or this process was forked after its start.
        """
        if not self.alive:
            raise RuntimeError(self._gone)
        self._loop.call_soon_threadsafe(function, *arguments)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `coroutine` on the loop and return immediately.

        Raises:
            RuntimeError: if the loop is stopped, or this process was forked after its start.
        """
        if not self.alive:
            coroutine.close()
            raise RuntimeError(self._gone)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel all running tasks and end the thread. May be called twice."""
        if not self.alive:
            return
        self.run(_cancel_others(), _STOP_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_STOP_TIMEOUT / 2)
