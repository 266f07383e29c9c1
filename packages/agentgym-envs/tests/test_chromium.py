"""Which Chromium is found, in which order, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs import chromium
from agentgym_envs.chromium import PLAYWRIGHTS, PROGRAMS, candidates, check_chromium, find_chromium, on_path, packaged
from gymnasium.error import DependencyNotInstalled


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_machines_own_is_found_on_the_path(bare: Path, name: str) -> None:
    assert on_path() is None
    own = program(bare / name)
    assert on_path() == own
    assert list(candidates()) == [PLAYWRIGHTS, own]
    check_chromium()


def test_the_lightest_comes_first(bare: Path) -> None:
    for name in PROGRAMS:
        program(bare / name)
    assert on_path() == str(bare / "chromium-headless-shell")


def test_the_packaged_one_comes_before_all_others(bare: Path) -> None:
    own = program(bare / "chromium")
    assert list(candidates()) == [PLAYWRIGHTS, own]
    ours = program(packaged())
    assert list(candidates()) == [ours, PLAYWRIGHTS, own]
    assert find_chromium() == ours


def test_playwrights_own_is_there_when_it_starts(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(bare / "chromium")
    assert find_chromium() == own
    monkeypatch.setattr(chromium, "version", lambda program: "1.2.3")
    assert find_chromium() is PLAYWRIGHTS


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
