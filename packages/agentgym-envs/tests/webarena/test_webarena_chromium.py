"""Which Chromium is started, with what, and what is said where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from agentgym_envs.text_env import EnvFault
from agentgym_envs.worlds.webarena import chromium
from agentgym_envs.worlds.webarena.browser import Browser, acquire
from agentgym_envs.worlds.webarena.chromium import PROGRAMS, flags, on_path
from agentgym_envs.worlds.webarena.hosts import Hosts
from gymnasium.error import DependencyNotInstalled

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


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_machines_own_is_found_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, program: str
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / program).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert on_path() == str(folder / program)


def test_the_lightest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert on_path() == "/bin/chromium-headless-shell"


def test_a_program_that_is_not_there(make: Make) -> None:
    browser = make("/nowhere/chromium")
    with pytest.raises(DependencyNotInstalled, match=r"no Chromium at /nowhere/chromium\. .*--only-shell chromium"):
        browser.loop.run(browser.session(), 60)


def test_no_program_at_all(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))  # which the driver looks at
    monkeypatch.setattr(chromium, "on_path", lambda: None)
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match="playwright install --only-shell chromium, or apt-get install"):
        browser.loop.run(browser.session(), 60)


def test_a_program_that_is_none(make: Make) -> None:
    browser = make("/bin/false")
    with pytest.raises(EnvFault, match="Chromium did not come up"):
        browser.loop.run(browser.session(), 60)


def test_a_missing_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    browser = make(None)
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra webarena"):
        browser.loop.run(browser.session(), 60)
