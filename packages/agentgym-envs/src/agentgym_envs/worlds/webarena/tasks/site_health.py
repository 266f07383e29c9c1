"""Check, before an episode begins, that its sites are up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.site_urls import Sites

_TIMEOUT = httpx.Timeout(20.0, connect=5.0)  # seconds; a page of a cold Magento takes ten


async def check_health(sites: Sites, keys: Iterable[str], timeout: httpx.Timeout | float = _TIMEOUT) -> None:
    """Request the home pages of the sites `keys` concurrently; a site is up if the status is below 500.

    Raises:
        ValueError: if a site isn't configured.
        EnvFault: if sites are down; the message names each with its URL and the reason.
    """
    urls = {key: sites.url(key) for key in keys}
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=True) as client:
        problems = await asyncio.gather(*(_problem(client, url) for url in urls.values()))
    down = [f"{key} ({url}): {problem}" for (key, url), problem in zip(urls.items(), problems, strict=True) if problem]
    if down:
        raise EnvFault(f"{'A site is' if len(down) == 1 else f'{len(down)} sites are'} down. {'; '.join(down)}")


async def _problem(client: httpx.AsyncClient, url: str) -> str | None:
    """Describe what is wrong with the site at `url`, or return None if it is up."""
    try:
        async with client.stream("GET", url) as response:  # the body isn't needed
            return f"status {response.status_code}" if response.status_code >= 500 else None
    except httpx.HTTPError as error:
        return f"{type(error).__name__}{f', {error}' if str(error) else ''}"
