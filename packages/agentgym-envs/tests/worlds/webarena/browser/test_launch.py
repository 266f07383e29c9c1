"""Which Chromium is started, with what, and what is said where there is none."""

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
    """Browsers with a program of the test's choice, released at its end."""
    made: list[Browser] = []

    def make(program: str | None = None) -> Browser:
        made.append(acquire({"chromium.example": None}, program))
        return made[-1]

    yield make
    for browser in made:
        browser.release()


def test_only_the_hosts_are_in_the_flags() -> None:
    given = flags(Hosts.of({"shop.example:80": "127.0.0.1:8000"}))
    assert "--host-resolver-rules=MAP shop.example:80 127.0.0.1:8000 , MAP * ~NOTFOUND" in given
    assert "--no-proxy-server" in given
    assert not [flag for flag in given if flag.startswith(("--disable-features", "--enable-features"))]


def test_a_program_that_is_not_there(make: Make) -> None:
    browser = make("/nowhere/chromium")
    with pytest.raises(DependencyNotInstalled, match=r"no Chromium at /nowhere/chromium\. Install one: "):
        browser.loop.run(browser.session(), 60)


@pytest.fixture
def none_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PLAYWRIGHT_BROWSERS_PATH", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))


def test_no_program_at_all(none_at_all: None, make: Make) -> None:
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match=r"no Chromium on this machine\. Install one: .*install-browser"):
        browser.loop.run(browser.session(), 60)


def test_a_world_tells_before_it_is_played(none_at_all: None) -> None:
    with closing(gymnasium.make("agentgym_envs:agentgym/WebArena-v0")) as env, pytest.raises(DependencyNotInstalled):
        text_env(env).check_dependencies()


def test_a_program_that_is_none(make: Make) -> None:
    browser = make("/bin/false")
    with pytest.raises(EnvFault, match=r"Chromium \(/bin/false\) did not start"):
        browser.loop.run(browser.session(), 60)


class Driver:
    """Stands for Playwright: which attempts to start Chromium it sees, and which of them it refuses."""

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
def test_the_sandbox_is_on_where_it_can_be(
    user: int, errors: list[str], sandboxed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    driver = Driver(*errors)
    asked: Any = launch(driver, Hosts.of({"chromium.example": None}), "/x/chromium")  # pyright: ignore[reportArgumentType]
    with pytest.raises((EnvFault, DependencyNotInstalled)) if len(errors) == len(sandboxed) else nullcontext():
        assert asyncio.run(asked) == "a browser"
    assert driver.sandboxed == sandboxed


def test_another_is_started_where_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    candidates = [None, "/usr/bin/chrome"]
    monkeypatch.setattr("agentgym_envs.worlds.webarena.browser.launch.candidates", lambda own: candidates)
    driver = Driver("no libnss3.so")
    asked: Any = launch(driver, Hosts.of({"chromium.example": None}), None)  # pyright: ignore[reportArgumentType]
    assert asyncio.run(asked) == "a browser"
    driver = Driver("no libnss3.so", "executable doesn't exist")
    asked = launch(driver, Hosts.of({"chromium.example": None}), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvFault, match=r"did not start: no libnss3"):
        asyncio.run(asked)


def test_a_missing_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra webarena"):
        browser.loop.run(browser.session(), 60)
