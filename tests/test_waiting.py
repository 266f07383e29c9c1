"""Tests that no test sleeps or has a short timeout.

A short timeout fails on a busy machine, and a sleep doesn't guarantee an order. Tests wait for events instead, with a
long timeout (`tests/shared/patience.py`). The source of all tests is searched for violations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHORTEST = 60.0  # seconds
WAITS = {"wait", "join", "result", "communicate", "wait_for", "acquire", "run"}
SLEEPS = {"time.sleep", "asyncio.sleep", "sleep"}
GLOBAL_CALLS = {"threading.active_count", "psutil.pid_exists"}
"""Calls whose results depend on other threads, or on later processes with the same id."""

# Allowed sleeps and short timeouts, with the reason why no result depends on them.
ALLOWED = {
    "shared/patience.py::eventually": "the only place that polls",
    "shared/patience.py::eventually_async": "the only place that polls",
    # Environments, also in other processes, that a test blocks with a file.
    "counting_world.py::_hold": "polls for the file",
    "blocking_world.py::_act": "polls for the file; `nap` takes a while, on which nothing depends",
    "pool/faulty_worlds.py::_act": "polls for the file",
    "forked_processes.py::_train_and_hang": "an environment that never answers",
    # Slow calls in stress tests, in which any order is correct.
    "counting_world.py::_act": "takes as long as its option says",
    "server/strange_worlds.py::_act": "`dawdle` takes longer than a turn of the event loop",
    "server/test_storm.py::send_and_disconnect": "disconnects at any moment",
    "gloo_worker.py::lengthen_steps": "makes a server slow, so that what a test does comes before its replies end",
    "engines/vllm/test_ipc_transfer.py::test_a_sleeping_server_that_dies_is_left_alone_until_it_is_needed": (
        "gives the watch time for a request that it must not send"
    ),
    "policies/endpoint/test_client.py::test_server_error_fails_only_its_request_if_others_succeed": "a fake clock",
    # Timeouts of calls that never return.
    "core/test_loop_thread.py::test_timeout_cancels_the_coroutine_and_raises_a_fault": "its own deadline",
    "worlds/webarena/test_faults.py::test_cancelled_evaluation_frees_the_session": "its own deadline",
    "rollout/test_harness_player.py::test_a_harness_that_does_not_end_is_a_failed_episode": "its own deadline",
    "rollout/test_harness_player.py::test_a_command_that_does_not_end_is_killed": "its own deadline",
    "worlds/webarena/tasks/test_reset_hook.py::test_command_that_times_out_is_a_fault": "its own deadline",
}


@cache
def files_of_tests() -> list[tuple[str, ast.Module]]:
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/**/*.py")]
    return [(_name(path), ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(paths)]


def _name(path: Path) -> str:
    return path.as_posix().rpartition("/tests/")[2]


def sleeps(call: ast.Call) -> bool:
    """Return whether a call sleeps. `asyncio.sleep(0)` only yields to the event loop, in a deterministic order."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    return (
        name == "sleep"
        and ast.unparse(call.func) in SLEEPS
        and [ast.unparse(argument) for argument in call.args] != ["0"]
    )


def waits_briefly(call: ast.Call) -> bool:
    timeouts = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    if isinstance(call.func, ast.Attribute) and call.func.attr in WAITS:
        timeouts += call.args
    timeouts = [
        value
        for timeout in timeouts
        for value in ([timeout.body, timeout.orelse] if isinstance(timeout, ast.IfExp) else [timeout])
    ]
    seconds = (timeout.value for timeout in timeouts if isinstance(timeout, ast.Constant))
    return any(type(value) in (int, float) and 0 < value < SHORTEST for value in seconds)


def violations(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that sleep or have a short timeout, with the outermost function around each."""
    for node in ast.iter_child_nodes(tree):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from violations(node, within or (node.name if function else ""))
        if isinstance(node, ast.Call) and (sleeps(node) or waits_briefly(node)):
            yield within, node


def test_no_test_sleeps_or_has_a_short_timeout() -> None:
    offences = {
        f"{name}:{call.lineno}": ast.unparse(call)[:100]
        for name, tree in files_of_tests()
        for within, call in violations(tree)
        if f"{name}::{within}" not in ALLOWED
    }
    assert offences == {}, "use eventually() or PATIENCE of tests/shared/patience.py"


def test_no_test_counts_all_threads_or_checks_process_ids() -> None:
    calls = [(name, node) for name, tree in files_of_tests() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [f"{name}:{call.lineno}" for name, call in calls if ast.unparse(call.func) in GLOBAL_CALLS] == []


def test_all_allowed_exceptions_exist() -> None:
    existing = {f"{name}::{within}" for name, tree in files_of_tests() for within, _ in violations(tree)}
    assert set(ALLOWED) <= existing


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(0.1)",
        "await asyncio.sleep(pause)",
        "process.wait(10)",
        "thread.join(timeout=5)",
        "httpx.get(url, timeout=30)",
        "loop.run(work(), 20)",
        "Hook(url, timeout=0.3 if slow else 5)",
    ],
)
def test_the_search_finds_violations(code: str) -> None:
    assert [within for within, _ in violations(ast.parse(f"async def test() -> None:\n    {code}"))] == ["test"]


@pytest.mark.parametrize("code", ["await asyncio.sleep(0)", "process.wait(PATIENCE)", "server.get(timeout=0)"])
def test_the_search_ignores_valid_waits(code: str) -> None:
    assert not [*violations(ast.parse(f"async def test() -> None:\n    {code}"))]
