"""An HTTP client for unmodified vLLM servers, with one method per endpoint.

The server must run with VLLM_SERVER_DEV_MODE=1, --enable-scale-out, --worker-extension-cls, --logprobs-mode
processed_logprobs and --generation-config vllm. The client doesn't retry: every error is raised.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch

from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.engines.vllm.weight_transfer import offered
from agentgym_trainer.models.weights import Weights

_PULSE = 20.0
"""Seconds without a response after which the server's health is checked."""
_INTERNAL_ERROR = 500
_LOWEST_TEMPERATURE = 0.01
"""vLLM would raise lower temperatures to this one."""


class Away(Exception):
    """The server is unreachable or unhealthy; it may recover."""


class Refused(Exception):
    """The server rejected a request."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {code})")
        self.code = code


class VllmHttp:
    """A client for one server, to be used in one event loop."""

    def __init__(self, url: str, *, pulse: float = _PULSE) -> None:
        self.url = url.rstrip("/")
        self._pulse = pulse
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
        # A cluster's proxy doesn't lead to servers on its nodes.
        self._client = httpx.AsyncClient(base_url=self.url, limits=limits, timeout=None, trust_env=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def alive(self) -> None:
        """Check the server's health.

        Raises:
            Away: when the server is unreachable or reports that it is unhealthy.
        """
        try:
            response = await self._client.get("/health", timeout=self._pulse)
        except httpx.HTTPError as error:
            raise Away(f"{type(error).__name__} {error}".strip()) from error
        if not response.is_success:
            raise Away(f"it reports that it is not healthy (HTTP {response.status_code})")

    async def generate(self, ids: Sequence[int], sampling: SamplingParams, *, end_id: int, model: str | None) -> Any:
        """Request one completion, token ids in and out, and return vLLM's response.

        Raises:
            ValueError: when vLLM would sample at another temperature.
        """
        if 0 < sampling.temperature < _LOWEST_TEMPERATURE:
            raise ValueError(
                f"vLLM samples at a temperature of 0 or from {_LOWEST_TEMPERATURE}, not {sampling.temperature}; choose "
                "one of these, or the engine transformers."
            )
        params = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed % 2**63,
            "stop_token_ids": [end_id],
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
        }
        body = {"token_ids": list(ids), "sampling_params": params, **({"model": model} if model else {})}
        return await self._request("POST", "/inference/v1/generate", json=body)

    async def call_workers(self, method: str, *args: Any) -> Any:
        """Call a method on all workers and return the result of the first worker of the first engine."""
        response = await self._request("POST", "/collective_rpc", json={"method": method, "args": args})
        return response["results"][0]

    async def label(self) -> str:
        """Return the label of the weights: "default" from the server's start until a client sets one."""
        return (await self._request("GET", "/weight_info"))["weight_version"]

    async def set_label(self, label: str) -> None:
        """Set the label of the weights, which every completion carries."""
        await self._request("POST", "/update_weight_version", json={"new_version": label})

    async def resume(self) -> None:
        """Resume paused requests."""
        await self._request("POST", "/resume")

    async def sleep(self, level: int) -> None:
        """Free the memory of the GPUs, after dropping the requests.

        Args:
            level: 1 keeps the weights in host memory, 2 drops them.
        """
        await self._request("POST", "/sleep", params={"level": str(level)})

    async def wake_up(self, *tags: str) -> None:
        """Allocate again what a sleeping server has freed of these: weights and kv_cache.

        A server that has then freed nothing more resumes its requests, also if it was awake and paused.
        """
        for tag in tags:
            await self._request("POST", "/wake_up", params={"tags": tag})

    async def count_workers(self) -> int:
        """Return the number of workers of all engines of the server."""
        return (await self._request("GET", "/get_world_size"))["world_size"]

    async def init_weight_transfer(self, info: dict[str, Any]) -> None:
        """Have all workers open vLLM's own weight transfer; returns when it is open."""
        await self._request("POST", "/init_weight_transfer_engine", json={"init_info": info})

    async def start_weight_update(self) -> None:
        """Begin to replace the weights through vLLM's own weight transfer."""
        try:
            await self._request("POST", "/start_weight_update")
        except Refused:  # a transfer that was cancelled before its end has left its update open
            await self.finish_weight_update()
            await self._request("POST", "/start_weight_update")

    async def update_weights(self, info: dict[str, Any]) -> None:
        """Have all workers receive the tensors with these names, types and shapes; returns when they have."""
        await self._request("POST", "/update_weights", json={"update_info": info})

    async def finish_weight_update(self) -> None:
        """End the replacement that `start_weight_update` began."""
        await self._request("POST", "/finish_weight_update")

    @property
    def learner_address(self) -> str:
        """The address of this machine as seen from the server.

        Raises:
            Away: when the server is unreachable.
        """
        return _address_towards(self.url)

    async def replace_weights(
        self,
        weights: Weights,
        *,
        dtype: torch.dtype,
        label: str,
        meanwhile: str,
        adapter: str,
        send: Callable[[], Awaitable[None]] | None = None,
        wakes: bool = False,
    ) -> None:
        """Push weights in place.

        Running requests of all clients are paused and continue with the new weights, after the tokens sampled so far
        have been prefilled again; new requests wait.

        Args:
            weights: A whole model or an adapter.
            dtype: The data type of the server's weights.
            label: The label of the new weights.
            meanwhile: The label while the transfer is incomplete.
            adapter: The name under which requests refer to the adapter.
            send: Sends the weights. None: the workers fetch them over TCP, all at the same time, each in its own pass.
            wakes: Whether the server may sleep. It then gets the weights before it allocates its cache.
        """
        await self.begin_replacement(meanwhile, wakes=wakes)
        if send is not None:
            await send()
        else:
            await self._offer(weights, dtype, adapter)
        await self.end_replacement(label, wakes=wakes)

    async def begin_replacement(self, meanwhile: str, *, wakes: bool) -> None:
        """Pause the requests, and make room for new weights. See `replace_weights`."""
        if wakes:
            await self.wake_up("weights")  # before the pause, which it would end if the server is awake
        await self._request("POST", "/pause", params={"mode": "keep"})
        await self.set_label(meanwhile)

    async def end_replacement(self, label: str, *, wakes: bool) -> None:
        """Drop the cache of the old weights, and continue with the new ones. See `replace_weights`."""
        reset = await self._request("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"})
        if not reset["success"]:
            raise Away("its prefix cache can't be reset")
        await self.set_label(label)
        if wakes:
            await self.wake_up("kv_cache")  # this resumes the requests, too
        await self.resume()

    async def _offer(self, weights: Weights, dtype: torch.dtype, adapter: str) -> None:
        """Have all workers fetch the weights over TCP."""
        async with offered(weights.tensors, host=self.learner_address, dtype=dtype) as offer:
            source = (offer.host, offer.port, offer.secret)
            if weights.adapter is None:
                await self.call_workers("agentgym_take_weights", *source)
            else:
                await self.call_workers("agentgym_take_adapter", *source, _plain(weights.adapter))
                await self._name_adapter(adapter)

    async def _name_adapter(self, name: str) -> None:
        """Register the adapter that the workers hold under a name for requests."""
        models = await self._request("GET", "/v1/models")
        if name not in {model["id"] for model in models["data"]}:
            # The path is required but never read, because the workers hold the adapter of this number already.
            await self._request("POST", "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": "in memory"})

    async def _request(
        self, method: str, path: str, *, json: Any = None, params: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request and wait for the response without a timeout, as long as the server is healthy."""
        sending = asyncio.ensure_future(self._client.request(method, path, json=json, params=params))
        try:
            while not (await asyncio.wait({sending}, timeout=self._pulse))[0]:
                await self.alive()
            response = sending.result()
        except httpx.HTTPError as error:
            raise Away(f"{type(error).__name__} {error}".strip()) from error
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)  # retrieve an exception that was not raised above
        if response.is_success:
            return response.json() if response.headers.get("content-type") == "application/json" else None
        reason = _reason(response)
        if response.is_server_error:
            await self.alive()  # a server whose engine has died still responds
            if response.status_code != _INTERNAL_ERROR:
                raise Away(f"{reason} (HTTP {response.status_code})")
        raise Refused(response.status_code, reason)


def _reason(response: httpx.Response) -> str:
    """Return the reason that vLLM gives for an error."""
    try:
        reason = response.json()
    except ValueError:
        reason = response.text
    if isinstance(reason, dict):
        error = reason.get("error", reason.get("detail", reason))
        reason = error.get("message", error) if isinstance(error, dict) else error
    return str(reason).strip()[:500]


def _address_towards(url: str) -> str:
    """Return the address of this machine as seen from a server: the local end of a connection to it."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=10) as connection:
            return connection.getsockname()[0]
    except OSError as error:
        raise Away(str(error)) from error


def _plain(value: Any) -> Any:
    """Make a PEFT configuration JSON-serializable: sets become lists."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return sorted(value) if isinstance(value, (set, frozenset)) else value
