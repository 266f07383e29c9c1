"""Configuration and fixtures for the tests of all packages.

A test that needs a browser or the dependencies of an environment skips with the command that installs them; under CI it
fails.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import subprocess
import sys
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

# No deadlines, since machines can be busy. CI tries the same examples in every run.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background or by nohup. This process keeps ignoring SIGINT, by a handler: unlike SIG_IGN, a handler
    # isn't inherited by the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, lambda *_: None)

if sys.dont_write_bytecode:
    # Where PYTHONDONTWRITEBYTECODE is set, each worker and each of hundreds of processes would compile torch's and
    # transformers' thousands of modules anew, for most of a minute. They share bytecode, in a folder of its own.
    sys.pycache_prefix = str(Path(__file__).parent / ".pytest_cache/bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Workers and the processes of tests share the cores. OpenMP's threads wait for each other in loops, so that a second
# thread triples the time of small models.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than cores, since tests that start processes mostly wait; at most 4, each of up to 2.5 GB."""
    return min((os.cpu_count() or 1) + 2, 4)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the packages that all workers import once, before they start: each would compile them at the same time.

    The bytecode of torch is there from the second run on.
    """
    heavy = importlib.util.find_spec("torch")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or heavy is None:
        return
    compiled = Path(importlib.util.cache_from_source(str(heavy.origin)))
    if not compiled.exists():
        imports = ("torch, peft, trl", "gymnasium, fastapi, playwright.async_api, hypothesis, scipy.stats")
        compiling = [subprocess.Popen([sys.executable, "-c", f"import {each}"]) for each in imports]
        for each in compiling:
            each.wait()


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
    """Skip without Chromium."""
    _demand(_missing_browser())


@pytest.fixture(scope="session")
def requires_world() -> Callable[[str], None]:
    """A function that skips if a dependency of the environment with the given id is missing."""
    return lambda world: _demand(_missing_of(world))


@pytest.fixture
def playable(request: pytest.FixtureRequest, requires_world: Callable[[str], None]) -> None:
    """Skip if a dependency of the environment in the test's parameter `world`, if it has one, is missing."""
    if hasattr(request.node, "callspec"):
        world = request.node.callspec.params["world"]
        requires_world(world.id if isinstance(world, RegisteredWorld) else world)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import files without quick tests for `-m quick`: importing all takes longer than the quick tests."""
    if config.option.markexpr != "quick" or not collection_path.match("test_*.py"):
        return None
    return "mark.quick" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection() -> None:
    """Disable garbage collection during imports, which leave little garbage and many objects to scan."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt all imported objects from garbage collection; scanning them would take a fifth of the tests' time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a file, collect its garbage, and exempt what it leaves: later files' collections would scan it again."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


_FORKED = (
    "trainers/test_interruption.py",
    "trainers/test_agent_evol.py",
    "trainers/test_dpo_run.py",
    "learner/test_two_processes.py",
    "trainers/test_many_processes.py",
    "trainers/test_sft_run.py",
    "models/test_gguf.py",
    "rollout/test_sharded_weights.py",
    "trainers/test_quantized_processes.py",
    "trainers/test_teacher_runs.py",
    "trainers/test_device_memory.py",
    "test_emulated_device.py",
)
"""Files whose tests run in processes forked from a server. One worker runs all of them, since the server imports
heavy packages for half a minute."""
_PLANNED = (
    "planning/test_engine_support.py",
    "planning/test_plan_activations.py",
    "planning/test_plan_command.py",
    "planning/test_plan_measured.py",
    "planning/test_plan_phases.py",
    "planning/test_plan_proposals.py",
    "tests/test_plan_docs.py",
)
"""Files whose tests measure the same models. One worker runs all of them, since measurements are cached."""
_SCOPES = {"forked": _FORKED, "planned": _PLANNED}
_SLOWEST = (
    *_FORKED,
    *_PLANNED,
    "engines/vllm/test_in_process.py",
    "engines/vllm/test_server.py",
    "tests/test_doc_commands.py",
    "tests/test_end_to_end.py",
    "worlds/test_contract.py",
    "webarena/expert/test_expert.py",
    "sciworld/test_jvm.py",
    "sciworld/test_expert.py",
    "tests/test_tutorial.py",
    "tests/test_site.py",
    "tests/test_notebooks.py",
    "tests/test_cluster_scripts.py",
    "server/test_fuzz.py",
    "server/test_storm.py",
    "agentgym-trainer/tests/test_cli_folders.py",
    "tests/test_first_hour.py",
    "tests/test_horizon_study.py",
    "trainers/test_test_split.py",
    "trainers/test_faults.py",
    "trainers/test_rl_run.py",
    "tests/test_docs.py",
    "cli/test_processes.py",
)
"""Files that take minutes. They run first, so that no worker starts one of them when the others are done."""


def _rank(path: Path) -> int:
    return next((rank for rank, pattern in enumerate(_SLOWEST) if path.match(pattern)), len(_SLOWEST))


class _Scheduling(LoadFileScheduling):
    """Schedule by file, and all files of a scope on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        scopes = (name for name, files in _SCOPES.items() if any(map(Path(file).match, files)))
        return next(scopes, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule by file."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first."""
    items.sort(key=lambda item: _rank(item.path))
