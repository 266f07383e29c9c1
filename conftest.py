"""What holds for the tests of all packages, and what they may need of a machine. Where that is missing, they skip with
the command that installs it; under CI they fail.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import RegisteredWorld, make, text_env
from agentgym_envs.util.chromium import check_chromium
from gymnasium.error import DependencyNotInstalled
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

# No test is about time, and a busy machine is slow. Under CI the same examples are tried in each run; elsewhere others.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background or by nohup: Ctrl-C is still not for this process, but the commands that tests start and
    # interrupt would inherit that it is ignored. They inherit no handler.
    signal.signal(signal.SIGINT, lambda *_: None)


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores, since tests that start processes mostly wait; at most 4, each of up to 2.5 GB."""
    return min((os.cpu_count() or 1) + 2, 4)


def _demand(missing: str | None) -> None:
    if missing is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


@functools.cache
def _missing_browser() -> str | None:
    try:
        check_chromium()
    except DependencyNotInstalled as missing:
        return str(missing)
    return None


@functools.cache
def _missing_of(world: str) -> str | None:
    try:
        with closing(make(world)) as env:
            text_env(env).check_dependencies()
    except DependencyNotInstalled as missing:
        return str(missing)
    return None


@pytest.fixture(scope="session")
def requires_browser() -> None:
    """There is a Chromium."""
    _demand(_missing_browser())


@pytest.fixture(scope="session")
def requires_world() -> Callable[[str], None]:
    """A function that is given the id of a world: everything is there that the world needs to be played."""
    return lambda world: _demand(_missing_of(world))


@pytest.fixture
def playable(request: pytest.FixtureRequest, requires_world: Callable[[str], None]) -> None:
    """The world that the test's parameter `world` names has all that it needs, where the test has one."""
    if hasattr(request.node, "callspec"):
        world = request.node.callspec.params["world"]
        requires_world(world.id if isinstance(world, RegisteredWorld) else world)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing is imported for `-m quick` that has no such test: importing all takes longer than the quick tests."""
    if config.option.markexpr != "quick" or not collection_path.match("test_*.py"):
        return None
    return "mark.quick" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection() -> None:
    """Nothing looks for garbage while all is imported: there is little, and ever more to look through."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays to the end. Looked through again and again, it would take a fifth of the tests' time."""
    gc.freeze()
    gc.enable()


_FORKED = (
    "test_interruption.py",
    "test_evol.py",
    "test_dpo_run.py",
    "test_distributed.py",
    "test_many_processes.py",
    "test_sft_run.py",
)
"""Files whose tests train in processes that are forked from a server. One process tests them all, since it takes its
server half a minute to import what they need."""
_LONGEST = (
    *_FORKED,
    "test_vllm.py",
    "test_vllm_server.py",
    "test_doc_commands.py",
    "test_end_to_end.py",
    "test_contract.py",
    "test_webarena_oracle.py",
    "test_sciworld_jvm.py",
    "test_sciworld_oracle.py",
    "test_tutorial.py",
    "test_cluster_scripts.py",
    "test_server_fuzz.py",
    "test_server_storm.py",
    "test_train_cli.py",
    "test_testing.py",
    "test_faults.py",
    "test_training_run.py",
    "test_docs.py",
    "test_processes.py",
)
"""Files that take minutes. They come first, so that no process is left with one when the others have ended."""


class _Scheduling(LoadFileScheduling):
    """A file at a time, and those that share a server together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "forked" if Path(file).name in _FORKED else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out the files."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
