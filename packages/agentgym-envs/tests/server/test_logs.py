"""Tests of the server's logging and of its limit on open files."""

from __future__ import annotations

import logging
import logging.config
import resource
from typing import Any

import pytest
from agentgym_envs.server.logs import RateLimitFilter, log_config
from agentgym_envs.server.serving import raise_open_files

MAX_OPEN_FILES = 1 << 20


def make_record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("uvicorn.error", level, "", 0, message, (), None)


def test_warnings_are_logged_once_a_minute_and_errors_always() -> None:
    now = 100.0
    log_filter = RateLimitFilter(lambda: now)
    passed = [log_filter.filter(make_record("Invalid HTTP request received.")) for _ in range(1_000)]
    assert passed == [True] + [False] * 999
    assert log_filter.filter(make_record("Something else."))
    assert all(log_filter.filter(make_record("broken", logging.ERROR)) for _ in range(3))
    now += 60
    second = make_record("Invalid HTTP request received.")
    assert log_filter.filter(second)
    assert (
        second.getMessage()
        == "Invalid HTTP request received. (999 similar warnings since the last one were suppressed.)"
    )
    now += 60
    third = make_record("Invalid HTTP request received.")
    assert log_filter.filter(third)
    assert third.getMessage() == "Invalid HTTP request received."


def test_log_lines_contain_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    config = log_config() | {"loggers": {"a_test_of_logs": {"handlers": ["stderr"], "propagate": False}}}
    logging.config.dictConfig(config)
    try:
        raise RuntimeError("http://:CANARY@host/ and token=CANARY")
    except RuntimeError:
        logging.getLogger("a_test_of_logs").exception("It broke for %s.", "password='CANARY'")
    stderr = capsys.readouterr().err
    assert "RuntimeError: http://***@host/ and token=***" in stderr
    assert "CANARY" not in stderr


@pytest.mark.parametrize(
    ("limits", "allowed", "requested", "expected"),
    [
        ((1_024, 4_096), True, [(4_096, 4_096)], 4_096),
        ((1_024, resource.RLIM_INFINITY), True, [(MAX_OPEN_FILES, resource.RLIM_INFINITY)], MAX_OPEN_FILES),
        ((1_024, 1 << 30), True, [(MAX_OPEN_FILES, 1 << 30)], MAX_OPEN_FILES),
        ((4_096, 4_096), True, [], 4_096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), True, [], MAX_OPEN_FILES),
        ((256, 10_240), False, [(10_240, 10_240)], 256),
    ],
)
def test_limit_on_open_files_is_raised_to_the_maximum(
    limits: tuple[int, int], allowed: bool, requested: list[Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = list[Any]()

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        requests.append(limits)
        if not allowed:
            raise ValueError("too many")

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert raise_open_files() == expected
    assert requests == requested
