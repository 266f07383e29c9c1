"""An asyncio loop on a thread of its own, with a synchronous face. Knows nothing about browsers.

Playwright's synchronous API refuses to run where an asyncio loop runs already, as it does in a notebook; its
asynchronous one ties everything to the loop it was started in. Here that loop is nobody's but ours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym_envs.text_env import EnvFault

T = TypeVar("T")
_PARTING = 5.0  # seconds for what still runs when the thread is stopped


class LoopThread:
    """A running asyncio loop. Usable from any thread of the process that made it, and not after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `coroutine` on the loop and wait for what it returns or raises.

        Args:
            coroutine: What to run.
            timeout: Seconds, after which it is cancelled.

        Raises:
            EnvFault: when the time is over, or the loop belongs to another process or is stopped.
            RuntimeError: when called on the loop's own thread, where it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("LoopThread.run was called on its own thread; await the coroutine there.")
        if self.pid != os.getpid() or not self._thread.is_alive():
            coroutine.close()
            raise EnvFault("The browser's loop is gone: it was stopped, or this process was forked after its start.")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise EnvFault("The browser's loop was stopped in the middle of this.") from error
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                raise  # the coroutine's own
            raise EnvFault(f"The browser did not answer within {timeout:g} seconds.") from error
        finally:
            future.cancel()  # also after Ctrl-C; nothing happens to one that is done

    def stop(self) -> None:
        """Cancel what still runs and end the thread. May be called twice."""
        if self.pid != os.getpid() or not self._thread.is_alive():
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
