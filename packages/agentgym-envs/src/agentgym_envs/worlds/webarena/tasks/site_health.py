"""Asks the sites whether they are up, all at once, before an episode begins. Knows nothing about tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.site_urls import Sites

_PATIENCE = httpx.Timeout(20.0, connect=5.0)  # seconds; a page of a cold Magento takes ten


async def check_health(sites: Sites, keys: Iterable[str], timeout: httpx.Timeout | float = _PATIENCE) -> None:
    """Ask each of the sites `keys` for its first page; an answer below 500 is a sign of life.

    Raises:
        ValueError: when one isn't configured.
        EnvFault: when some are down; names each with its URL and the reason.
    """
    urls = {key: sites.url(key) for key in keys}
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=True) as client:
        troubles = await asyncio.gather(*(_trouble(client, url) for url in urls.values()))
    down = [f"{key} ({url}): {trouble}" for (key, url), trouble in zip(urls.items(), troubles, strict=True) if trouble]
    if down:
        raise EnvFault(f"{'A site is' if len(down) == 1 else f'{len(down)} sites are'} down. {'; '.join(down)}")


async def _trouble(client: httpx.AsyncClient, url: str) -> str | None:
    """What is wrong with the site at `url`; None when it answers."""
    try:
        async with client.stream("GET", url) as answer:  # the body doesn't matter
            return f"status {answer.status_code}" if answer.status_code >= 500 else None
    except httpx.HTTPError as error:
        return f"{type(error).__name__}{f', {error}' if str(error) else ''}"
