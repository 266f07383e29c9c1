"""Tests of `ResetHook`: resets of sites by URL or command, retries and timeouts."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
from pages_server import NEVER, Page, PagesServer
from patience import PATIENCE, all_end, eventually_async


def test_hook_is_wanted_before_tasks_that_require_it() -> None:
    assert ResetHook("http://x").wanted({"require_reset": True})
    assert not ResetHook("http://x").wanted({"require_reset": False})
    assert not ResetHook("http://x").wanted({})
    assert ResetHook("http://x", when="always").wanted({})


def test_url_receives_the_sites(server: PagesServer) -> None:
    server.pages["/reset"] = "done"
    url = f"http://{server.address}/reset"
    asyncio.run(ResetHook(url).run(["shopping", "reddit"]))
    asyncio.run(ResetHook(url, method="GET").run(["shopping", "reddit"]))
    post, get = server.requests
    assert (post.method, json.loads(post.body)) == ("POST", {"sites": ["shopping", "reddit"]})
    assert (get.method, get.path) == ("GET", "/reset?sites=shopping%2Creddit")


def test_url_is_requested_until_the_reset_is_done(server: PagesServer) -> None:
    server.pages["/reset"] = Page("not yet", status=503)

    async def finish_reset() -> None:
        await eventually_async(lambda: len(server.requests) >= 3)
        server.pages["/reset"] = "done"

    async def run_hook() -> None:
        await asyncio.gather(ResetHook(f"http://{server.address}/reset", pause=0.01).run(["map"]), finish_reset())

    asyncio.run(run_hook())
    assert len(server.requests) > 3


@pytest.mark.parametrize(
    ("page", "timeout", "message"),
    [
        (Page("who are you?", status=403), PATIENCE, "status 403: who are you"),
        (Page("busy", status=503), PATIENCE, "status 503: busy"),
        (Page(delay=NEVER), 0.3, "took over 0.3 s"),
    ],
)
def test_failing_url_is_a_fault(server: PagesServer, page: Page, timeout: float, message: str) -> None:
    server.pages["/reset"] = page
    hook = ResetHook(f"http://{server.address}/reset", timeout=timeout, pause=timeout)  # no second attempt
    with pytest.raises(EnvFault, match=f"Resetting shopping with .*{message}"):
        asyncio.run(hook.run(["shopping"]))


def python_hook(code: str, *arguments: str) -> ResetHook:
    return ResetHook((sys.executable, "-c", code, *arguments))


def test_command_gets_the_sites_as_last_arguments(tmp_path: Path) -> None:
    file = tmp_path / "arguments"
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
    asyncio.run(python_hook(code, str(file), "$HOME").run(["shopping", "map"]))
    assert file.read_text() == "$HOME shopping map"


def test_failing_command_is_a_fault_with_its_output() -> None:
    code = "import sys; print('no docker'); print('here', file=sys.stderr); sys.exit(3)"
    with pytest.raises(EnvFault, match=r"ended with exit status 3: (no docker\s+here|here\s+no docker)"):
        asyncio.run(python_hook(code).run(["shopping"]))
    with pytest.raises(EnvFault, match=r"can't be run: .*No such file"):
        asyncio.run(ResetHook(("/no/such/program",)).run(["shopping"]))


@pytest.mark.long
@pytest.mark.parametrize("when", ["running", "starting"])
def test_cancelled_command_is_ended_with_its_children(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = asyncio.create_subprocess_exec, asyncio.Event()

    async def start_slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        await started.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    pid_file = tmp_path / "child"
    hook = ResetHook(
        ("sh", "-c", f"sleep 3600 & echo $! > {pid_file}.part; mv {pid_file}.part {pid_file}; wait"), timeout=PATIENCE
    )

    async def cancel_hook() -> psutil.Process:
        if when == "running":
            started.set()
        running = asyncio.create_task(hook.run(["shopping"]))
        await eventually_async(pid_file.exists)
        child = psutil.Process(int(pid_file.read_text()))
        running.cancel()  # like the timeout
        await asyncio.sleep(0)
        started.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return child

    assert all_end([asyncio.run(cancel_hook())])


def test_command_that_fails_to_start_after_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = asyncio.Event()

    async def fail_late(*command: str, **options: Any) -> asyncio.subprocess.Process:
        await cancelled.wait()
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_late)

    async def cancel_hook() -> None:
        running = asyncio.create_task(ResetHook(("true",), timeout=PATIENCE).run(["shopping"]))
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel_hook())


def test_command_that_times_out_is_a_fault() -> None:
    with pytest.raises(EnvFault, match=r"took over 0\.1 s"):
        asyncio.run(ResetHook(("sh", "-c", "sleep 3600"), timeout=0.1).run(["shopping"]))


def test_invalid_hooks_are_rejected() -> None:
    with pytest.raises(ValueError, match="is not a URL; give the reset hook a URL, or a command as a list"):
        ResetHook("docker restart shop")
    with pytest.raises(ValueError, match="is empty"):
        ResetHook(())
