"""What goes wrong between a client and its servers: nothing is played twice, and what is lost is said to be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from agentgym_envs import EnvFault
from agentgym_envs.pool.calls import Reset, Result, Step, WorldSpec
from agentgym_envs.remote.client import Client, split_urls
from agentgym_envs.remote.slots import RemoteSlot, Servers
from patience import PATIENCE, eventually
from remote_servers import HELD, FarServer, Wire, far_server

PAUSES = (0.01,) * 9
"""More than there are faults: time that passes for one attempt may be over for the next one, too."""


class Play:
    """A slot, and the result of each call to it. Attempts time out when `wire` says nothing, and never by the clock."""

    def __init__(self, *urls: str, wire: Wire | None = None) -> None:
        self.servers = Servers([wire.url] if wire else urls, timeout=PATIENCE, pauses=PAUSES)
        self.slots = [RemoteSlot(0, WorldSpec(HELD), self.servers)]
        if wire:
            self._passed = 0.0
            self.servers.loop._loop.time = lambda: time.monotonic() + self._passed
            wire.elapse = self._elapse

    def _elapse(self) -> None:
        self._passed += PATIENCE
        self.servers.loop.call_soon(str)  # so that the loop looks at its clock

    def __call__(self, call: Reset | Step, slot: int = 0) -> Result:
        while len(self.slots) <= slot:
            self.slots.append(RemoteSlot(len(self.slots), WorldSpec(HELD), self.servers))
        answer: Future[Result] = Future()
        self.slots[slot].submit(call, answer.set_result)
        return answer.result(PATIENCE)

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
        self.servers.close()


@pytest.fixture
def play(wire: Wire) -> Iterator[Play]:
    """A slot at the other end of the wire, which has 3 knocks before it."""
    play = Play(wire=wire)
    assert play(Reset("door/train/3")).observation == "Knock 3 times."
    yield play
    play.close()


@pytest.mark.parametrize("faults", [["drop"], ["cut"], ["mute"], ["drop", "cut", "mute"]], ids="-".join)
def test_a_step_whose_answer_is_lost_is_not_played_twice(play: Play, wire: Wire, faults: list[str]) -> None:
    wire.faults[:] = faults
    assert play(Step("knock")).observation == "You knocked 1 times."
    assert wire.faults == []
    result = play(Step("knock"))
    assert (result.observation, result.info["raw"]["knocks"]) == ("You knocked 2 times.", 2)


@pytest.mark.parametrize("fault", ["drop", "cut", "mute"])
def test_a_session_whose_birth_is_not_told_is_not_made_twice(server: FarServer, wire: Wire, fault: str) -> None:
    before = len(server.sessions)
    wire.faults.append(fault)
    play = Play(wire=wire)
    assert play(Reset("door/train/1")).error is None
    assert len(server.sessions) == before + 1
    play.close()
    assert len(server.sessions) == before


def test_a_reset_is_repeated_with_its_key(play: Play, wire: Wire) -> None:
    drawn = [play(Reset(seed=seed)).info["task_id"] for seed in (7, None, None)]
    play(Reset(seed=7))
    wire.faults[:] = ["drop", "cut"]
    assert [play(Reset()).info["task_id"] for _ in range(2)] == drawn[1:]


def test_a_server_that_stays_silent_is_a_fault_and_reset_opens_anew(play: Play, wire: Wire) -> None:
    wire.faults[:] = ["drop"] * (len(PAUSES) + 1)
    fault = play(Step("knock")).error
    assert isinstance(fault, EnvFault)
    assert "can't be reached" in str(fault)
    assert isinstance(play(Step("knock")).error, EnvFault)
    assert play(Reset("door/train/2")).observation == "Knock 2 times."


def test_a_lease_that_ended_is_a_fault_in_an_episode_and_nothing_between_two(play: Play, server: FarServer) -> None:
    server.lose_all()
    assert play(Reset("door/train/1")).observation == "Knock 1 times."
    server.lose_all()
    fault = play(Step("knock")).error
    assert isinstance(fault, EnvFault)
    assert "no session" in str(fault)
    assert play(Reset("door/train/1")).observation == "Knock 1 times."


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_full_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr("agentgym_envs.server.errors.RETRY_SECONDS", seconds)
    waited: list[float] = []
    monkeypatch.setattr(Client, "jittered", lambda _, pause, least=0.0: waited.append(least) or 0.0)
    with far_server(max_sessions=1) as server:
        first, second = Play(server.url), Play(server.url)
        assert first(Reset("door/train/1")).error is None
        first.close()
        assert second(Reset("door/train/1")).error is None
        third = Play(server.url)
        fault = third(Reset("door/train/1")).error
        assert isinstance(fault, EnvFault)
        assert "1 sessions" in str(fault)
        assert waited == [seconds] * len(PAUSES)
        second.close()
        third.close()


def test_sessions_are_shared_out_and_move_when_a_server_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with far_server() as one, far_server() as other:
        play = Play(one.url, other.url)
        for slot in range(6):
            assert play(Reset("door/train/2"), slot).error is None
        assert (len(one.sessions), len(other.sessions)) == (3, 3)
        one.stop()
        results = [play(Step("knock"), slot) for slot in range(6)]
        assert sum(isinstance(result.error, EnvFault) for result in results) == 3
        assert sum(result.observation == "You knocked 1 times." for result in results) == 3
        for slot in range(6):
            assert play(Reset("door/train/2"), slot).observation == "Knock 2 times."
        assert len(other.sessions) == 6
        monkeypatch.setattr("agentgym_envs.remote.servers._LOAD_TTL", 0.0)
        with far_server(one.port) as back:
            assert [play(Reset("door/train/2"), slot).error for slot in (6, 7)] == [None, None]
            assert (len(back.sessions), len(other.sessions)) == (2, 6)
        play.close()
        assert len(other.sessions) == 0


def test_the_emptier_server_comes_first(server: FarServer) -> None:
    with far_server() as full:
        here = Play(full.url)
        for slot in range(3):
            here(Reset("door/train/2"), slot)
        before = len(server.sessions)
        play = Play(f"{full.url},{server.url}")
        play(Reset("door/train/2"))
        assert len(server.sessions) == before + 1
        play.close()
        here.close()


def test_urls_come_one_by_one_or_with_commas() -> None:
    assert split_urls("http://a, http://b ,") == ["http://a", "http://b"]
    assert split_urls(["http://a", "http://b,http://a"]) == ["http://a", "http://b"]


def test_the_last_user_may_leave_on_the_thread_of_the_loop(server: FarServer) -> None:
    """Where the collector of garbage finds it."""
    before = len(server.sessions)
    play = Play(server.url)
    play(Reset("door/train/1"))
    play.servers.loop.call_soon(play.servers.close)
    eventually(lambda: not play.servers.loop.alive)
    assert len(server.sessions) == before
