"""Many clients at a server whose workers die under them: no episode is lost, doubled or mixed up, but those of the dead
workers, which end as faults and begin anew.
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
from serve_process import Serve, serve_process

HELD, CRAFT = blocking_world.ENV_ID, "agentgym/TextCraft-v0"
TASKS = {HELD: "door/train/3", CRAFT: "textcraft/test/leather_boots"}
ACTIONS = {
    HELD: ["knock", "knock", "nap", "dance"],
    CRAFT: ["inventory", "get 2 leather", "get 1 oak logs", "craft 4 oak planks using 1 oak logs", "dance"],
}
MALFORMED = [
    (b"{", 400),
    (b'{"action": 7}', 422),
    (b'{"action": "knock", "extra": 1}', 422),
    (b'{"action": "' + b"x" * 70_000 + b'"}', 422),
]


@dataclass
class Episode:
    """What a client did from a reset on, and what it was told."""

    actions: list[str] = field(default_factory=list[str])
    outcomes: list[Any] = field(default_factory=list[Any])


@dataclass
class Storm:
    """What all clients share."""

    client: httpx.AsyncClient
    counted: Counter[tuple[str, int]]
    """The calls by kind and status, repeats left out."""
    hurried: bool
    """Whether the server's deadline is so short that on a busy machine any call may miss it."""
    steps: int = 0

    async def kill(self) -> tuple[int, int]:
        """Kill a worker; its process and how many sessions it had."""
        worker = (await self.client.get("/healthz")).json()["workers"][0]
        psutil.Process(worker["pid"]).kill()
        return worker["pid"], worker["sessions"]


class Player:
    """A client with a session of its own, which behaves badly one time in five."""

    def __init__(self, number: int, storm: Storm, held_in: Path) -> None:
        self.world = (HELD, CRAFT)[number % 2]
        self.rng = Random(number)
        self.storm = storm
        self.number = number
        self.held_in = held_in
        self.keys = 0
        self.episodes: list[Episode] = []
        self.faults: list[str] = []
        self.homes: list[int] = []
        """The processes in which it saw its world played, where the world tells."""

    async def enter(self) -> None:
        made = await self.storm.client.post("/v1/sessions", json={"world": self.world})
        assert made.status_code == 201
        self.id = made.json()["id"]
        await self.begin()

    async def play(self, steps: int, *, late: bool) -> None:
        for step in range(steps):
            self.storm.steps += 1
            if late and step == steps // 2:
                await self.be_late()
            chance = self.rng.random()
            if chance < 0.05:
                body, status = self.rng.choice(MALFORMED)
                assert (await self.post("step", body)).status_code == status
            else:
                await self.act(self.rng.choice(ACTIONS[self.world]), leave=chance < 0.2)

    async def act(self, action: str, *, leave: bool) -> None:
        answer = await self.call("step", {"action": action}, leave=leave)
        if answer.status_code == 200:
            self.episodes[-1].actions.append(action)
            self.keep(answer)
        else:
            assert answer.status_code in (502, 504), answer.text
            self.hear(answer)
            await self.begin()

    async def be_late(self) -> None:
        answer = await self.call("step", {"action": f"hold {self.held_in}"})
        self.hear(answer)
        await self.begin()

    async def begin(self) -> None:
        answer = await self.call("reset", {"task": TASKS[self.world], "seed": self.number})
        while answer.status_code in (502, 504):  # its worker died while it began
            self.hear(answer)
            answer = await self.call("reset", {"task": TASKS[self.world], "seed": self.number})
        assert answer.status_code == 200, answer.text
        self.episodes.append(Episode())
        self.keep(answer)

    def hear(self, answer: httpx.Response) -> None:
        """A deadline that was missed says nothing about the world."""
        if answer.status_code != 504:
            self.faults.append(answer.json()["error"]["type"])
        assert self.storm.hurried or answer.status_code != 504

    def keep(self, answer: httpx.Response) -> None:
        outcome = answer.json()
        if "pid" in outcome["info"]["raw"]:
            self.homes.append(outcome["info"]["raw"].pop("pid"))
        self.episodes[-1].outcomes.append(outcome)

    async def call(self, kind: str, body: dict[str, Any], *, leave: bool = False) -> httpx.Response:
        """The answer to a call that is made once, though it may be sent several times."""
        self.keys += 1
        keyed = json.dumps(body | {"key": f"{self.number}:{self.keys}"}).encode()
        if leave:
            await self.send_and_leave(kind, keyed)
        answer = await self.post(kind, keyed)
        if self.rng.random() < 0.1:
            assert (await self.post(kind, keyed)).content == answer.content
        self.storm.counted[kind, answer.status_code] += 1
        return answer

    async def post(self, kind: str, body: bytes) -> httpx.Response:
        path = f"/v1/sessions/{self.id}/{kind}"
        return await self.storm.client.post(path, content=body, headers={"Content-Type": "application/json"})

    async def send_and_leave(self, kind: str, body: bytes) -> None:
        """Hang up before the answer, or before all is said."""
        url = self.storm.client.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /v1/sessions/{self.id}/{kind} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        writer.write(request[: self.rng.choice([None, None, 40, -5])])
        await writer.drain()
        await asyncio.sleep(self.rng.choice([0.0, 0.005]))
        writer.close()


def locally(env: gymnasium.Env[str, str], player: Player, episode: Episode) -> list[Any]:
    """What the world itself says to an episode's actions."""
    calls = [Reset(TASKS[player.world], seed=player.number), *map(Step, episode.actions)]
    outcomes = [json.loads(json.dumps(carry_out(env, 0, call)._asdict())) for call in calls]
    for outcome in outcomes:
        outcome["info"]["raw"].pop("pid", None)
        for name in ("slot", "value", "error"):
            del outcome[name]
    return outcomes


async def storm(
    server: Serve, clients: int, steps: int, held_in: Path, *, kills: int = 0, late: int = 0, hurried: bool = True
) -> None:
    limits = httpx.Limits(max_connections=clients + 1, max_keepalive_connections=clients + 1)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as client:
        shared = Storm(client, await told(client), hurried)
        players = [Player(number, shared, held_in) for number in range(clients)]
        await asyncio.gather(*(player.enter() for player in players))
        await asyncio.gather(*(player.play(steps // 4, late=False) for player in players))
        playing = [
            asyncio.create_task(player.play(steps - steps // 4, late=player.number < 2 * late and player.world == HELD))
            for player in players
        ]
        killed: list[tuple[int, int]] = []
        while len(killed) < kills:
            due = clients * steps * (len(killed) + 2) / (kills + 3)
            await eventually_async(lambda due=due: shared.steps > due)
            killed.append(await shared.kill())
        await asyncio.gather(*playing)

        hit = [player for player in players if player.faults]
        assert {fault for player in players for fault in player.faults} <= {"world_fault"}
        assert len(hit) <= sum(sessions for _, sessions in killed)
        pids = {pid for pid, _ in killed}
        for player in players:
            assert player.faults or not pids & set(player.homes), "its worker was killed, and it heard of nothing"
            assert not player.faults or player.world == CRAFT or pids & set(player.homes), "its worker lives"
        for world in (HELD, CRAFT):
            with make(world) as env:
                for player in players:
                    for episode in player.episodes if player.world == world else ():
                        assert episode.outcomes == locally(env, player, episode)
        assert await told(client) == shared.counted
        assert shared.counted["step", 504] > 0 or not late
        for player in players:
            assert (await client.delete(f"/v1/sessions/{player.id}")).status_code == 204
        health = (await client.get("/healthz")).json()
        assert health["sessions"] == 0
        assert [worker["alive"] for worker in health["workers"]] == [True, True]
        assert not pids & {worker["pid"] for worker in health["workers"]}


async def told(client: httpx.AsyncClient) -> Counter[tuple[str, int]]:
    """What the server counted of resets and steps."""
    lines = re.findall(
        r'agentgym_calls_total\{kind="(\w+)",status="(\d+)"\} (\S+)', (await client.get("/metrics")).text
    )
    return Counter({(kind, int(status)): int(float(n)) for kind, status, n in lines if kind in ("reset", "step")})


def descriptors(server: Serve) -> int:
    return psutil.Process(server.process.pid).num_fds()


@pytest.mark.long
def test_a_storm_in_which_nobody_is_late(tmp_path: Path) -> None:
    with serve_process("--world", f"blocking_world:{HELD}", "--workers", 2, "--deadline", PATIENCE) as server:
        asyncio.run(storm(server, 8, 16, tmp_path, kills=1, hurried=False))


@pytest.mark.long
def test_a_storm(tmp_path: Path) -> None:
    with serve_process("--world", f"blocking_world:{HELD}", "--workers", 2, "--deadline", 8) as server:
        asyncio.run(storm(server, 8, 16, tmp_path))
        before = descriptors(server)
        asyncio.run(storm(server, 32, 40, tmp_path, kills=2, late=4))
        (tmp_path / "go").touch()
        eventually(lambda: descriptors(server) <= before)
