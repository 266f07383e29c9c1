"""Which Chromium is found, in which order, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs.util import chromium
from agentgym_envs.util.chromium import (
    PLAYWRIGHTS,
    PROGRAMS,
    ChromiumAttempt,
    attempts,
    candidates,
    check_chromium,
    find_chromium,
    is_missing,
    on_path,
    packaged,
)
from gymnasium.error import DependencyNotInstalled
from playwright.sync_api import Error


def program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Chromium; its folder for programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    return tmp_path / "bin"


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Where Playwright's whole Chromium would be."""
    return str(tmp_path / "playwright/chromium-1255/chrome-mac/Chromium.app/Contents/MacOS/Chromium")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_machines_own_is_found_on_the_path(bare: Path, own: str, name: str) -> None:
    assert on_path() is None
    machines = program(bare / name)
    assert on_path() == machines
    assert list(candidates(own)) == [machines, PLAYWRIGHTS]
    check_chromium()


def test_the_lightest_comes_first(bare: Path) -> None:
    for name in PROGRAMS:
        program(bare / name)
    assert on_path() == str(bare / "chromium-headless-shell")


def test_the_packaged_one_comes_first_and_then_playwrights(bare: Path, own: str, tmp_path: Path) -> None:
    machines = program(bare / "chromium")
    (tmp_path / "playwright/chromium_headless_shell-1255").mkdir(parents=True)
    assert list(candidates(own)) == [PLAYWRIGHTS, machines]
    ours = program(packaged())
    assert list(candidates(own)) == [ours, PLAYWRIGHTS, machines]
    check_chromium()


def test_the_first_that_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, gone = (
        ChromiumAttempt("/a", error=Error("boom")),
        ChromiumAttempt(PLAYWRIGHTS, error=Error("Executable doesn't exist")),
    )
    for made, found in (
        ([broken, ChromiumAttempt("/b", "1.2")], "/b"),
        ([gone, ChromiumAttempt(PLAYWRIGHTS, "1.2")], PLAYWRIGHTS),
    ):
        monkeypatch.setattr(chromium, "attempts", lambda made=made: made)
        assert find_chromium() == found
    monkeypatch.setattr(chromium, "attempts", lambda: [broken, gone])
    with pytest.raises(DependencyNotInstalled, match=r"Chromium does not start \(boom\)\. Install another: .*browser"):
        find_chromium()


def test_an_attempt_leaves_nothing_behind(bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Playwright makes folders before it finds that its own Chromium isn't there, and forgets them."""
    script = bare / "chromium"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (attempt,) = attempts(str(script))
    assert attempt.error is not None and not is_missing(attempt.error)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_where_there_is_none() -> None:
    with pytest.raises(DependencyNotInstalled, match=r"There is no Chromium on this machine\. Install one: .*browser$"):
        check_chromium()
    with pytest.raises(DependencyNotInstalled, match=r"There is no Chromium at /nowhere/chromium\. Install one: "):
        check_chromium("/nowhere/chromium")


def test_root_on_debian_may_use_apt(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "apt-get")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert str(chromium.missing()).endswith("install-browser, or apt-get install chromium-headless-shell")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert str(chromium.missing()).endswith("install-browser")
