"""What a server logs, and where to: lines on stderr without secrets, and not the same warning again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from agentgym_envs.util.redaction import RedactingFormatter

_SELDOM = 60.0  # seconds
_MOST = 256  # warnings to remember


class Seldom(logging.Filter):
    """Lets a warning pass once a minute; the next one says how many there were in between. Errors always pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written."""
        if record.levelno >= logging.ERROR:
            return True
        now, kind = self._clock(), (record.name, str(record.msg))
        told, left_out = self._told.get(kind, (now - _SELDOM, 0))
        if now - told < _SELDOM:
            self._told[kind] = told, left_out + 1
            return False
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[kind] = now, 0
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out:,} more like this since the last such line.)"
            record.args = None
        return True


def log_config() -> dict[str, Any]:
    """For `logging.config.dictConfig`: the server's lines and those of worlds in its process."""
    handler = {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["seldom"]}
    logger = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"seldom": {"()": Seldom}},
        "formatters": {"plain": {"()": RedactingFormatter, "fmt": "%(levelname)s: %(message)s"}},
        "handlers": {"stderr": handler},
        "loggers": {"uvicorn": logger, "agentgym_envs": logger},
    }
