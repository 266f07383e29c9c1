from __future__ import annotations

from collections.abc import Iterator

import pytest
from agentgym_envs.worlds.sciworld import jvm_pool
from agentgym_envs.worlds.sciworld.jvm import JvmSpec
from agentgym_envs.worlds.sciworld.simulator import find_jar


@pytest.fixture(scope="package", autouse=True)
def shared_jvm() -> Iterator[None]:
    """Keep a JVM running between tests, for environments with the default timeout."""
    jvm = jvm_pool.enter(JvmSpec(find_jar(), 60.0), 1)
    yield
    jvm_pool.leave(jvm)
