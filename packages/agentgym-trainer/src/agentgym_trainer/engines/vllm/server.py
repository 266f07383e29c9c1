"""An engine that samples through a vLLM server: a running one on other GPUs or machines, or one started here.

Every completion carries the labels of the weights that sampled its tokens. They give the tokens' versions, and reveal a
server that was restarted in the meantime and has lost the weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch

from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams
from agentgym_trainer.engines.vllm.backoff import Backoff
from agentgym_trainer.engines.vllm.client import Away, Refused, VllmHttp
from agentgym_trainer.engines.vllm.ipc_transfer import IpcTransfer, NoIpc
from agentgym_trainer.engines.vllm.labels import FRESH, WeightLabels
from agentgym_trainer.engines.vllm.nccl_transfer import NcclTransfer, NoGroup
from agentgym_trainer.engines.vllm.process import NCCL, VllmProcess
from agentgym_trainer.engines.vllm.requirements import COMMAND, find_problem
from agentgym_trainer.engines.vllm.usage import UsageMeter
from agentgym_trainer.models.weights import HostCopy, Weights, exhaust

_logger = logging.getLogger(__name__)


class VllmServer:
    """An `Engine` over HTTP. Requests and weights that a server loses are sent again.

    Args:
        where: Address of a running server, or a process that is started here and ended by `close`.
        run: Unique name of the training run; the same on all its ranks.
        end_id: The token that ends a completion.
        max_context: The maximum number of tokens of a context and its completion together.
        pushes: Whether this process pushes the weights. Of the processes that share a server, exactly one does; the
            others wait for it.
        patience: Seconds for which the server may be unavailable.
        watch_every: Interval in seconds at which a pushing process checks that the server still has its weights.
        nccl: Sends whole models to a server that offers vLLM's weight transfer over NCCL. Otherwise, and for adapters,
            the server's workers fetch the weights over TCP.
        ipc: Sends whole models to a server on the learners' GPUs, together with all processes that sample from it. When
            the server has lost them, and for adapters, its workers fetch the weights over TCP.
        forced: Whether the run ends if NCCL or CUDA IPC can't be used, rather than use TCP.
        sleeps: Whether the server frees the memory of its GPUs in `sleep`.
        dtype: Data type of a copy of the weights; None: the learner's, until the server has said its own.
    """

    def __init__(
        self,
        where: str | VllmProcess,
        *,
        run: str,
        end_id: int,
        max_context: int,
        pushes: bool = True,
        patience: float = 300.0,
        watch_every: float = 5.0,
        nccl: NcclTransfer | None = None,
        ipc: IpcTransfer | None = None,
        forced: bool = False,
        sleeps: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.version = 0
        self._meter = UsageMeter()
        self.usage = self._meter.usage
        self.max_context = max_context
        self._process = None if isinstance(where, str) else where
        self._http = VllmHttp(where if isinstance(where, str) else where.url)
        self._run, self._labels, self._end_id, self.pushes = run, WeightLabels(run), end_id, pushes
        self._watch_every, self._nccl, self._ipc = watch_every, nccl, ipc
        self._forced, self._sleeps = forced, sleeps
        self._copy = HostCopy(dtype)
        self._weights: Weights | None = None
        self._passing = False
        """Whether the weights don't last, and no pass over them was completed yet."""
        self._loads = 0
        self._patience = Backoff(patience)
        self._starts = 0  # of a local server, since its last completion
        self._ready = self._closed = False
        self._watching: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()  # held while the server is checked, and while it gets weights

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._http.url

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """See `Engine.generate`. If it is cancelled, the server stops sampling."""
        sampling.check_length(len(ids), self.max_context)
        while True:
            await self._be_ready()
            try:
                with self._meter.request():
                    response = await self._http.generate(ids, sampling, end_id=self._end_id, model=self._model)
                return self._completion(response, sampling)
            except (Away, Refused) as error:
                self._on_fault(error)

    async def load(self, weights: Weights, *, locked: bool = False) -> None:
        """See `Engine.load`. The server pauses the requests of all its clients during the transfer.

        With `locked`, the caller holds the lock.
        """
        async with nullcontext() if locked else self.lock:
            self._weights, self._ready = self._copy.of(weights) if self.pushes else weights, False
            self._passing = not weights.lasting
            self._loads += 1
            self._patience.restored()  # an earlier fault, from before a pause in sampling, must not count
            if not await self._sent_over_ipc(weights):
                if not self.pushes:
                    await self._pass()
                try:
                    await self._recover(push=self.pushes)
                except EngineGone:
                    await self._pass()  # other processes take part in it before they can hear of the error
                    raise
            self._patience.restored()
        self.version = weights.version
        if self.pushes and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def sleep(self) -> bool:
        """Free the memory of a server on the learners' GPUs, whichever process has sampled; others keep their memory.

        Whole weights are dropped, and the base model of an adapter is moved to the host.

        Returns:
            Whether `load` sends the weights over CUDA IPC again: `generate` would have the server fetch them over TCP.

        Raises:
            EngineGone: when the server refuses to.
        """
        drops = self._sleeps and self._weights is not None and self._weights.adapter is None
        if self._sleeps and self.pushes:
            async with self.lock:
                self._ready = False
                try:
                    await self._http.sleep(2 if drops else 1)
                    if drops:
                        await self._http.set_label(self._labels.replacing)
                except Away as error:  # the server that the next request starts is awake
                    self._patience.tried(error)
                except Refused as error:
                    raise EngineGone(f"The vLLM server at {self.url} can't sleep: {error} {self._hint}") from error
        return drops and self._ipc is not None

    async def _pass(self) -> None:
        """Make a pass over weights that don't last. In a process that pushes them, this makes a copy; in the others, it
        lets the processes that do gather them.
        """
        passing, self._passing = self._passing, False
        if passing and self._weights is not None:
            await asyncio.to_thread(exhaust, self._weights.tensors())

    async def close(self) -> None:
        """Close the connections, and end a local server."""
        self._closed, self._ready = True, False
        if self._nccl is not None:
            self._nccl.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self._http.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def _sent_over_ipc(self, weights: Weights) -> bool:
        """Send the weights over CUDA IPC, if this server gets them so; return whether it has them.

        Raises:
            EngineGone: in all processes, when the server of one of them stays unavailable or is unsuitable, or when
                CUDA IPC is forced and can't be used.
        """
        if self._ipc is None or self._weights is None or weights.adapter is not None:
            return False
        server = self._http if self.pushes else None
        ready = self._recover(push=None) if self.pushes else None
        names = {"label": self._label, "meanwhile": self._labels.replacing}
        try:
            await self._ipc.send(server, self._weights, ready=ready, **names)
        except (Away, NoIpc) as error:
            await self._give_up_ipc(error)
            return False
        self._passing, self._ready = False, True
        return True

    async def _give_up_ipc(self, error: Away | NoIpc) -> None:
        """Restart the server, which can't replace its weights any more, and use TCP.

        Raises:
            EngineGone: when CUDA IPC is forced and can't be used.
        """
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        if isinstance(error, Away):
            return
        reason = f"CUDA IPC can't be used for the vLLM server at {self.url}{self._see_log}: {error}."
        if self._forced:
            raise EngineGone(f"{reason} Leave engine.transfer at auto to use TCP instead.") from error
        self._ipc = None
        if self.pushes:
            _logger.warning("%s It is restarted, and fetches weights over TCP.", reason)

    @property
    def _label(self) -> str:
        """The label of the last weights."""
        return FRESH if self._weights is None else self._labels.of(self._weights.version, self._loads)

    @property
    def _model(self) -> str | None:
        """The name of the adapter to sample from, or None for the server's model."""
        return self._run if self._weights is not None and self._weights.adapter is not None else None

    async def _be_ready(self) -> None:
        """Wait until the server is available and has the last weights."""
        if not self._ready or self.lock.locked():
            async with self.lock:
                if not self._ready:
                    await self._recover(push=False)

    async def _watch(self) -> None:
        """Push the weights again to a server that was restarted, also while only other processes wait for them."""
        with suppress(EngineGone):  # the next request raises it
            while True:
                await asyncio.sleep(self._watch_every)
                try:
                    if self._ready and (label := await self._http.label()) != self._label:
                        raise Away(f"it has the weights {label}")
                except (Away, Refused) as error:
                    if self._ready:  # it was neither put to sleep nor given other weights in the meantime
                        self._patience.tried(error)
                        self._ready = False
                        await self._be_ready()

    def _on_fault(self, error: Exception) -> None:
        """Mark the server as not ready, so that it is checked before the next request.

        Raises:
            ValueError: when the request itself is invalid.
            EngineGone: when the fault is permanent.
        """
        if isinstance(error, Refused):
            if error.code == 400:
                raise ValueError(f"The vLLM server at {self.url} refuses a request: {error}") from error
            if error.code != 404 or self._model is None:  # 404: a restarted server has lost the adapter
                raise EngineGone(f"The vLLM server at {self.url} refuses to sample: {error} {self._hint}") from error
        self._patience.tried(error)
        self._ready = False

    async def _recover(self, *, push: bool | None) -> None:
        """Wait until the server is healthy, and push the weights if `push` is set or the server has lost them.

        With None, nothing is pushed.

        Raises:
            EngineGone: when the server stays unavailable for too long, or is unsuitable.
        """
        while True:
            await self._patience.wait(f"The vLLM server at {self.url}{self._see_log}")
            try:
                await self._start_process()
                await self._http.alive()
                await self._check()
                if push is not None:
                    await self._bring_weights(push=push)
                    self._ready = True
                return
            except Away as error:
                self._patience.tried(error)
                if push is not None:  # over CUDA IPC, the processes wait for this server before their pass
                    await self._pass()  # so that the other processes don't wait for it
            except Refused as error:
                raise EngineGone(f"The vLLM server at {self.url} can't be used: {error} {self._hint}") from error

    async def _start_process(self) -> None:
        """Start a local server, or restart it once after it has died.

        Raises:
            EngineGone: when it died again, or this engine is closed.
        """
        if self._closed:
            raise EngineGone("This engine is closed.")
        if (process := self._process) is None or process.running:
            return
        if self._starts > 1:
            raise EngineGone(f"The vLLM server died again after a restart: {process.last_words()}{self._see_log}.")
        self._starts += 1
        process.start()

    async def _check(self) -> None:
        """Check that the server's settings fit the training.

        Raises:
            EngineGone: when they don't.
        """
        hello = await self._http.call_workers("agentgym_hello")
        self._dtype = self._copy.dtype = getattr(torch, hello["dtype"])
        self._offers_nccl = hello["weight_transfer"] == NCCL
        adapter = self._weights.adapter if self._weights is not None else None
        rank = adapter["r"] if adapter is not None else 0
        if problem := find_problem(hello, max_context=self.max_context, rank=rank, hint=self._hint):
            raise EngineGone(f"The vLLM server at {self.url} {problem}")

    async def _bring_weights(self, *, push: bool) -> None:
        """Ensure that the server has the last weights."""
        if self._weights is None:
            return
        label = await self._http.label()
        if not self.pushes:
            found = self._labels.read(label)
            if found is None or found[1] < self._loads:  # later ones will be loaded here, too
                raise Away(f"it has the weights {label} and not yet {self._label}")
        elif label == self._label and not push:
            if self._sleeps:
                await self._http.wake_up("weights", "kv_cache")
            await self._http.resume()  # a push may have been interrupted just before it resumed the requests
        elif push or label == FRESH or self._labels.owns(label):
            send = await self._nccl_send(self._weights, restarted=label == FRESH)
            if send is None:
                await self._pass()
            names = {"label": self._label, "meanwhile": self._labels.replacing, "adapter": self._run}
            await self._http.replace_weights(self._weights, dtype=self._dtype, send=send, wakes=self._sleeps, **names)
            self._passing = False
        else:
            raise EngineGone(
                f"The vLLM server at {self.url} was given the weights {label} while this run used it. Use a separate "
                "server for each run."
            )

    async def _nccl_send(self, weights: Weights, *, restarted: bool) -> Callable[[], Awaitable[None]] | None:
        """Return what sends the weights over NCCL; None if this can't be done.

        Raises:
            Away: when the server is unreachable.
            EngineGone: when NCCL is forced and can't be used.
        """
        if self._nccl is None or weights.adapter is not None:
            return None
        if not self._offers_nccl:
            if self._forced:
                raise EngineGone(
                    f"engine.transfer is nccl, and the vLLM server at {self.url} doesn't offer it. Start it with "
                    f'--weight-transfer-config \'{{"backend": "{NCCL}"}}\', or leave engine.transfer at auto.'
                )
            return None
        if restarted:
            self._nccl.close()  # the group's other members are gone
        try:
            await self._nccl.open(self._http)
        except NoGroup as error:
            if self._forced:
                raise EngineGone(
                    f"engine.transfer is nccl, and no NCCL group with the vLLM server at {self.url} can be formed: "
                    f"{error}. Leave engine.transfer at auto to use TCP instead."
                ) from error
            self._nccl = None
            _logger.warning("The vLLM server at %s can't use NCCL, so it fetches weights over TCP: %s", self.url, error)
            return None
        return partial(self._nccl.send, self._http, weights, self._dtype)

    def _completion(self, response: Any, sampling: SamplingParams) -> Completion:
        """Return the completion in vLLM's response.

        Raises:
            Away: when the completion is not whole, or was not sampled with this run's weights.
        """
        choice = response["choices"][0]
        spans = choice["weight_versions"]
        if choice["finish_reason"] not in ("stop", "length") or not spans:
            labels = ", ".join(span["version"] for span in spans or ())
            raise Away(f"a reply ended by {choice['finish_reason']}, with the weights {labels or 'unknown'}")
        versions = [self._version_of(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
        self._meter.add(response["usage"])
        self._patience.restored()
        self._starts = min(self._starts, 1)
        # At temperature 0, a token's log-probability counts as 0, see `SamplingParams`.
        logprobs = (token["logprob"] if sampling.temperature else 0.0 for token in choice["logprobs"]["content"])
        return Completion.sampled(choice["token_ids"], tuple(logprobs), choice["finish_reason"], versions)

    def _version_of(self, label: str) -> int:
        if self._weights is None:
            return self.version
        if (found := self._labels.read(label)) is None:
            raise Away(f"it has the weights {label}, not those of this run")
        return found[0]

    @property
    def _hint(self) -> str:
        return f"This run started it{self._see_log}." if self._process else f"Start it as: {COMMAND}"

    @property
    def _see_log(self) -> str:
        return f" (see {self._process.log})" if self._process else ""
