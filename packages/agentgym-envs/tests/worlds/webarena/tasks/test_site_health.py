"""Tests of `check_health`, which names the sites that are down."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.tasks.site_health import check_health
from pages_server import NEVER, Page, PagesServer
from patience import PATIENCE


def test_sites_that_respond_are_healthy(server: PagesServer) -> None:
    server.pages |= {"/a": Page(status=302, headers={"Location": "/b"}), "/b": "there", "/c": Page(status=403)}
    url = f"http://{server.address}"
    sites = Sites(shopping=f"{url}/a", reddit=f"{url}/c", gitlab="http://127.0.0.1:1")
    asyncio.run(check_health(sites, ["shopping", "reddit"]))
    assert sorted(server.paths()) == ["/a", "/b", "/c"]


def test_unhealthy_sites_are_named_with_the_reason(server: PagesServer) -> None:
    server.pages |= {"/up": "there", "/sick": Page(status=503)}
    url = f"http://{server.address}"
    sites = Sites(shopping=f"{url}/up", reddit=f"{url}/sick", gitlab="http://127.0.0.1:1")
    with pytest.raises(EnvFault) as fault:
        asyncio.run(check_health(sites, sites.configured, timeout=PATIENCE))
    message = str(fault.value)
    assert message.startswith("2 sites are down. ")
    assert f"reddit ({url}/sick): status 503" in message
    assert "gitlab (http://127.0.0.1:1): ConnectError" in message
    assert "shopping" not in message


def test_site_that_never_responds_is_down(server: PagesServer) -> None:
    server.pages["/asleep"] = Page(delay=NEVER)
    sites = Sites(map=f"http://{server.address}/asleep")
    with pytest.raises(EnvFault, match=r"A site is down. map \(http://.*/asleep\): ReadTimeout"):
        asyncio.run(check_health(sites, ["map"], timeout=httpx.Timeout(PATIENCE, read=0.1)))


def test_unconfigured_site_is_rejected() -> None:
    with pytest.raises(ValueError, match="needs the site map"):
        asyncio.run(check_health(Sites(), ["map"]))
