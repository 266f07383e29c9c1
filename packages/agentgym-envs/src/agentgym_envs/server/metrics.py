"""Metrics for Prometheus.

Each app has its own registry, so that several apps in a process don't interfere. Label values never come from clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 100.0)


class Metrics:
    """Counts and times the calls of sessions."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, sessions: Callable[[], float], workers: Callable[[], float]) -> None:
        """Create all metrics with zero counts.

        Args:
            sessions: Returns the number of open sessions.
            workers: Returns the number of live workers.
        """
        self._registry = CollectorRegistry()
        calls = Counter("agentgym_calls", "Calls by kind and status.", ["kind", "status"], registry=self._registry)
        seconds = Histogram(
            "agentgym_call_seconds", "Duration of calls.", ["kind"], buckets=_BUCKETS, registry=self._registry
        )
        self._calls = cache(calls.labels)  # looking up a label takes longer than counting
        self._seconds = cache(seconds.labels)
        self.expired = Counter("agentgym_expired_sessions", "Sessions whose lease expired.", registry=self._registry)
        self.restarts = Counter(
            "agentgym_worker_restarts", "Workers that replaced a dead one.", registry=self._registry
        )
        Gauge("agentgym_sessions", "Open sessions.", registry=self._registry).set_function(sessions)
        Gauge("agentgym_workers", "Live workers.", registry=self._registry).set_function(workers)

    def called(self, kind: str, status: int, seconds: float) -> None:
        """Count a call of `kind` (create, reset, step, ask) that ended with the HTTP `status` after `seconds`."""
        self._calls(kind, str(status)).inc()
        self._seconds(kind).observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
