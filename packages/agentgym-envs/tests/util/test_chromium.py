"""Tests of how Chromium is found, and of the errors if there is none."""

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


def make_program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def bin_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set up a machine without any Chromium, and return its folder for programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    return tmp_path / "bin"


@pytest.fixture
def playwright_path(tmp_path: Path) -> str:
    """Return the path of Playwright's full Chromium."""
    return str(tmp_path / "playwright/chromium-1255/chrome-mac/Chromium.app/Contents/MacOS/Chromium")


@pytest.mark.parametrize("name", PROGRAMS)
def test_installed_chromium_is_found_on_the_path(bin_folder: Path, playwright_path: str, name: str) -> None:
    assert on_path() is None
    installed = make_program(bin_folder / name)
    assert on_path() == installed
    assert list(candidates(playwright_path)) == [installed, PLAYWRIGHTS]
    check_chromium()


def test_headless_shell_is_preferred_on_the_path(bin_folder: Path) -> None:
    for name in PROGRAMS:
        make_program(bin_folder / name)
    assert on_path() == str(bin_folder / "chromium-headless-shell")


def test_candidates_are_packaged_then_playwright_then_path(
    bin_folder: Path, playwright_path: str, tmp_path: Path
) -> None:
    installed = make_program(bin_folder / "chromium")
    (tmp_path / "playwright/chromium_headless_shell-1255").mkdir(parents=True)
    assert list(candidates(playwright_path)) == [PLAYWRIGHTS, installed]
    from_package = make_program(packaged())
    assert list(candidates(playwright_path)) == [from_package, PLAYWRIGHTS, installed]
    check_chromium()


def test_first_chromium_that_starts_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, missing = (
        ChromiumAttempt("/a", error=Error("boom")),
        ChromiumAttempt(PLAYWRIGHTS, error=Error("Executable doesn't exist")),
    )
    for results, expected in (
        ([broken, ChromiumAttempt("/b", "1.2")], "/b"),
        ([missing, ChromiumAttempt(PLAYWRIGHTS, "1.2")], PLAYWRIGHTS),
    ):
        monkeypatch.setattr(chromium, "attempts", lambda results=results: results)
        assert find_chromium() == expected
    monkeypatch.setattr(chromium, "attempts", lambda: [broken, missing])
    with pytest.raises(DependencyNotInstalled, match=r"Chromium does not start \(boom\)\. Install another: .*browser"):
        find_chromium()


def test_attempt_leaves_no_temporary_files(bin_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Playwright creates temporary folders before it notices that its Chromium is missing, and doesn't remove them."""
    script = bin_folder / "chromium"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (attempt,) = attempts(str(script))
    assert attempt.error is not None and not is_missing(attempt.error)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_missing_chromium_error_says_how_to_install_one() -> None:
    with pytest.raises(DependencyNotInstalled, match=r"There is no Chromium on this machine\. Install one: .*browser$"):
        check_chromium()
    with pytest.raises(DependencyNotInstalled, match=r"There is no Chromium at /nowhere/chromium\. Install one: "):
        check_chromium("/nowhere/chromium")


def test_root_on_debian_is_offered_apt_get(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(bin_folder / "apt-get")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert str(chromium.missing()).endswith("install-browser, or apt-get install chromium-headless-shell")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert str(chromium.missing()).endswith("install-browser")
