"""How many TextCraft steps a second our server plays, in single calls and in batches, and how long one call takes;
beside `plain_server.py`, which is in AgentGym's style: one POST a step.

    uv run python benchmarks/server.py --seconds 4 --out server.json

Each row has a server of its own, in a process of its own, with SESSIONS sessions. The client is one thread with plain
sockets and requests written beforehand, so that what is measured is the server; rows that say so have another client.
`x loop` compares with the plain server and AgentGym's client, which plays one world after the other and waits
for each call; `x best` with the plain server at its best, and `CPU x` with what it computes per step there.
Clients and servers share the machine's cores, and whoever else is at work there: `CPU us` is the processor time of
the server per step, which depends least on that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import agentgym_envs
import httpx
import numpy as np
import psutil
from agentgym_envs.pool import EnvPool

SESSIONS = 64
WORLD = "agentgym/TextCraft-v0"
OPTIONS = {"max_episode_steps": 10**9}
REFUSED = re.compile(rb'"status":[45]')
"""In a line of a batch's answer; what worlds say has its quotes escaped."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured of one server and one client."""

    server: str
    client: str
    steps_per_second: float
    cpu_us: float
    """Processor time of the server per step, all of its processes together."""
    p50_ms: float | None = None
    """Of a request, batch or single; None where the client doesn't say."""
    p99_ms: float | None = None


Played = tuple[int, float, list[float]]
"""Steps, seconds, and seconds of each request."""


# Servers.


@contextmanager
def started(*command: str) -> Generator[tuple[str, psutil.Process]]:
    """A server that prints its URL, and its process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            if found is None:
                raise RuntimeError(f"{' '.join(command)} did not come up.")
            yield found[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def ours(workers: int) -> Any:
    """Our server, as `uv run serve` starts it."""
    return started(str(Path(sys.executable).parent / "serve"), "--port", "0", "--workers", str(workers))


def plain() -> Any:
    """The one in AgentGym's style."""
    return started(sys.executable, str(Path(__file__).with_name("plain_server.py")))


def processor_time(server: psutil.Process) -> float:
    """Seconds that a server and its workers have computed."""
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(time.user + time.system for time in times)


# What is played.


def games(count: int) -> list[tuple[str, list[str]]]:
    """Tasks, and actions for each which don't end it."""
    env = agentgym_envs.make(WORLD)
    found: list[tuple[str, list[str]]] = []
    for task in agentgym_envs.text_env(env).tasks.train[:count]:
        _, info = env.reset(options={"task": task.id})
        goal = task.payload["goal"]
        found.append((task.id, [action for action in info["available_actions"] if f" {goal} using" not in action]))
    return found


def open_plain(url: str) -> list[list[Any]]:
    """Worlds on the plain server in which a task was begun: the bodies of steps for each."""
    bodies: list[list[Any]] = []
    for task, actions in games(SESSIONS):
        number = httpx.post(f"{url}/create").json()["id"]
        httpx.post(f"{url}/reset", json={"id": number, "task": task}).raise_for_status()
        bodies.append([{"id": number, "action": action} for action in actions])
    return bodies


def open_ours(url: str) -> list[tuple[str, list[Any]]]:
    """Sessions on our server in which a task was begun: id and bodies of steps for each."""
    sessions: list[tuple[str, list[Any]]] = []
    for task, actions in games(SESSIONS):
        made = httpx.post(f"{url}/v1/sessions", json={"world": WORLD, "options": OPTIONS}).json()["id"]
        httpx.post(f"{url}/v1/sessions/{made}/reset", json={"task": task}).raise_for_status()
        sessions.append((made, [{"action": action} for action in actions]))
    return sessions


# Clients.


def request(url: str, path: str, body: Any) -> bytes:
    """A POST as bytes."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Line:
    """A kept connection that says its requests one after the other, over and over."""

    def __init__(self, url: str, requests: Sequence[bytes]) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname or "", place.port or 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = itertools.cycle(requests)
        self._read = b""
        self._began = 0.0

    def send(self) -> None:
        """Send the next request."""
        self._read = b""
        self._began = time.perf_counter()
        self.socket.sendall(next(self._requests))

    def receive(self) -> float | None:
        """Read what is there; once the answer is whole, the seconds since its request."""
        self._read += self.socket.recv(1 << 20)
        if not whole(self._read):
            return None
        if not self._read.startswith(b"HTTP/1.1 20") or REFUSED.search(self._read):
            raise RuntimeError(f"The server said {self._read[:300]!r}.")
        return time.perf_counter() - self._began


def whole(read: bytes) -> bool:
    """Whether all of an answer was read."""
    head, ended, body = read.partition(b"\r\n\r\n")
    if not ended:
        return False
    length = re.search(rb"content-length: (\d+)", head)
    return len(body) == int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def play(url: str, requests: Sequence[Sequence[bytes]], steps: int, seconds: float) -> Played:
    """Send the requests of each line on a connection of its own, all at once, for so many `seconds`; each request
    plays `steps`.
    """
    took: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for mine in requests:
            line = Line(url, mine)
            stack.callback(line.socket.close)
            selector.register(line.socket, selectors.EVENT_READ, line)
            line.send()
        began = now = time.perf_counter()
        open_lines = len(requests)
        while open_lines:
            for key, _ in selector.select():
                one: Line = key.data
                if (answered := one.receive()) is not None:
                    took.append(answered)
                    now = time.perf_counter()
                    if now < began + seconds:
                        one.send()
                    else:
                        open_lines -= 1
    return steps * len(took), now - began, took


def play_pool(url: str, seconds: float) -> Played:
    """Play as a user does: an `EnvPool` whose slots each step as soon as they can."""
    steps = 0
    with EnvPool(WORLD, SESSIONS, url, options=OPTIONS) as pool:
        for slot, (task, _) in enumerate(played := games(SESSIONS)):
            pool.reset(slot, task)
        left = SESSIONS
        while left:
            left -= len(pool.recv())
        actions = [itertools.cycle(mine) for _, mine in played]
        for slot in range(SESSIONS):
            pool.send(slot, next(actions[slot]))
        began = now = time.perf_counter()
        open_slots = SESSIONS
        while open_slots:
            for result in pool.recv():
                if result.error is not None:
                    raise result.error
                steps += 1
                if now < began + seconds:
                    pool.send(result.slot, next(actions[result.slot]))
                else:
                    open_slots -= 1
            now = time.perf_counter()
    return steps, now - began, []


def play_httpx(url: str, bodies: Sequence[Sequence[Any]], seconds: float) -> Played:
    """Play as AgentGym's client does: one world after the other, each call waited for."""
    took: list[float] = []
    with httpx.Client() as client:
        began = now = time.perf_counter()
        for mine in itertools.cycle(map(itertools.cycle, bodies)):
            before = now
            client.post(f"{url}/step", json=next(mine)).raise_for_status()
            now = time.perf_counter()
            took.append(now - before)
            if now > began + seconds:
                break
    return len(took), now - began, took


def play_threads(url: str, bodies: Sequence[Sequence[Any]], seconds: float) -> Played:
    """Play with a thread and a connection for each world."""
    with ThreadPoolExecutor(len(bodies)) as threads:
        parts = list(threads.map(lambda mine: play_httpx(url, [mine], seconds), bodies))
    return sum(part[0] for part in parts), max(part[1] for part in parts), [t for part in parts for t in part[2]]


# Rows.


def rate(name: str, client: str, server: psutil.Process, playing: Callable[[], Played]) -> Rate:
    """One row."""
    before = processor_time(server)
    steps, seconds, took = playing()
    cpu = 1e6 * (processor_time(server) - before) / steps
    middle, late = (1000 * float(np.quantile(took, q)) if took else None for q in (0.5, 0.99))
    return Rate(name, client, steps / seconds, cpu, middle, late)


def plain_rates(seconds: float) -> Iterator[Rate]:
    """The rows of the plain server."""
    with plain() as (url, server):
        bodies = open_plain(url)
        lines = [[request(url, "/step", body) for body in mine] for mine in bodies]
        yield rate("plain", "httpx, one after the other", server, lambda: play_httpx(url, bodies, seconds))
        yield rate("plain", f"httpx, {SESSIONS} threads", server, lambda: play_threads(url, bodies, seconds))
        yield rate("plain", "sockets, 1 at once", server, lambda: play(url, lines[:1], 1, seconds))
        yield rate("plain", f"sockets, {SESSIONS} at once", server, lambda: play(url, lines, 1, seconds))


def our_rates(workers: int, seconds: float) -> Iterator[Rate]:
    """The rows of our server with so many workers."""
    name = f"ours, {workers} workers"
    with ours(workers) as (url, server):
        sessions = open_ours(url)
        lines = [[request(url, f"/v1/sessions/{made}/step", body) for body in mine] for made, mine in sessions]
        yield rate(name, "sockets, 1 at once", server, lambda: play(url, lines[:1], 1, seconds))
        yield rate(name, f"sockets, {SESSIONS} at once", server, lambda: play(url, lines, 1, seconds))
        for count in (1, 2):
            size = SESSIONS // count
            parts = [batches(url, sessions[i * size : (i + 1) * size]) for i in range(count)]
            client = f"sockets, {count} batch{'es' if count > 1 else ''} of {size}"
            yield rate(name, client, server, lambda parts=parts, size=size: play(url, parts, size, seconds))
        yield rate(name, f"EnvPool, {SESSIONS} slots", server, lambda: play_pool(url, seconds))


def batches(url: str, sessions: Sequence[tuple[str, list[Any]]]) -> list[bytes]:
    """Requests that each play an action in every session."""
    turns = [itertools.cycle([{"session": made, **body} for body in mine]) for made, mine in sessions]
    return [request(url, "/v1/step", {"calls": [next(turn) for turn in turns]}) for _ in range(64)]


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="time per row")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="worker processes of our server")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    rates: list[Rate] = []
    heads = "".join(f"{head:>9}" for head in ("CPU us", "p50 ms", "p99 ms", "x loop", "x best"))
    print(f"{'server':<18}{'client':<30}{'steps/s':>10}{heads}{'CPU x':>7}")
    rows = itertools.chain(plain_rates(asked.seconds), *(our_rates(count, asked.seconds) for count in asked.workers))
    for row in rows:
        rates.append(row)
        theirs = [one for one in rates if one.server == "plain"]
        best = max(theirs, key=lambda one: one.steps_per_second)
        times = "".join(f"{ms:>9.2f}" if ms is not None else f"{'':>9}" for ms in (row.p50_ms, row.p99_ms))
        ratios = "".join(f"{row.steps_per_second / one.steps_per_second:>9.1f}" for one in (theirs[0], best))
        ratios += f"{best.cpu_us / row.cpu_us:>7.1f}"
        print(
            f"{row.server:<18}{row.client:<30}{row.steps_per_second:>10,.0f}{row.cpu_us:>9,.0f}{times}{ratios}",
            flush=True,
        )
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(row) for row in rates], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
