"""An asyncio loop on a thread of its own, with a synchronous face. Knows nothing about whom it speaks with.

Synchronous libraries on top of asyncio refuse to run where a loop runs already, as it does in a notebook; asynchronous
ones tie everything to the loop they were started in. Here that loop is nobody's but ours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentgym_envs.core.text_env import EnvFault

T = TypeVar("T")
_PARTING = 5.0  # seconds for what still runs when the thread is stopped


class LoopThread:
    """A running asyncio loop. Usable from any thread of the process that made it, and not after a fork."""

    def __init__(self, partner: str) -> None:
        """`partner`: whom it speaks with, as faults begin with it (`The browser`)."""
        self.pid = os.getpid()
        self._partner = partner
        self._gone = f"{partner}: the loop is gone; it was stopped, or this process was forked since."
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-loop", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it runs, in this process."""
        return self.pid == os.getpid() and self._thread.is_alive()

    @property
    def current(self) -> bool:
        """Whether this is called on its thread."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `coroutine` on the loop and wait for what it returns or raises.

        Args:
            coroutine: What to run.
            timeout: Seconds, after which it is cancelled.

        Raises:
            EnvFault: when the time is over, or the loop belongs to another process or is stopped.
            RuntimeError: when called on the loop's own thread, where it would wait for itself.
        """
        if self.current:
            coroutine.close()
            raise RuntimeError("LoopThread.run was called on its own thread; await the coroutine there.")
        if not self.alive:
            coroutine.close()
            raise EnvFault(self._gone)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise EnvFault(f"{self._partner}: the loop was stopped in the middle of this.") from error
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # the coroutine's own
            raise EnvFault(f"{self._partner} did not answer within {timeout:g} seconds.") from error
        finally:
            future.cancel()  # also after Ctrl-C; nothing happens to one that is done

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function`, which takes next to no time, on the loop; returns at once.

        Raises:
            RuntimeError: when the loop is stopped, or this process was forked since.
        """
        if not self.alive:
            raise RuntimeError(self._gone)
        self._loop.call_soon_threadsafe(function, *arguments)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `coroutine` on the loop; returns at once.

        Raises:
            RuntimeError: when the loop is stopped, or this process was forked since.
        """
        if not self.alive:
            coroutine.close()
            raise RuntimeError(self._gone)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel what still runs and end the thread. May be called twice."""
        if not self.alive:
            return
        self.run(_cancel_others(), _PARTING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PARTING)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_PARTING / 2)
