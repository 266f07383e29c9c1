"""Logging of a server: lines on stderr, with secrets redacted and repeated warnings suppressed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from agentgym_envs.util.redaction import RedactingFormatter

_INTERVAL = 60.0  # seconds
_MAX_WARNINGS = 256  # distinct warnings to keep track of


class RateLimitFilter(logging.Filter):
    """A filter that passes each warning once a minute, with the number of suppressed ones. Errors always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if record.levelno >= logging.ERROR:
            return True
        now, kind = self._clock(), (record.name, str(record.msg))
        logged, suppressed = self._seen.get(kind, (now - _INTERVAL, 0))
        if now - logged < _INTERVAL:
            self._seen[kind] = logged, suppressed + 1
            return False
        if len(self._seen) >= _MAX_WARNINGS:
            self._seen.clear()
        self._seen[kind] = now, 0
        if suppressed:
            record.msg = f"{record.getMessage()} ({suppressed:,} similar warnings since the last one were suppressed.)"
            record.args = None
        return True


def log_config() -> dict[str, Any]:
    """Return the `logging.config.dictConfig` for the server and the environments in its process."""
    handler = {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["seldom"]}
    logger = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"seldom": {"()": RateLimitFilter}},
        "formatters": {"plain": {"()": RedactingFormatter, "fmt": "%(levelname)s: %(message)s"}},
        "handlers": {"stderr": handler},
        "loggers": {"uvicorn": logger, "agentgym_envs": logger},
    }
