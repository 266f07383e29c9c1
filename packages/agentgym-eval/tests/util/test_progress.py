"""Tests of the progress output of `evaluate` and `collect`, with and without a terminal."""

from __future__ import annotations

import queue
import re
import threading

import pytest
from agentgym_eval.util.progress import counted, progress
from report_episodes import GOOD, episode


class ManualClock(threading.Event):
    """An event whose timeout elapses when the test calls `elapse`."""

    def __init__(self) -> None:
        super().__init__()
        self._elapsed: queue.Queue[bool] = queue.Queue()
        self._waiting: queue.Queue[float | None] = queue.Queue()

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.put(timeout)
        return self._elapsed.get()

    def set(self) -> None:
        super().set()
        self._elapsed.put(True)

    def elapse(self) -> float | None:
        """Let one timeout elapse, wait until its output is written, and return the timeout."""
        timeout = self._waiting.get()
        self._elapsed.put(False)
        self._waiting.put(self._waiting.get())
        return timeout


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"\d+(\.\d)? s", "N s", line) for line in capsys.readouterr().err.splitlines()]


def test_progress_line_every_30_seconds_without_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    clock, usage = ManualClock(), iter(["", "12 requests", "90 requests"])
    with progress("p in w", GOOD[:1], 4, spent=lambda: next(usage), stopping=clock) as show:
        assert lines(capsys) == ["p in w: 4 episodes, 1 of them already done"]
        assert clock.elapse() == 30
        assert lines(capsys) == ["1/4 episodes after N s, success 0.0%, failed 0"]
        clock.elapse()
        assert lines(capsys) == ["1/4 episodes after N s, success 0.0%, failed 0, 12 requests"]
        show(episode(1, 0, True))
        show(episode(2, 0, None))
        assert lines(capsys) == []
        clock.elapse()
        assert lines(capsys) == ["3/4 episodes after N s, success 50.0%, failed 1, 90 requests"]
    assert lines(capsys) == ["2 episodes in N s, success 50.0%, failed 1"]
    assert clock.is_set()


def test_count_every_30_seconds_without_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with counted("Exporting", 1200, "episodes", stopping=clock) as advance:
        assert lines(capsys) == ["Exporting: 1,200 episodes"]
        for _ in range(1100):
            advance()
        assert clock.elapse() == 30
        assert lines(capsys) == ["1,100/1,200 episodes after N s"]
    assert lines(capsys) == []
    assert clock.is_set()


def test_interrupted_run_prints_no_final_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt), progress("p in w", [], 4):
        raise KeyboardInterrupt
    assert {*threading.enumerate()} <= before
    assert lines(capsys) == ["p in w: 4 episodes"]


def test_usage_is_shown_below_the_progress_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich treat a file as a terminal
    with progress("p in w", [], 4, spent=lambda: "12 requests, cost 0.0123"):
        pass
    screen = re.sub(r"\x1b\[[0-9?;]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "0/4" in screen
    assert "12 requests, cost 0.0123" in screen
