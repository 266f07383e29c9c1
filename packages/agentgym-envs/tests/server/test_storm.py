"""Tests of many concurrent clients while workers are killed: only episodes of killed workers fail and start again.

No other episode is lost, executed twice or mixed up with another.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import blocking_world
import gymnasium
import httpx
import psutil
import pytest
from agentgym_envs import make
from agentgym_envs.pool.calls import Reset, Step, carry_out
from patience import PATIENCE, eventually, eventually_async
from serve_process import ServerProcess, serve_process

BLOCKING, TEXTCRAFT = blocking_world.ENV_ID, "agentgym/TextCraft-v0"
TASKS = {BLOCKING: "door/train/3", TEXTCRAFT: "textcraft/test/leather_boots"}
ACTIONS = {
    BLOCKING: ["knock", "knock", "nap", "dance"],
    TEXTCRAFT: ["inventory", "get 2 leather", "get 1 oak logs", "craft 4 oak planks using 1 oak logs", "dance"],
}
MALFORMED = [
    (b"{", 400),
    (b'{"action": 7}', 422),
    (b'{"action": "knock", "extra": 1}', 422),
    (b'{"action": "' + b"x" * 70_000 + b'"}', 422),
]


@dataclass
class Episode:
    """The actions of a client since a reset, and the outcomes that it received."""

    actions: list[str] = field(default_factory=list[str])
    outcomes: list[Any] = field(default_factory=list[Any])


@dataclass
class Shared:
    """The state that all clients share."""

    http: httpx.AsyncClient
    calls: Counter[tuple[str, int]]
    """The number of calls by kind and status, excluding repeats."""
    short_deadline: bool
    """Whether the server's deadline is so short that any call may miss it on a busy machine."""
    steps: int = 0

    async def kill_worker(self) -> tuple[int, int]:
        """Kill a worker, and return its process id and its number of sessions."""
        worker = (await self.http.get("/healthz")).json()["workers"][0]
        psutil.Process(worker["pid"]).kill()
        return worker["pid"], worker["sessions"]


class StressClient:
    """A client with one session, which misbehaves in one of five steps."""

    def __init__(self, number: int, shared: Shared, hold_folder: Path) -> None:
        self.world = (BLOCKING, TEXTCRAFT)[number % 2]
        self.rng = Random(number)
        self.shared = shared
        self.number = number
        self.hold_folder = hold_folder
        self.keys = 0
        self.episodes: list[Episode] = []
        self.faults: list[str] = []
        self.pids: list[int] = []
        """The processes that executed the environment, if it reports them."""

    async def open(self) -> None:
        response = await self.shared.http.post("/v1/sessions", json={"world": self.world})
        assert response.status_code == 201
        self.id = response.json()["id"]
        await self.reset()

    async def play(self, steps: int, *, miss_deadline: bool) -> None:
        for step in range(steps):
            self.shared.steps += 1
            if miss_deadline and step == steps // 2:
                await self.miss_deadline()
            chance = self.rng.random()
            if chance < 0.05:
                body, status = self.rng.choice(MALFORMED)
                assert (await self.post("step", body)).status_code == status
            else:
                await self.step(self.rng.choice(ACTIONS[self.world]), disconnect=chance < 0.2)

    async def step(self, action: str, *, disconnect: bool) -> None:
        response = await self.call("step", {"action": action}, disconnect=disconnect)
        if response.status_code == 200:
            self.episodes[-1].actions.append(action)
            self.record_outcome(response)
        else:
            assert response.status_code in (502, 504), response.text
            self.record_error(response)
            await self.reset()

    async def miss_deadline(self) -> None:
        status = 502
        while status == 502:  # its worker was killed before the deadline
            response = await self.call("step", {"action": f"hold {self.hold_folder}"})
            status = response.status_code
            self.record_error(response)
            await self.reset()
        assert status == 504

    async def reset(self) -> None:
        response = await self.call("reset", {"task": TASKS[self.world], "seed": self.number})
        while response.status_code in (502, 504):  # the worker died during the reset
            self.record_error(response)
            response = await self.call("reset", {"task": TASKS[self.world], "seed": self.number})
        assert response.status_code == 200, response.text
        self.episodes.append(Episode())
        self.record_outcome(response)

    def record_error(self, response: httpx.Response) -> None:
        """Record the type of an error, unless the call only missed the deadline."""
        if response.status_code != 504:
            self.faults.append(response.json()["error"]["type"])
        assert self.shared.short_deadline or response.status_code != 504

    def record_outcome(self, response: httpx.Response) -> None:
        outcome = response.json()
        if "pid" in outcome["info"]["raw"]:
            self.pids.append(outcome["info"]["raw"].pop("pid"))
        self.episodes[-1].outcomes.append(outcome)

    async def call(self, kind: str, body: dict[str, Any], *, disconnect: bool = False) -> httpx.Response:
        """Make a call, whose request may be sent several times, and return the response."""
        self.keys += 1
        content = json.dumps(body | {"key": f"{self.number}:{self.keys}"}).encode()
        if disconnect:
            await self.send_and_disconnect(kind, content)
        response = await self.post(kind, content)
        if self.rng.random() < 0.1:
            assert (await self.post(kind, content)).content == response.content
        self.shared.calls[kind, response.status_code] += 1
        return response

    async def post(self, kind: str, body: bytes) -> httpx.Response:
        path = f"/v1/sessions/{self.id}/{kind}"
        return await self.shared.http.post(path, content=body, headers={"Content-Type": "application/json"})

    async def send_and_disconnect(self, kind: str, body: bytes) -> None:
        """Send a request, or a part of it, and disconnect before the response."""
        url = self.shared.http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /v1/sessions/{self.id}/{kind} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        writer.write(request[: self.rng.choice([None, None, 40, -5])])
        await writer.drain()
        await asyncio.sleep(self.rng.choice([0.0, 0.005]))
        writer.close()


def replay(env: gymnasium.Env[str, str], client: StressClient, episode: Episode) -> list[Any]:
    """Return the outcomes of an episode's actions in a local environment."""
    calls = [Reset(TASKS[client.world], seed=client.number), *map(Step, episode.actions)]
    outcomes = [json.loads(json.dumps(carry_out(env, 0, call)._asdict())) for call in calls]
    for outcome in outcomes:
        outcome["info"]["raw"].pop("pid", None)
        for name in ("slot", "value", "error"):
            del outcome[name]
    return outcomes


async def run_clients(
    server: ServerProcess,
    count: int,
    steps: int,
    hold_folder: Path,
    *,
    kills: int = 0,
    late: int = 0,
    short_deadline: bool = True,
) -> None:
    """Run `count` clients of `steps` steps, of which `late` miss the deadline, kill workers and check all episodes."""
    limits = httpx.Limits(max_connections=count + 1, max_keepalive_connections=count + 1)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
        shared = Shared(http, await counted_calls(http), short_deadline)
        clients = [StressClient(number, shared, hold_folder) for number in range(count)]
        await asyncio.gather(*(client.open() for client in clients))
        await asyncio.gather(*(client.play(steps // 4, miss_deadline=False) for client in clients))
        tasks: list[asyncio.Task[None]] = []
        for client in clients:
            miss_deadline = client.number < 2 * late and client.world == BLOCKING
            tasks.append(asyncio.create_task(client.play(steps - steps // 4, miss_deadline=miss_deadline)))
        killed: list[tuple[int, int]] = []
        while len(killed) < kills:
            due = count * steps * (len(killed) + 2) / (kills + 3)
            await eventually_async(lambda due=due: shared.steps > due)
            killed.append(await shared.kill_worker())
        await asyncio.gather(*tasks)

        failed = [client for client in clients if client.faults]
        assert {fault for client in clients for fault in client.faults} <= {"world_fault"}
        assert len(failed) <= sum(sessions for _, sessions in killed)
        pids = {pid for pid, _ in killed}
        for client in clients:
            assert client.faults or not pids & set(client.pids), "its worker was killed, but it got no fault"
            assert not client.faults or client.world == TEXTCRAFT or pids & set(client.pids), "its worker is alive"
        for world in (BLOCKING, TEXTCRAFT):
            with make(world) as env:
                for client in clients:
                    for episode in client.episodes if client.world == world else ():
                        assert episode.outcomes == replay(env, client, episode)
        assert await counted_calls(http) == shared.calls
        assert shared.calls["step", 504] >= late
        for client in clients:
            assert (await http.delete(f"/v1/sessions/{client.id}")).status_code == 204
        health = (await http.get("/healthz")).json()
        assert health["sessions"] == 0
        assert [worker["alive"] for worker in health["workers"]] == [True, True]
        assert not pids & {worker["pid"] for worker in health["workers"]}


async def counted_calls(http: httpx.AsyncClient) -> Counter[tuple[str, int]]:
    """Return the server's counts of resets and steps by kind and status."""
    lines = re.findall(r'agentgym_calls_total\{kind="(\w+)",status="(\d+)"\} (\S+)', (await http.get("/metrics")).text)
    return Counter({(kind, int(status)): int(float(n)) for kind, status, n in lines if kind in ("reset", "step")})


def count_descriptors(server: ServerProcess) -> int:
    return psutil.Process(server.process.pid).num_fds()


@pytest.mark.long
def test_many_clients_with_a_killed_worker(tmp_path: Path) -> None:
    with serve_process("--world", f"blocking_world:{BLOCKING}", "--workers", 2, "--deadline", PATIENCE) as server:
        asyncio.run(run_clients(server, 8, 16, tmp_path, kills=1, short_deadline=False))


@pytest.mark.long
def test_many_clients_with_killed_workers_and_timeouts(tmp_path: Path) -> None:
    with serve_process("--world", f"blocking_world:{BLOCKING}", "--workers", 2, "--deadline", 8) as server:
        asyncio.run(run_clients(server, 8, 16, tmp_path))
        before = count_descriptors(server)
        asyncio.run(run_clients(server, 32, 40, tmp_path, kills=2, late=4))
        (tmp_path / "go").touch()
        eventually(lambda: count_descriptors(server) <= before)
