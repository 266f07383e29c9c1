"""Tests of `scripts/check_extras.py`, and of what every extra installs."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("check_extras", ROOT / "scripts/check_extras.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.import_module("sys").modules, "check_extras", module)  # for its dataclass
        spec.loader.exec_module(module)
    return module


def test_extras_of_all_packages_are_found(script: Any) -> None:
    found = list(script.extras(ROOT))
    assert len(set(found)) == len(found)
    assert {("agentgym-workspace", "vllm"), ("agentgym-envs", "all"), ("agentgym-trainer", "flash-attn")} <= {*found}


def test_packages_without_wheels_are_found(script: Any) -> None:
    wheel, sdist = [{"url": "a.whl"}], {"url": "a.tar.gz"}
    packages = [
        {"name": "both", "version": "1", "sdist": sdist, "wheels": wheel},
        {"name": "wheel", "version": "2", "wheels": wheel},
        {"name": "sdist", "version": "3", "sdist": sdist},
        {"name": "ours", "version": "4"},
    ]
    assert script.source_only({"package": packages}) == [("sdist", "3")]


def test_a_failure_is_reported_with_its_reason(script: Any, tmp_path: Path) -> None:
    if shutil.which("uv") is None:
        pytest.skip("uv isn't on the PATH")
    assert "unrecognized subcommand" in script.run(tmp_path, "sink")
    assert script.run(tmp_path, "--version") == ""


@pytest.mark.long
def test_every_extra_can_be_resolved(script: Any) -> None:
    if shutil.which("uv") is None:
        pytest.skip("uv isn't on the PATH")
    assert [checked for checked in script.check(ROOT, builds=False) if checked.fault] == []
