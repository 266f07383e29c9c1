"""What a server logs, how often, and how many files it may open."""

from __future__ import annotations

import logging
import logging.config
import resource
from typing import Any

import pytest
from agentgym_envs.server.logs import Seldom, log_config
from agentgym_envs.server.serving import raise_open_files

MOST = 1 << 20


def record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("uvicorn.error", level, "", 0, message, (), None)


def test_a_warning_is_told_once_a_minute_and_errors_always() -> None:
    now = 100.0
    seldom = Seldom(lambda: now)
    assert [seldom.filter(record("Invalid HTTP request received.")) for _ in range(1_000)] == [True] + [False] * 999
    assert seldom.filter(record("Something else."))
    assert all(seldom.filter(record("broken", logging.ERROR)) for _ in range(3))
    now += 60
    again = record("Invalid HTTP request received.")
    assert seldom.filter(again)
    assert (
        again.getMessage()
        == "Invalid HTTP request received. (999 similar warnings since the last one were suppressed.)"
    )
    now += 60
    third = record("Invalid HTTP request received.")
    assert seldom.filter(third)
    assert third.getMessage() == "Invalid HTTP request received."


def test_what_is_logged_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    config = log_config() | {"loggers": {"a_test_of_logs": {"handlers": ["stderr"], "propagate": False}}}
    logging.config.dictConfig(config)
    try:
        raise RuntimeError("http://:CANARY@host/ and token=CANARY")
    except RuntimeError:
        logging.getLogger("a_test_of_logs").exception("It broke for %s.", "password='CANARY'")
    told = capsys.readouterr().err
    assert "RuntimeError: http://***@host/ and token=***" in told
    assert "CANARY" not in told


@pytest.mark.parametrize(
    ("limits", "allowed", "asked", "said"),
    [
        ((1_024, 4_096), True, [(4_096, 4_096)], 4_096),
        ((1_024, resource.RLIM_INFINITY), True, [(MOST, resource.RLIM_INFINITY)], MOST),
        ((1_024, 1 << 30), True, [(MOST, 1 << 30)], MOST),
        ((4_096, 4_096), True, [], 4_096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), True, [], MOST),
        ((256, 10_240), False, [(10_240, 10_240)], 256),
    ],
)
def test_as_many_files_are_open_as_the_system_allows(
    limits: tuple[int, int], allowed: bool, asked: list[Any], said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = list[Any]()

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        wanted.append(limits)
        if not allowed:
            raise ValueError("too many")

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert raise_open_files() == said
    assert wanted == asked
