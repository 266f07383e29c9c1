"""Tests of the registration with Gymnasium, each in a new process, since importing Gymnasium can't be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

REGISTERED = "assert 'agentgym/TextCraft-v0' in gymnasium.registry and 'agentgym/Remote-v0' in gymnasium.registry"
LATER = """
import importlib.util, sys, agentgym_envs
assert "gymnasium" not in sys.modules
assert importlib.util.find_spec("gymnasium") is not None  # only looks whether it is there
import gymnasium.spaces
"""
UNCHANGED = """
import importlib.resources, sys
finders = list(sys.meta_path)
import agentgym_envs, gymnasium
assert sys.meta_path == finders
assert type(gymnasium.__loader__).__name__ == "SourceFileLoader"
assert gymnasium.__loader__ is gymnasium.__spec__.loader
assert importlib.resources.files("gymnasium").joinpath("py.typed").is_file()
"""
FAILING = """
import sys, agentgym_envs
sys.modules["numpy"] = None
try:
    import gymnasium
except ImportError:
    del sys.modules["numpy"]
import gymnasium
"""
PROBED = """
import importlib.util, threading, agentgym_envs
look = lambda: [importlib.util.find_spec("gymnasium") for _ in range(200)]
threads = [threading.Thread(target=look) for _ in range(4)]
for thread in threads:
    thread.start()
import gymnasium
for thread in threads:
    thread.join()
"""
CONCURRENT = """
from concurrent.futures import ThreadPoolExecutor
import agentgym_envs
with ThreadPoolExecutor(8) as threads:
    made = list(threads.map(lambda _: agentgym_envs.make("agentgym/TextCraft-v0"), range(8)))
import gymnasium
assert len(made) == 8
"""


@pytest.mark.parametrize(
    "code",
    [
        "import agentgym_envs, gymnasium",
        "import gymnasium, agentgym_envs",
        LATER,
        UNCHANGED,
        FAILING,
        PROBED,
        CONCURRENT,
    ],
    ids=["before", "after", "later", "import system unchanged", "failed import", "other threads look", "threads"],
)
def test_environments_are_registered(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"{code}\n{REGISTERED}"], check=True)


def test_gymnasium_imports_the_package_for_a_prefixed_id() -> None:
    code = "import gymnasium; print(gymnasium.make('agentgym_envs:agentgym/TextCraft-v0').spec.id)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "agentgym/TextCraft-v0\n"


def test_every_public_name_exists_and_others_are_reported() -> None:
    code = "import agentgym_envs as a; print({*a.__all__} <= set(dir(a)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
    import agentgym_envs

    assert all(getattr(agentgym_envs, name) is not None for name in agentgym_envs.__all__)
    with pytest.raises(AttributeError, match="module 'agentgym_envs' has no attribute 'nonesuch'"):
        _ = agentgym_envs.nonesuch  # type: ignore[attr-defined]
