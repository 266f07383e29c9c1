"""The engine that is a vLLM server: on its own GPUs or machines, or one that we start.

Every reply names the weights that its tokens were sampled with: that is how their versions are known, and how a server
that was restarted behind our back, and has lost them, is noticed. It knows no text and no worlds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, SamplingParams
from agentgym_trainer.engines.vllm.backoff import Backoff
from agentgym_trainer.engines.vllm.client import Away, Refused, VllmHttp
from agentgym_trainer.engines.vllm.process import EXTENSION, VllmProcess, room_for
from agentgym_trainer.models.weights import Weights

_COLDEST = 0.01
"""vLLM would raise lower temperatures to this one."""
_FRESH = "default"  # what vLLM calls the weights that a server starts with
FLAGS = (
    f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls {EXTENSION} --enable-scale-out "
    "--logprobs-mode processed_logprobs --generation-config vllm --enable-prompt-tokens-details"
)


class VllmServer:
    """An `Engine` over HTTP. Requests that a server loses are sent again, and so are the weights.

    Args:
        where: address of a server that runs, or a process that is started here, and ended by `close`.
        run: names the process group that trains; the same on all its ranks, and unlike that of any other run.
        end_id: token that ends a reply.
        max_context: most tokens of a context and its reply.
        pushes: whether this process gives the server its weights. Of processes that share a server, one does; the
            others wait until it has.
        patience: seconds for which a server may stay away.
        watch_every: seconds after which a process that pushes looks whether the server still has its weights.
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
    ) -> None:
        self.version = 0
        self.usage = EngineUsage()
        self.max_context = max_context
        self._process = None if isinstance(where, str) else where
        self._http = VllmHttp(where if isinstance(where, str) else where.url)
        self._run, self._end_id, self._pushes = run, end_id, pushes
        self._watch_every = watch_every
        self._weights: Weights | None = None
        self._loads = 0
        self._patience = Backoff(patience)
        self._starts = 0  # of a server of our own, since it last gave a reply
        self._ready = self._closed = False
        self._watching: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._under_way = 0
        self._since = 0.0

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._http.url

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """See `Engine.generate`. Cancelled, the server stops sampling it."""
        if 0 < sampling.temperature < _COLDEST:
            raise ValueError(
                f"vLLM samples at a temperature of 0 or from {_COLDEST}, not {sampling.temperature}; choose one of "
                "these, or the engine transformers."
            )
        if len(ids) + sampling.max_tokens > self.max_context:
            raise ValueError(
                f"A context of {len(ids)} tokens and a reply of up to {sampling.max_tokens} are more than the "
                f"{self.max_context} of the engine."
            )
        while True:
            await self._be_ready()
            self._busy(+1)
            try:
                answer = await self._http.generate(ids, sampling, end_id=self._end_id, model=self._model)
                return self._completion(answer, sampling)
            except (Away, Refused) as error:
                self._doubt(error)
            finally:
                self._busy(-1)

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`. What is under way at the server, for all its clients, and new requests stand still."""
        async with self._lock:
            self._weights, self._ready = weights, False
            self._loads += 1
            self._patience.restored()  # what was wrong while nothing was sampled may be over for long
            await self._recover(push=self._pushes)
            self._patience.restored()
        self.version = weights.version
        if self._pushes and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def sleep(self) -> None:
        """A server's memory is its own: nothing to free."""

    async def close(self) -> None:
        """Hang up, and end a server of our own."""
        self._closed, self._ready = True, False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self._http.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    @property
    def _label(self) -> str:
        """What our last weights are called. The count tells weights apart that have seen as many updates."""
        return _FRESH if self._weights is None else f"{self._run}@{self._weights.version}.{self._loads}"

    @property
    def _no_label(self) -> str:
        """What weights are called while they are being replaced."""
        return f"{self._run}@none"

    @property
    def _model(self) -> str | None:
        """Name of the adapter that samples, or None for the server's model."""
        return self._run if self._weights is not None and self._weights.adapter is not None else None

    async def _be_ready(self) -> None:
        """Wait until the server is there with our weights."""
        if not self._ready or self._lock.locked():
            async with self._lock:
                if not self._ready:
                    await self._recover(push=False)

    async def _watch(self) -> None:
        """Give a server that has come back its weights also while only others ask it, who wait for them."""
        with suppress(EngineGone):  # the next to ask is told
            while True:
                await asyncio.sleep(self._watch_every)
                try:
                    if self._ready and (label := await self._http.label()) != self._label:
                        raise Away(f"it has the weights {label}")
                except (Away, Refused) as error:
                    self._patience.tried(error)
                    self._ready = False
                    await self._be_ready()

    def _doubt(self, error: Exception) -> None:
        """Look after the server before anything else is sent.

        Raises:
            ValueError: when it is the request that is wrong.
            EngineGone: when it won't help.
        """
        if isinstance(error, Refused):
            if error.code == 400:
                raise ValueError(f"The vLLM server at {self.url} refuses a request: {error}") from error
            if error.code != 404 or self._model is None:  # else the adapter is gone, and the server is another one
                raise EngineGone(f"The vLLM server at {self.url} refuses to sample: {error} {self._hint}") from error
        self._patience.tried(error)
        self._ready = False

    async def _recover(self, *, push: bool) -> None:
        """Wait until the server answers, and give it our weights when asked to or when it has lost them.

        Raises:
            EngineGone: when patience is at an end, or it can't be what we need.
        """
        while True:
            await self._patience.wait(f"The vLLM server at {self.url}{self._see_log}")
            try:
                await self._rouse()
                await self._http.alive()
                await self._check()
                await self._bring_weights(push=push)
                self._ready = True
                return
            except Away as error:
                self._patience.tried(error)
            except Refused as error:
                raise EngineGone(f"The vLLM server at {self.url} can't be used: {error} {self._hint}") from error

    async def _rouse(self) -> None:
        """Start a server of our own, and once more when it has died.

        Raises:
            EngineGone: when it died again, or has been closed.
        """
        process = self._process
        if self._closed:
            raise EngineGone("This engine is closed.")
        if process is None or process.running:
            return
        if self._starts > 1:
            raise EngineGone(f"The vLLM server died again after a restart: {process.last_words()}{self._see_log}.")
        self._starts += 1
        process.start()

    async def _check(self) -> None:
        """Whether the server samples what we train."""
        hello = await self._http.call_workers("agentgym_hello")
        self._dtype: torch.dtype = getattr(torch, hello["dtype"])
        if hello["logprobs_mode"] != "processed_logprobs":
            raise EngineGone(
                f"The vLLM server at {self.url} gives {hello['logprobs_mode']}, not the log-probabilities of what it "
                f"samples. {self._hint}"
            )
        if hello["max_context"] < self.max_context:
            raise EngineGone(
                f"The vLLM server at {self.url} takes contexts of {hello['max_context']} tokens, generation.max_context"
                f" is {self.max_context}: start it with --max-model-len {self.max_context}, or lower ours."
            )
        rank = self._weights.adapter["r"] if self._weights is not None and self._weights.adapter is not None else 0
        if hello["lora_rank"] < rank:
            raise EngineGone(
                f"The vLLM server at {self.url} has room for adapters up to rank {hello['lora_rank']}, not {rank}. "
                f"Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank {room_for(rank)}."
            )

    async def _bring_weights(self, *, push: bool) -> None:
        """See to it that the server has our last weights."""
        if self._weights is None:
            return
        label = await self._http.label()
        if not self._pushes:
            if label != self._label:
                raise Away(f"it has the weights {label} and not yet {self._label}")
        elif label == self._label and not push:
            await self._http.resume()  # a push may have been interrupted at its end
        elif push or label == _FRESH or label.startswith(f"{self._run}@"):
            await self._http.replace_weights(
                self._weights, dtype=self._dtype, label=self._label, meanwhile=self._no_label, adapter=self._run
            )
        else:
            raise EngineGone(
                f"The vLLM server at {self.url} has been given the weights {label} while this run used it. Give each "
                "run a server of its own."
            )

    def _completion(self, answer: Any, sampling: SamplingParams) -> Completion:
        """The reply in vLLM's answer.

        Raises:
            Away: when it is no whole reply by weights of ours.
        """
        choice = answer["choices"][0]
        spans = choice["weight_versions"]
        if choice["finish_reason"] not in ("stop", "length") or not spans:
            labels = ", ".join(span["version"] for span in spans or ())
            raise Away(f"a reply ended by {choice['finish_reason']}, with the weights {labels or 'unknown'}")
        versions = [self._version_of(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
        self._count(answer["usage"])
        self._patience.restored()
        self._starts = min(self._starts, 1)
        # The most likely token is certain at temperature 0, whatever it is likely for at 1.
        logprobs = (token["logprob"] if sampling.temperature else 0.0 for token in choice["logprobs"]["content"])
        return Completion.sampled(choice["token_ids"], tuple(logprobs), choice["finish_reason"], versions)

    def _version_of(self, label: str) -> int:
        if self._weights is None:
            return self.version
        run, _, version = label.rpartition("@")
        if run != self._run or label == self._no_label:
            raise Away(f"it has the weights {label}, not those of this run")
        return int(version.split(".")[0])

    def _count(self, usage: Any) -> None:
        reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.usage.reused += reused
        self.usage.prefilled += usage["prompt_tokens"] - reused
        self.usage.generated += usage["completion_tokens"]

    def _busy(self, change: int) -> None:
        """Count the seconds in which at least one request is under way."""
        now = time.monotonic()
        if self._under_way:
            self.usage.busy += now - self._since
        self._since = now
        self._under_way += change

    @property
    def _hint(self) -> str:
        return f"It is ours{self._see_log}." if self._process else f"Start it as: {FLAGS}"

    @property
    def _see_log(self) -> str:
        return f" (see {self._process.log})" if self._process else ""
