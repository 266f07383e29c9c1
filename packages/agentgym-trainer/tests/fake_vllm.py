"""As much of a vLLM server as its client meets: over real HTTP, with our real worker extension, and no model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from agentgym_trainer.engines.base import SamplingParams
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.engines.vllm.weight_transfer import fetch
from agentgym_trainer.engines.vllm.worker import WeightReceiver
from agentgym_trainer.models.weights import Weights
from patience import PATIENCE

Answer = tuple[int, Any]


class FakeWorker(WeightReceiver):
    """What vLLM would mix our extension into."""

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []
        text = SimpleNamespace(tie_word_embeddings=False)
        model = SimpleNamespace(
            dtype=torch.float32, logprobs_mode="processed_logprobs", max_model_len=64, hf_text_config=text
        )
        self.vllm_config = SimpleNamespace(
            model_config=model,
            lora_config=SimpleNamespace(max_lora_rank=8),
            device_config=SimpleNamespace(device_type="fake"),
        )

    def agentgym_take_adapter(self, host: str, port: int, secret: str, config: Any) -> None:
        """The real one needs vLLM's own parts."""
        self.loaded.append({"config": config, **dict(fetch(host, port, secret))})

    def reload_weights(self, weights_iterator: Any) -> None:
        self.loaded.append(dict(weights_iterator))


class FakeServer:
    """Answers at `url` from `start` until `die`, and again after the next `start`, knowing nothing of before."""

    port = 0

    async def start(self) -> None:
        self.worker, self.label, self.running, self.adapters = FakeWorker(), "default", asyncio.Event(), set()
        self.running.set()
        self.answering = asyncio.Event()
        """Replies end while it is set."""
        self.answering.set()
        self.asked: list[tuple[str, Any]] = []
        self.sampling = 0
        self.well = True
        self.instead: dict[str, list[Callable[[], Answer]]] = {}
        """By path, what the next questions are answered with instead."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def die(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                size = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
                body = await reader.readexactly(size)
                answering = asyncio.create_task(self._answer(first.split()[1], json.loads(body or b"{}")))
                hung_up = asyncio.create_task(reader.read(1))
                await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    await asyncio.wait({answering})
                    return
                hung_up.cancel()
                await asyncio.wait({hung_up})
                code, said = answering.result()
                data = json.dumps(said).encode()
                kind = f"HTTP/1.1 {code} Said\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                writer.write(kind.encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, target: str, body: Any) -> Answer:
        where = urlsplit(target)
        self.asked.append((where.path, body))
        if scripted := self.instead.get(where.path):
            return scripted.pop(0)()
        match where.path:
            case "/health":
                return (200, None) if self.well else await asyncio.Event().wait()
            case "/weight_info":
                return 200, {"weight_version": self.label}
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/pause":
                assert dict(parse_qsl(where.query)) == {"mode": "keep"}
                self.running.clear()
            case "/resume":
                self.running.set()
            case "/reset_prefix_cache":
                assert dict(parse_qsl(where.query)) == {"reset_running_requests": "true"}
                assert not self.running.is_set()
                return 200, {"success": True}
            case "/v1/models":
                return 200, {"data": [{"id": name} for name in ("policy", *self.adapters)]}
            case "/v1/load_lora_adapter":
                assert body["lora_name"] not in self.adapters
                self.adapters.add(body["lora_name"])
            case "/collective_rpc":
                return await self._call(body)
            case "/inference/v1/generate":
                return await self._generate(body)
            case path:
                return 404, {"detail": f"no {path} here"}
        return 200, {}

    async def _call(self, body: Any) -> Answer:
        try:
            return 200, {"results": [await asyncio.to_thread(getattr(self.worker, body["method"]), *body["args"])]}
        except (ConnectionError, RuntimeError, ValueError) as error:
            return 500, {"error": {"message": f"Worker failed with {error}"}}

    async def _generate(self, body: Any) -> Answer:
        """Says the number of ids it was told, with the weights that are there, and its seed, with those at its end."""
        if body.get("model", "policy") not in {"policy", *self.adapters}:
            return 404, {"error": {"message": f"no model {body['model']}"}}
        await self.running.wait()
        self.sampling += 1
        began = self.label
        try:
            await self.answering.wait()
            await self.running.wait()
        finally:
            self.sampling -= 1
        return 200, self.reply(body, [began, self.label])

    def reply(self, body: Any, labels: list[str], finish: str = "stop") -> Any:
        """Two tokens, each by one of the weights."""
        ids = [len(body["token_ids"]), body["sampling_params"]["seed"]]
        choice = {
            "finish_reason": finish,
            "token_ids": ids,
            "weight_versions": [{"version": label, "start": n, "end": n + 1} for n, label in enumerate(labels)],
            "logprobs": {"content": [{"token_id": token, "logprob": -0.5 * n} for n, token in enumerate(ids, 1)]},
        }
        details = {"cached_tokens": len(body["token_ids"]) - 1}
        usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": 2, "prompt_tokens_details": details}
        return {"choices": [choice], "usage": usage}


TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "slanted": torch.arange(6.0).reshape(2, 3).T,
    "number": torch.tensor(3.5),
    "nothing": torch.empty(0, 4),
    "count": torch.tensor([7], dtype=torch.int64),
}
ONE = SamplingParams(max_tokens=16, seed=11)


def weights(version: int, **how: Any) -> Weights:
    return Weights(version, lambda: iter({**TENSORS, "version": torch.tensor(float(version))}.items()), **how)


def engine(server: FakeServer | Any, **how: Any) -> VllmServer:
    where = server.url if isinstance(server, FakeServer) else server
    return VllmServer(where, **{"run": "run", "end_id": 2, "max_context": 64, "patience": PATIENCE} | how)


def play(scene: Callable[[FakeServer, VllmServer], Awaitable[None]], **how: Any) -> None:
    """Run a scene with a server and an engine that asks it."""

    async def scenery() -> None:
        server = FakeServer()
        await server.start()
        sampler = engine(server, **how)
        try:
            async with asyncio.timeout(PATIENCE):
                await scene(server, sampler)
        finally:
            await sampler.close()
            server.die()

    asyncio.run(scenery())
