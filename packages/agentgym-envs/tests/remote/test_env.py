"""Tests of the remote environment: it behaves like a local one, and its session on the server is released."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import httpx
import numpy as np
import psutil
import pytest
from agentgym_envs import EnvFault, Malformed, make, text_env
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.pool import Result
from agentgym_envs.remote.answers import result
from agentgym_envs.remote.servers import Servers
from agentgym_envs.server.wire import written
from gymnasium.error import ResetNeeded
from patience import PATIENCE, eventually
from remote_servers import BLOCKING, RemoteServer, remote_server

TEXTCRAFT = "agentgym/TextCraft-v0"
MakeRemote = Callable[..., gymnasium.Env[str, str]]


@pytest.fixture
def make_remote(server: RemoteServer) -> Iterator[MakeRemote]:
    """A function that makes an environment on the server, which is closed after the test."""
    envs: list[gymnasium.Env[str, str]] = []

    def make_env(env: str = BLOCKING, **options: Any) -> gymnasium.Env[str, str]:
        envs.append(make(REMOTE, env=env, **{"url": server.url, **options}))
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


def transcript(env: gymnasium.Env[str, str]) -> list[Any]:
    """Return the results of resets and of valid, invalid and overlong actions."""
    results: list[Any] = [env.reset(seed=3), env.reset(), env.reset(seed=3, options={"split": "test"})]
    actions = ["inventory", "xyzzy", "\ud800", Malformed("hm", "Say something."), "get 1 stick", "\x00", "a" * 70_000]
    results += [env.step(action) for action in actions]
    return results


def test_remote_environment_matches_local_one(make_remote: MakeRemote) -> None:
    assert transcript(make_remote(TEXTCRAFT)) == transcript(make(TEXTCRAFT))


def test_remote_tasks_match_local_ones(make_remote: MakeRemote) -> None:
    remote, local = text_env(make_remote(TEXTCRAFT)), text_env(make(TEXTCRAFT))
    assert remote.tasks.test.ids == list(local.tasks.test.ids)
    assert list(remote.tasks.test[300:303]) == list(local.tasks.test[300:303])
    assert remote.tasks.name == local.tasks.name
    assert remote.instructions == local.instructions
    assert remote.functions == local.functions
    assert len(local.functions) == 3
    remote.reset(seed=1)
    assert remote.task == local.tasks[remote.task.id]


def test_only_needed_pages_of_tasks_are_fetched(server: RemoteServer, make_remote: MakeRemote) -> None:
    exposition = server.sessions.metrics.exposition

    def fetched_pages() -> int:
        lines = exposition().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if "task_page" in line and "count" in line)

    before = fetched_pages()
    tasks = text_env(make_remote("agentgym/TextCraft-v0", max_episode_steps=None, horizon=7)).tasks
    pages_of_ids = fetched_pages() - before
    assert pages_of_ids == 3
    assert [tasks.train[0], tasks.train[1], tasks.train[249]] and fetched_pages() - before == pages_of_ids + 1
    assert tasks.train[250] and fetched_pages() - before == pages_of_ids + 2


def test_server_applies_the_horizon(make_remote: MakeRemote) -> None:
    env = make_remote(TEXTCRAFT, horizon=2)
    env.reset(seed=0)
    assert [env.step("inventory")[3] for _ in range(2)] == [False, True]
    longer = make_remote(TEXTCRAFT, horizon=1_000)
    longer.reset(seed=0)
    assert not any(longer.step("inventory")[3] for _ in range(70))


def test_server_renders_the_environment(make_remote: MakeRemote) -> None:
    env = make_remote(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    assert make_remote().unwrapped.render() is None
    remote, local = (
        make_remote("agentgym/BabyAI-v0", render_mode="rgb_array"),
        make("agentgym/BabyAI-v0", render_mode="rgb_array"),
    )
    for env in (remote, local):
        env.reset(seed=5)
    np.testing.assert_array_equal(remote.render(), local.render())


def test_images_in_infos_are_decoded_to_arrays() -> None:
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    outcome = {"observation": "", "reward": 0.5, "terminated": False, "truncated": True}
    received = result(7, json.loads(written({**outcome, "info": {"screenshot": image, "score": 0.5}})))
    np.testing.assert_array_equal(received.info.pop("screenshot"), image)
    assert received == Result(7, **outcome, info={"score": 0.5})
    broken = {**outcome, "info": {"screenshot": "data:image/png;base64,AAAA"}}
    assert isinstance(result(7, broken).error, OSError)


def test_calls_before_the_first_reset_raise(make_remote: MakeRemote) -> None:
    env = text_env(make_remote())
    for call in (
        lambda: env.step("knock"),
        env.oracle,
        env.oracle_thought,
        env.oracle_plan,
        env.scene,
        lambda: env.task,
    ):
        with pytest.raises(ResetNeeded):
            call()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env": "agentgym/Textcraft-v0"}, ValueError, "Did you mean agentgym/TextCraft-v0"),
        ({"env": TEXTCRAFT, "colour": 1}, ValueError, "colour"),
        ({"env": TEXTCRAFT, "depth": object()}, ValueError, "as JSON"),
        ({"env": TEXTCRAFT, "render_mode": "rgb_array"}, ValueError, "render_mode"),
        ({"env": BLOCKING, "url": "127.0.0.1:8000"}, ValueError, "http://127.0.0.1:8000"),
        ({"env": BLOCKING, "url": " , "}, ValueError, "No server URL was given"),
        ({"env": BLOCKING, "token": "s\u00e9same"}, ValueError, "token"),
        ({"env": BLOCKING, "timeout": 0}, ValueError, "above 0"),
        ({"env": BLOCKING, "url": "http://127.0.0.1:1"}, EnvFault, "`serve` starts one"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_arguments_are_refused_at_reset(
    make_remote: MakeRemote, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    env = make_remote(**arguments)
    with pytest.raises(error, match=message):
        env.reset()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "door/train/99"}, KeyError, "no task 'door/train/99'"),
        ({"split": "dev"}, ValueError, "no tasks in split 'dev'"),
        ({"split": "exam"}, ValueError, "split"),
        ({"colour": 1}, ValueError, "Unknown reset option"),
    ],
    ids=str,
)
def test_invalid_reset_options_are_refused(
    make_remote: MakeRemote, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    env = make_remote()
    with pytest.raises(error, match=message):
        env.reset(options=options)
    assert env.reset(options={"task": "door/train/2"})[0] == "Knock 2 times."


def test_token_grants_access_and_stays_secret() -> None:
    with remote_server(token="sesame-sesame-sesame") as guarded:
        with_password = guarded.url.replace("//", "//:sesame-sesame-sesame@")
        for options in ({"url": guarded.url, "token": "sesame-sesame-sesame"}, {"url": with_password}):
            env = make(REMOTE, env=BLOCKING, **options)
            env.reset(seed=0)
            with pytest.raises(ValueError, match="no environment") as unknown:
                make(REMOTE, **options, env="held/Hold-v0").reset()
            assert "sesame" not in str(unknown.value)
            env.close()
        for options in ({}, {"token": "sesame"}):
            with pytest.raises(PermissionError, match="token=TOKEN"):
                make(REMOTE, env=BLOCKING, url=guarded.url, **options).reset()


def test_proxy_environment_variables_are_ignored(make_remote: MakeRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert make_remote().reset(options={"task": "door/train/1"})[0] == "Knock 1 times."


def agentgym_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("agentgym")}


@pytest.mark.long
def test_closed_and_forgotten_environments_release_everything(server: RemoteServer) -> None:
    first = make(REMOTE, env=BLOCKING, url=server.url)  # starts what all environments of the process share
    first.reset(seed=1)
    first.close()
    del first
    gc.collect()
    sessions, threads, descriptors = len(server.sessions), agentgym_threads(), psutil.Process().num_fds()
    for ending in ("close", "forget"):
        envs = [make(REMOTE, env=BLOCKING, url=server.url) for _ in range(3)]
        for env in envs:
            env.reset(seed=1)
        assert len(server.sessions) == sessions + 3
        for env in envs if ending == "close" else ():
            env.close()
            env.close()
        del env, envs
        gc.collect()
        assert len(server.sessions) == sessions
        eventually(lambda: agentgym_threads() <= threads)  # includes those of the server
        eventually(lambda: psutil.Process().num_fds() <= descriptors)  # the server closes connections asynchronously


def test_closed_environment_can_be_reset(make_remote: MakeRemote) -> None:
    env = make_remote()
    env.reset(seed=1)
    env.close()
    assert env.reset(options={"task": "door/train/3"})[0] == "Knock 3 times."


def test_copy_has_its_own_session(make_remote: MakeRemote) -> None:
    env = make_remote()
    env.reset(options={"task": "door/train/4"})
    env.step("knock")
    for copy in (pickle.loads(pickle.dumps(env)), deepcopy(env)):
        with pytest.raises(ResetNeeded):
            text_env(copy).step("knock")
        assert copy.reset(options={"task": "door/train/2"})[0] == "Knock 2 times."
        copy.close()
    assert env.step("knock")[0] == "You knocked 2 times."


def test_certificates_are_loaded_for_https_only(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Any] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *arguments, **_: loads.append(arguments))
    for url, count in ((server.url, 0), ("https://127.0.0.1:1", 1)):
        Servers(url).close()
        assert len(loads) == count


_PLAYED = ["ResetNeeded", "Knock 5 times.", "You knocked 1 times."]


def _play(env: gymnasium.Env[str, str], results: Any) -> None:
    """Put what three calls in a forked process return, see `_PLAYED`."""
    for call in (
        lambda: env.step("knock"),
        lambda: env.reset(options={"task": "door/train/5"}),
        lambda: env.step("knock"),
    ):
        try:
            results.put(call()[0])
        except Exception as error:  # noqa: BLE001 - the parent waits for three results
            results.put(type(error).__name__)
    env.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_child_opens_its_own_session(make_remote: MakeRemote, server: RemoteServer) -> None:
    env = make_remote()
    env.reset(options={"task": "door/train/4"})
    env.step("knock")
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=_play, args=(env, results))
    child.start()
    assert [eventually(lambda: not results.empty()) and results.get() for _ in range(3)] == _PLAYED
    child.join(PATIENCE)
    assert env.step("knock")[0] == "You knocked 2 times."


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_during_a_request_leaves_the_child_no_locked_import(make_remote: MakeRemote) -> None:
    """The lock is the one that a thread holds while httpx imports sniffio, or finds that it isn't installed."""
    env = make_remote()
    env.reset(options={"task": "door/train/4"})
    lock = importlib._bootstrap._get_module_lock("sniffio")  # type: ignore[attr-defined]
    lock.acquire()
    lock.owner = -1  # a thread that the child doesn't have; the identifiers of threads are used again after a fork
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=_play, args=(env, results))
    child.start()
    lock.owner = threading.get_ident()
    lock.release()
    try:
        assert [eventually(lambda: not results.empty()) and results.get() for _ in range(3)] == _PLAYED
        child.join(PATIENCE)  # closes its session
    finally:
        child.kill()


def test_session_is_visible_over_plain_http(server: RemoteServer, make_remote: MakeRemote) -> None:
    env, before = make_remote(), set(server.sessions._sessions)
    env.reset(options={"task": "door/train/1"})
    (session_id,) = (
        key for key, session in server.sessions._sessions.items() if session.last is not None and key not in before
    )
    assert httpx.get(f"{server.url}/v1/sessions/{session_id}", trust_env=False).json()["task"] == "door/train/1"


def test_an_environment_of_another_library_is_served_with_options() -> None:
    with remote_server(world=("gymnasium:Blackjack-v1",), option=("gymnasium:Blackjack-v1:high=2",)) as server:
        env = make(REMOTE, url=server.url, env="gymnasium:Blackjack-v1")
        local = make("gymnasium:Blackjack-v1", high=2)
        assert env.reset(seed=1) == local.reset(seed=1)
        assert env.step("0") == local.step("0")
        env.close()
