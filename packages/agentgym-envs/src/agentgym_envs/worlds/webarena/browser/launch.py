"""Start Chromium's headless shell through Playwright with fixed flags."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.chromium import PLAYWRIGHTS, candidates, is_missing, missing
from agentgym_envs.worlds.webarena.browser.hosts import Hosts
from agentgym_envs.worlds.webarena.browser.playwright_errors import first_line

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

_LAUNCH_TIMEOUT = 30.0
_FLAGS = (
    "--no-proxy-server",
    # One process for all frames of a page, so that one snapshot holds them all.
    "--disable-site-isolation-trials",
    # Network access that bypasses the resolver rules, and requests that no page makes.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
    "--no-pings",
    # The same screenshot on every machine.
    "--font-render-hinting=none",
    "--disable-lcd-text",
)


async def launch(playwright: Playwright, hosts: Hosts, executable_path: str | None) -> Browser:
    """Start a Chromium that can reach `hosts` only: the given program, else the first that `util.chromium` finds.

    Raises:
        DependencyNotInstalled: if there is none; the message has the install command.
        EnvFault: if it doesn't start.
    """
    from playwright.async_api import Error

    own, broken = playwright.chromium.executable_path, list[EnvFault]()
    for program in candidates(own) if executable_path is None else (executable_path,):
        try:
            return await _launch(playwright, hosts, program)
        except Error as error:
            if not is_missing(error):
                path = "" if program is PLAYWRIGHTS else f" ({program})"
                fault = EnvFault(f"Chromium{path} did not start: {first_line(error)}")
                fault.__cause__ = error
                broken.append(fault)
    if broken:
        raise broken[0]
    raise missing() if executable_path is None else missing(f"at {executable_path}")


def flags(hosts: Hosts) -> list[str]:
    """Return Chromium's command-line flags, without those that Playwright adds.

    `--disable-features` must not be among them: it would override Playwright's, as the last occurrence counts.
    """
    return [f"--host-resolver-rules={hosts.rules()}", *_FLAGS]


async def _launch(playwright: Playwright, hosts: Hosts, program: str | None) -> Browser:
    """Start a program in Chromium's sandbox; without it for root, and where the kernel doesn't permit it."""
    from playwright.async_api import Error

    start = functools.partial(
        playwright.chromium.launch,
        executable_path=program,
        args=flags(hosts),
        timeout=1000 * _LAUNCH_TIMEOUT,
        # The application handles signals; it may finish the current step first.
        handle_sigint=False,
        handle_sigterm=False,
        handle_sighup=False,
    )
    if os.geteuid() != 0:
        try:
            return await start(chromium_sandbox=True)
        except Error as error:
            if is_missing(error):
                raise
    return await start(chromium_sandbox=False)
