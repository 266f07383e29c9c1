"""What a vLLM server is asked over HTTP: one method per question, for servers as vLLM ships them.

A server needs these of vLLM's own flags: VLLM_SERVER_DEV_MODE=1, --enable-scale-out, --worker-extension-cls,
--logprobs-mode processed_logprobs, --generation-config vllm. This has no patience: what goes wrong is raised.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch

from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.engines.vllm.weight_transfer import offered
from agentgym_trainer.models.weights import Weights

_PULSE = 20.0
"""Seconds without an answer after which a server is asked whether it is alive."""
_FAULT = 500


class Away(Exception):
    """The server isn't there, or not as a whole; it may come back."""


class Refused(Exception):
    """The server answers that it won't."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{said} (HTTP {code})")
        self.code = code


class VllmHttp:
    """A client of one server, for one event loop."""

    def __init__(self, url: str, *, pulse: float = _PULSE) -> None:
        self.url = url.rstrip("/")
        self._pulse = pulse
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
        self._client = httpx.AsyncClient(base_url=self.url, limits=limits, timeout=None)

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def alive(self) -> None:
        """Return when the server says that it is well.

        Raises:
            Away: when it doesn't.
        """
        try:
            answer = await self._client.get("/health", timeout=self._pulse)
        except httpx.HTTPError as error:
            raise Away(f"{type(error).__name__} {error}".strip()) from error
        if not answer.is_success:
            raise Away(f"it says of itself that it is not well (HTTP {answer.status_code})")

    async def generate(self, ids: Sequence[int], sampling: SamplingParams, *, end_id: int, model: str | None) -> Any:
        """The answer to a request for one reply, tokens in and tokens out, as vLLM gives it."""
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
        return await self._ask("POST", "/inference/v1/generate", json=body)

    async def call_workers(self, method: str, *args: Any) -> Any:
        """What the first worker of the first engine returns of a method that all run."""
        answer = await self._ask("POST", "/collective_rpc", json={"method": method, "args": args})
        return answer["results"][0]

    async def label(self) -> str:
        """What the weights are called; "default" from the server's start until somebody names them."""
        return (await self._ask("GET", "/weight_info"))["weight_version"]

    async def set_label(self, label: str) -> None:
        """Name the weights; every reply tells it."""
        await self._ask("POST", "/update_weight_version", json={"new_version": label})

    async def resume(self) -> None:
        """Go on with what waits."""
        await self._ask("POST", "/resume")

    async def replace_weights(
        self, weights: Weights, *, dtype: torch.dtype, label: str, meanwhile: str, adapter: str
    ) -> None:
        """Push weights, in place. Replies under way, of all clients, stand still meanwhile and go on with the new ones,
        from what they have so far, which is read again; new requests wait.

        Args:
            weights: a whole model, or an adapter.
            dtype: of the server's weights.
            label: what they are called then; as long as they aren't whole, `meanwhile`.
            adapter: the name by which requests ask for an adapter.
        """
        await self._ask("POST", "/pause", params={"mode": "keep"})
        await self.set_label(meanwhile)
        async with offered(weights.tensors, host=_address_towards(self.url), dtype=dtype) as offer:
            fetching = (offer.host, offer.port, offer.secret)
            if weights.adapter is None:
                await self.call_workers("agentgym_take_weights", *fetching)
            else:
                await self.call_workers("agentgym_take_adapter", *fetching, _plain(weights.adapter))
                await self._name_adapter(adapter)
        if not (await self._ask("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"}))["success"]:
            raise Away("its prefix cache can't be reset")
        await self.set_label(label)
        await self.resume()

    async def _name_adapter(self, name: str) -> None:
        """Let requests ask for the adapter that the workers hold by this name."""
        models = await self._ask("GET", "/v1/models")
        if name not in {model["id"] for model in models["data"]}:
            # A path is wanted, but nothing is read from it: the adapter of this number is there.
            await self._ask("POST", "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": "in memory"})

    async def _ask(self, method: str, path: str, *, json: Any = None, params: Mapping[str, str] | None = None) -> Any:
        """The answer, however long it takes, as long as the server is alive."""
        asking = asyncio.ensure_future(self._client.request(method, path, json=json, params=params))
        try:
            while not (await asyncio.wait({asking}, timeout=self._pulse))[0]:
                await self.alive()
            answer = asking.result()
        except httpx.HTTPError as error:
            raise Away(f"{type(error).__name__} {error}".strip()) from error
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)  # it may have failed as well, which nobody asks
        if answer.is_success:
            return answer.json() if answer.headers.get("content-type") == "application/json" else None
        said = _reason(answer)
        if answer.is_server_error:
            await self.alive()  # a server whose engine has died answers, too
            if answer.status_code != _FAULT:
                raise Away(f"{said} (HTTP {answer.status_code})")
        raise Refused(answer.status_code, said)


def _reason(answer: httpx.Response) -> str:
    """What vLLM gives as the reason of an error."""
    try:
        said = answer.json()
    except ValueError:
        said = answer.text
    if isinstance(said, dict):
        error = said.get("error", said.get("detail", said))
        said = error.get("message", error) if isinstance(error, dict) else error
    return str(said).strip()[:500]


def _address_towards(url: str) -> str:
    """Address of this machine as seen from a server: the one that a connection to it comes from."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=10) as connection:
            return connection.getsockname()[0]
    except OSError as error:
        raise Away(str(error)) from error


def _plain(value: Any) -> Any:
    """A configuration of peft as JSON has it: sets become lists."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return sorted(value) if isinstance(value, (set, frozenset)) else value
