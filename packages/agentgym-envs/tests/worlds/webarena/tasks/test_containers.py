"""Tests of the reset hook for the Docker containers of `webarena-verified`, with stand-ins for its parts."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.login import Accounts
from agentgym_envs.worlds.webarena.options import real_sites
from agentgym_envs.worlds.webarena.tasks.containers import HOOK
from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook


def test_option_resets_before_every_task() -> None:
    sites = real_sites({"shopping": "http://localhost:7770"}, Accounts(), "containers", ())
    assert sites._reset_hook == ResetHook(HOOK, when="always")


def test_sites_that_tasks_change_are_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "started"
    (tmp_path / "webarena_verified.py").write_text(
        f"import sys; open({str(record)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asyncio.run(ResetHook(HOOK).run(["gitlab", "map", "wikipedia", "reddit"]))
    started = [f"env start --timeout 600 --site {site}" for site in ("gitlab", "reddit")]
    assert sorted(record.read_text().splitlines()) == started


def test_start_that_is_killed_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "webarena_verified.py").write_text(
        "import os, signal, sys; sys.argv[-1] == 'gitlab' and os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EnvFault, match="ended with exit status"):
        asyncio.run(ResetHook(HOOK).run(["gitlab", "reddit"]))


def test_container_that_fails_to_start_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("webarena_verified") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("webarena-verified is not installed")
    docker, log = tmp_path / "docker", tmp_path / "log"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" = ps ] || {{ echo "no such image" >&2; exit 125; }}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EnvFault, match=r"ended with exit status 1: (.|\n)*no such image"):
        asyncio.run(ResetHook(HOOK).run(["shopping"]))
    _, run = log.read_text().splitlines()
    assert run.startswith("run -d --name ")
    assert "7770:80" in run
