"""Use of the Hugging Face hub, whose libraries try to reach it for half a minute where there is no network."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_TIMEOUT = 5.0  # seconds for the check that the hub is reachable


@contextmanager
def quickly_offline(settings: Any, endpoint: str) -> Generator[None]:
    """Set a library to its offline mode while the hub can't be reached, so that it uses its cache or fails at once.

    Args:
        settings: The library's settings, with `HF_HUB_OFFLINE`: `huggingface_hub.constants` or `datasets.config`.
        endpoint: The address of the hub.
    """
    before: bool = settings.HF_HUB_OFFLINE
    settings.HF_HUB_OFFLINE = before or not _reachable(endpoint)
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = before


def _reachable(url: str) -> bool:
    """Whether a server answers at `url`."""
    import httpx

    try:
        httpx.head(url, timeout=_TIMEOUT)
    except httpx.HTTPError:
        return False
    return True
