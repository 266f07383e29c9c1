"""Starts Chromium's headless shell through Playwright: which program, and with which flags. Knows no page."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.text_env import EnvFault
from agentgym_envs.worlds.webarena.faults import first_line
from agentgym_envs.worlds.webarena.hosts import Hosts

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What Chromium is called on a PATH, the lightest first: a context takes 15 MB in the headless shell and 54 in
Chromium itself."""
INSTALL = "Install one: playwright install --only-shell chromium, or apt-get install chromium-headless-shell"
_LAUNCH_PATIENCE = 30.0
_FLAGS = (
    "--no-proxy-server",
    # One process for all frames of a page, so that one snapshot holds them all.
    "--disable-site-isolation-trials",
    # Ways out that no resolver rule guards, or that nobody asked for.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
    "--no-pings",
    # The same picture on every machine.
    "--font-render-hinting=none",
    "--disable-lcd-text",
)


async def launch(playwright: Playwright, hosts: Hosts, executable_path: str | None) -> Browser:
    """Start a Chromium that can reach `hosts` only: the given one, else Playwright's own, else the machine's.

    Raises:
        DependencyNotInstalled: when there is none; the message has the command that brings one.
        EnvFault: when it doesn't come up.
    """
    if executable_path is not None and not Path(executable_path).is_file():
        raise DependencyNotInstalled(f"There is no Chromium at {executable_path}. {INSTALL}")
    from playwright.async_api import Error

    try:
        return await _launch(playwright, hosts, executable_path)
    except Error as error:
        if "Executable doesn't exist" not in str(error):
            raise EnvFault(f"Chromium did not come up: {first_line(error)}") from error
    program = on_path()
    if program is None:
        raise DependencyNotInstalled(f"There is no Chromium, neither Playwright's own nor one on PATH. {INSTALL}")
    try:
        return await _launch(playwright, hosts, program)
    except Error as error:
        raise EnvFault(f"Chromium ({program}) did not come up: {first_line(error)}") from error


def on_path() -> str | None:
    """The machine's own Chromium, if it has one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def flags(hosts: Hosts) -> list[str]:
    """Chromium's command line, without what Playwright adds.

    There is no `--disable-features` here: it would undo Playwright's, as the last one counts.
    """
    return [f"--host-resolver-rules={hosts.rules()}", *_FLAGS]


async def _launch(playwright: Playwright, hosts: Hosts, program: str | None) -> Browser:
    return await playwright.chromium.launch(
        executable_path=program,
        args=flags(hosts),
        timeout=1000 * _LAUNCH_PATIENCE,
        # A signal is for the owner, which may want to play its step to the end.
        handle_sigint=False,
        handle_sigterm=False,
        handle_sighup=False,
    )
