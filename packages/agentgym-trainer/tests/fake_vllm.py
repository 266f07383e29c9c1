"""A fake vLLM server without a model, with real HTTP and the real worker extension."""

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
from file_memory import map_file
from gloo_group import GlooGroup
from patience import PATIENCE

Answer = tuple[int, Any]


class FakeWorker(WeightReceiver):
    """The class that vLLM would mix the extension into."""

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
            weight_transfer_config=None,
        )
        self.transfer = FakeTransfer()

    def agentgym_take_adapter(self, host: str, port: int, secret: str, config: Any) -> None:
        """Replace the real method, which needs vLLM."""
        self.loaded.append({"config": config, **dict(fetch(host, port, secret))})

    def reload_weights(self, weights_iterator: Any) -> None:
        self.loaded.append(dict(weights_iterator))

    def update_weights(self, update_info: Any) -> None:
        self.transfer.map(update_info)


class FakeTransfer:
    """The receiving side of a server's workers, as vLLM's `NCCLWeightTransferEngine` without packing, or as its
    `IPCWeightTransferEngine` with packing and files in place of GPUs.
    """

    workers = 2
    devices = ("device-0",)
    """With files, the device of each worker."""

    def __init__(self) -> None:
        self.received: list[list[dict[str, torch.Tensor]]] = []
        """The tensors that each worker got, for each update."""
        self.active = False
        self._groups: list[GlooGroup] = []
        self._packed = False

    async def init(self, info: Any) -> None:
        if set(info) == {"packed"}:
            self._packed = info["packed"]
            return
        assert (info["rank_offset"], info["world_size"], info["packed"]) == (1, 1 + self.workers, False)
        host, port, size = info["master_address"], info["master_port"], info["world_size"]
        joining = [asyncio.to_thread(GlooGroup, host, port, rank, size) for rank in range(1, size)]
        self._groups = await asyncio.gather(*joining)

    def leave(self) -> None:
        """End the groups, as when a server dies. A sender that waits for them fails."""
        for group in self._groups:
            group.destroy()

    def start(self) -> bool:
        """Begin an update; False if one is under way."""
        started, self.active = not self.active, True
        if started:
            self.received.append([{} for _ in self._groups or self.devices])
        return started

    def map(self, info: Any) -> None:
        """Copy tensors out of files."""
        assert self.active
        assert self._packed
        for worker, device in enumerate(self.devices):
            if device not in info["ipc_handles"]:
                raise ValueError(f"no memory of {device}")
            memory, parts = map_file(*info["ipc_handles"][device]), info["tensor_sizes"]
            for part, name, dtype, shape in zip(
                memory[: sum(parts)].split(parts), info["names"], info["dtype_names"], info["shapes"], strict=True
            ):
                self.received[-1][worker][name] = part.view(getattr(torch, dtype)).view(shape).clone()

    async def update(self, info: Any) -> None:
        assert self.active
        receiving = [asyncio.to_thread(self._receive, worker, info) for worker in range(self.workers)]
        await asyncio.gather(*receiving)

    def _receive(self, worker: int, info: Any) -> None:
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._groups[worker].broadcast(tensor, src=0)
            self.received[-1][worker][name] = tensor


class FakeServer:
    """A server that answers between `start` and `stop`. Each `start` resets its state and reuses the port."""

    port = 0

    async def start(self) -> None:
        self.worker, self.label, self.running, self.adapters = FakeWorker(), "default", asyncio.Event(), set()
        self.running.set()
        self.may_reply = asyncio.Event()
        """Replies are completed only while this event is set."""
        self.may_reply.set()
        self.requests: list[tuple[str, Any]] = []
        self.sampling = 0
        self.healthy = True
        self.transfer = self.worker.transfer
        self.asleep = set[str]()
        self.holds_weights = True
        """Whether the weights weren't dropped while the server slept."""
        self.overrides: dict[str, list[Callable[[], Answer]]] = {}
        """Responses to the next requests, by path, in place of the regular ones."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.close()
        self.transfer.leave()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                length = next(
                    (int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0
                )
                body = await reader.readexactly(length)
                answering = asyncio.create_task(self._answer(first.split()[1], json.loads(body or b"{}")))
                disconnect = asyncio.create_task(reader.read(1))
                await asyncio.wait({answering, disconnect}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    await asyncio.wait({answering})
                    return
                disconnect.cancel()
                await asyncio.wait({disconnect})
                code, response = answering.result()
                data = json.dumps(response).encode()
                headers = (
                    f"HTTP/1.1 {code} Response\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                )
                writer.write(headers.encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, target: str, body: Any) -> Answer:
        url = urlsplit(target)
        self.requests.append((url.path, body))
        if scripted := self.overrides.get(url.path):
            return scripted.pop(0)()
        match url.path:
            case "/health":
                return (200, None) if self.healthy else await asyncio.Event().wait()
            case "/weight_info":
                return 200, {"weight_version": self.label}
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/pause":
                assert dict(parse_qsl(url.query)) == {"mode": "keep"}
                self.running.clear()
            case "/resume":
                assert not self.asleep
                self.running.set()
            case "/sleep":
                assert not self.sampling, "requests would be lost"
                self.running.clear()
                self.asleep = {"weights", "kv_cache"}
                self.holds_weights = dict(parse_qsl(url.query)) == {"level": "1"}
            case "/wake_up":
                (tag,) = (value for _, value in parse_qsl(url.query))
                self.asleep.discard(tag)
                if not self.asleep:
                    self.running.set()
            case "/reset_prefix_cache":
                assert dict(parse_qsl(url.query)) == {"reset_running_requests": "true"}
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
            case "/get_world_size":
                return 200, {"world_size": self.transfer.workers}
            case "/init_weight_transfer_engine":
                await self.transfer.init(body["init_info"])
            case "/start_weight_update":
                assert not self.running.is_set()
                assert "weights" not in self.asleep
                self.holds_weights = True
                return (200, {}) if self.transfer.start() else (500, {"error": {"message": "an update is active"}})
            case "/update_weights":
                await self.transfer.update(body["update_info"])
            case "/finish_weight_update":
                assert self.transfer.active
                self.transfer.active = False
            case path:
                return 404, {"detail": f"no {path} here"}
        return 200, {}

    async def _call(self, body: Any) -> Answer:
        if body["method"] != "agentgym_hello":
            assert "weights" not in self.asleep
            self.holds_weights = True
        try:
            return 200, {"results": [await asyncio.to_thread(getattr(self.worker, body["method"]), *body["args"])]}
        except (ConnectionError, RuntimeError, ValueError) as error:
            return 500, {"error": {"message": f"Worker failed with {error}"}}

    async def _generate(self, body: Any) -> Answer:
        """Sample two tokens: the number of prompt tokens, with the first weights, and the seed, with the last ones."""
        if body.get("model", "policy") not in {"policy", *self.adapters}:
            return 404, {"error": {"message": f"no model {body['model']}"}}
        await self.running.wait()
        assert not self.asleep
        assert self.holds_weights
        self.sampling += 1
        first_label = self.label
        try:
            await self.may_reply.wait()
            await self.running.wait()
        finally:
            self.sampling -= 1
        return 200, self.reply(body, [first_label, self.label])

    def reply(self, body: Any, labels: list[str], finish: str = "stop") -> Any:
        """Return a response with two tokens, each sampled by the weights of one label."""
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
SAMPLING = SamplingParams(max_tokens=16, seed=11)


def fake_weights(version: int, **settings: Any) -> Weights:
    return Weights(version, lambda: iter({**TENSORS, "version": torch.tensor(float(version))}.items()), **settings)


def make_engine(server: FakeServer | Any, **settings: Any) -> VllmServer:
    url = server.url if isinstance(server, FakeServer) else server
    return VllmServer(url, **{"run": "run", "end_id": 2, "max_context": 64, "patience": PATIENCE} | settings)


def run_scene(scene: Callable[[FakeServer, VllmServer], Awaitable[None]], **settings: Any) -> None:
    """Run a coroutine function with a server and an engine connected to it."""

    async def main() -> None:
        server = FakeServer()
        await server.start()
        client = make_engine(server, **settings)
        try:
            async with asyncio.timeout(PATIENCE):
                await scene(server, client)
        finally:
            await client.close()
            server.stop()

    asyncio.run(main())
