"""What `evaluate` and `collect` show while they play, where nobody sees a bar move."""

from __future__ import annotations

import queue
import re
import threading

import pytest
from agentgym_eval.util.progress import progress
from report_episodes import GOOD, episode


class Ticks(threading.Event):
    """A clock of which half a minute passes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: queue.Queue[bool] = queue.Queue()
        self._waiting: queue.Queue[float | None] = queue.Queue()

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.put(timeout)
        return self._passed.get()

    def set(self) -> None:
        super().set()
        self._passed.put(True)

    def pass_by(self) -> float | None:
        """The time passes, and whatever is due is done before this returns how long was waited for."""
        timeout = self._waiting.get()
        self._passed.put(False)
        self._waiting.put(self._waiting.get())
        return timeout


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"\d+(\.\d)? s", "N s", line) for line in capsys.readouterr().err.splitlines()]


def test_without_a_terminal_there_is_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock, used = Ticks(), iter(["", "12 requests", "90 requests"])
    with progress("p in w", GOOD[:1], 4, spent=lambda: next(used), stopping=clock) as show:
        assert lines(capsys) == ["p in w: 4 episodes, 1 of them already done"]
        assert clock.pass_by() == 30
        assert lines(capsys) == ["1/4 episodes after N s, success 0.0%, failed 0"]
        clock.pass_by()
        assert lines(capsys) == ["1/4 episodes after N s, success 0.0%, failed 0, 12 requests"]
        show(episode(1, 0, True))
        show(episode(2, 0, None))
        assert lines(capsys) == []
        clock.pass_by()
        assert lines(capsys) == ["3/4 episodes after N s, success 50.0%, failed 1, 90 requests"]
    assert lines(capsys) == ["2 episodes in N s, success 50.0%, failed 1"]
    assert clock.is_set()


def test_no_line_comes_after_a_run_that_broke_off(capsys: pytest.CaptureFixture[str]) -> None:
    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt), progress("p in w", [], 4):
        raise KeyboardInterrupt
    assert {*threading.enumerate()} <= before
    assert lines(capsys) == ["p in w: 4 episodes"]


def test_on_a_terminal_what_is_used_stands_below_the_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes a file for a terminal
    with progress("p in w", [], 4, spent=lambda: "12 requests, cost 0.0123"):
        pass
    screen = re.sub(r"\x1b\[[0-9?;]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "0/4" in screen
    assert "12 requests, cost 0.0123" in screen
