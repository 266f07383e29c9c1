"""Tests of launching Chromium: flags, the choice of the program, the sandbox, and error messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import text_env
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.hosts import Hosts
from agentgym_envs.worlds.webarena.browser.launch import flags, launch
from gymnasium.error import DependencyNotInstalled
from playwright.async_api import Error

Make = Callable[[str | None], Browser]


@pytest.fixture
def make() -> Iterator[Make]:
    """A function that acquires a browser with the given program; all are released at the end."""
    browsers: list[Browser] = []

    def make(program: str | None = None) -> Browser:
        browsers.append(acquire({"chromium.example": None}, program))
        return browsers[-1]

    yield make
    for browser in browsers:
        browser.release()


def test_flags_allow_only_the_hosts() -> None:
    arguments = flags(Hosts.of({"shop.example:80": "127.0.0.1:8000"}))
    assert "--host-resolver-rules=MAP shop.example:80 127.0.0.1:8000 , MAP * ~NOTFOUND" in arguments
    assert "--no-proxy-server" in arguments
    assert not [flag for flag in arguments if flag.startswith(("--disable-features", "--enable-features"))]


def test_missing_program_is_reported(make: Make) -> None:
    browser = make("/nowhere/chromium")
    with pytest.raises(DependencyNotInstalled, match=r"no Chromium at /nowhere/chromium\. Install one: "):
        browser.loop.run(browser.session(), 60)


@pytest.fixture
def no_chromium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PLAYWRIGHT_BROWSERS_PATH", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))


def test_machine_without_chromium_is_reported(no_chromium: None, make: Make) -> None:
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match=r"no Chromium on this machine\. Install one: .*install-browser"):
        browser.loop.run(browser.session(), 60)


def test_check_dependencies_reports_missing_chromium(no_chromium: None) -> None:
    with closing(gymnasium.make("agentgym_envs:agentgym/WebArena-v0")) as env, pytest.raises(DependencyNotInstalled):
        text_env(env).check_dependencies()


def test_program_that_is_not_chromium_is_a_fault(make: Make) -> None:
    browser = make("/bin/false")
    with pytest.raises(EnvFault, match=r"Chromium \(/bin/false\) did not start"):
        browser.loop.run(browser.session(), 60)


class FakePlaywright:
    """A fake Playwright that records the launches of Chromium and fails the first ones with the given errors."""

    executable_path = "/nowhere/chromium-1/chrome"

    def __init__(self, *errors: str) -> None:
        self.chromium = self
        self.sandboxed: list[bool] = []
        self._errors = list(errors)

    async def launch(self, *, chromium_sandbox: bool, **_: object) -> str:
        self.sandboxed.append(chromium_sandbox)
        if self._errors:
            raise Error(self._errors.pop(0))
        return "a browser"


@pytest.mark.parametrize(
    ("user", "errors", "sandboxed"),
    [
        (0, [], [False]),
        (1000, [], [True]),
        (1000, ["No usable sandbox!"], [True, False]),
        (1000, ["No usable sandbox!", "no libnss3.so"], [True, False]),
        (1000, ["executable doesn't exist"], [True]),
    ],
)
def test_sandbox_is_used_where_possible(
    user: int, errors: list[str], sandboxed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    playwright = FakePlaywright(*errors)
    launching: Any = launch(playwright, Hosts.of({"chromium.example": None}), "/x/chromium")  # pyright: ignore[reportArgumentType]
    with pytest.raises((EnvFault, DependencyNotInstalled)) if len(errors) == len(sandboxed) else nullcontext():
        assert asyncio.run(launching) == "a browser"
    assert playwright.sandboxed == sandboxed


def test_next_candidate_is_launched_if_the_first_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    candidates = [None, "/usr/bin/chrome"]
    monkeypatch.setattr("agentgym_envs.worlds.webarena.browser.launch.candidates", lambda own: candidates)
    playwright = FakePlaywright("no libnss3.so")
    launching: Any = launch(playwright, Hosts.of({"chromium.example": None}), None)  # pyright: ignore[reportArgumentType]
    assert asyncio.run(launching) == "a browser"
    playwright = FakePlaywright("no libnss3.so", "executable doesn't exist")
    launching = launch(playwright, Hosts.of({"chromium.example": None}), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvFault, match=r"did not start: no libnss3"):
        asyncio.run(launching)


def test_missing_playwright_names_the_install_command(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra webarena"):
        browser.loop.run(browser.session(), 60)
