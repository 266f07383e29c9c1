"""The process that runs Lucene: the client side of `lucene_worker.py`.

A process that has started Java hangs when it forks, so Java never starts in the main process. The worker process exits
with its owner. This module only locates Java and Pyserini's jar.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, TimeoutError
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.installation import install
from agentgym_envs.util.java import find_java, java_home

JAVA = 21
"""The Java version that Pyserini's classes are compiled for."""
_MODULE = "agentgym_envs.retrieval.lucene_worker"
# Pyserini can't be imported without an OpenAI key, even for local search. A key that is set stays in place.
_SHELL = 'JAVA_HOME=$1; OPENAI_API_KEY=${OPENAI_API_KEY:-none}; export JAVA_HOME OPENAI_API_KEY; shift; exec "$@"'


class LuceneProcess:
    """A worker process and its pending requests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open while the process runs
        self.process = self._start(settings)
        assert isinstance(self.process.stdin, RawIOBase) and isinstance(self.process.stdout, RawIOBase)
        self._requests, self._answers = self.process.stdin, BufferedReader(self.process.stdout)
        self._sending = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {0: Future()}  # 0: the worker's ready message
        self._ready = self._pending[0]
        self._asked = 0
        self.ended = False
        threading.Thread(target=self._listen, daemon=True, name="lucene-answers").start()

    def ask(self, request: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send a request once the worker is ready, and return its answer.

        Args:
            request: The request without an id.
            timeout: Seconds to wait for the answer; None for no limit.

        Raises:
            EnvFault: if the worker ended, failed or timed out.
            ValueError: if the requested index or resource doesn't exist.
        """
        self._ready.result()  # without a timeout: the worker may be downloading an index
        future: Future[dict[str, Any]] = Future()
        with self._sending:
            self._asked += 1
            self._pending[self._asked] = future
            try:
                self._write({**request, "id": self._asked})
            except (OSError, ValueError) as error:  # the process ended, or another thread has closed the pipe
                raise self._fault() from error
        if self.ended and not future.done():  # it ended before the future was registered
            raise self._fault()
        try:
            return future.result(timeout)
        except TimeoutError as error:
            self.process.kill()
            raise EnvFault(f"Lucene did not answer within {timeout:g} s and was killed.") from error

    def wait(self) -> None:
        """Wait until the worker reports that it is ready or done. Raises the same errors as `ask`."""
        self._ready.result()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        self._requests.close()
        self._log.close()

    def _start(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        home = java_home(find_java(JAVA))
        arguments = json.dumps({**settings, "jar": str(anserini_jar()), "owner": os.getpid()})
        command = ["/bin/sh", "-c", _SHELL, "sh", str(home), sys.executable, "-P", "-m", _MODULE, arguments]
        # -P keeps modules of the working directory from being imported. Unbuffered pipes leave no partial request that
        # a forked child could send again. A new session leaves Ctrl-C to the owner.
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0, start_new_session=True)

    def _write(self, request: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(request).encode() + b"\n")
        while rest:  # a signal can interrupt a write
            rest = rest[self._requests.write(rest) or 0 :]

    def _listen(self) -> None:
        refused: str | None = None
        try:
            with self._answers as answers:
                for line in answers:
                    if not line.endswith(b"\n"):  # it ended in the middle of an answer
                        break
                    answer = json.loads(line)
                    refused = answer.get("refused", refused)
                    if refused is None:
                        self._resolve(answer)
        except (ValueError, KeyError, AttributeError):
            self.process.kill()  # its output doesn't follow the protocol
        finally:
            self.ended = True
            error = ValueError(refused) if refused is not None else self._fault()
            for future in list(self._pending.values()):
                future.set_exception(error)

    def _resolve(self, answer: dict[str, Any]) -> None:
        future = self._pending.pop(answer.get("id", 0))
        if "fault" in answer:
            future.set_exception(EnvFault(f"Lucene can't answer: {answer['fault']}"))
        else:
            future.set_result(answer)

    def _fault(self) -> EnvFault:
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        return EnvFault(f"The process that runs Lucene ended {how}. Its last output: {self._last_output()}")

    def _last_output(self) -> str:
        try:
            size = os.fstat(self._log.fileno()).st_size
            return os.pread(self._log.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip() or "none"
        except (OSError, ValueError):  # closed, possibly by another thread
            return "none"


def anserini_jar() -> Path:
    """Return the jar with the classes of Lucene and Anserini, which Pyserini ships.

    Raises:
        DependencyNotInstalled: if Pyserini is missing.
    """
    found = importlib.util.find_spec("pyserini")
    jars = Path(found.origin).parent.glob("resources/jars/anserini-*-fatjar.jar") if found and found.origin else ()
    jar = next(iter(sorted(jars)), None)
    if jar is None:
        raise DependencyNotInstalled(f"Lucene comes with Pyserini. Install it: {install('agentgym-envs[pyserini]')}")
    return jar
