"""A world on a server, played as if it were here."""

from __future__ import annotations

import gc
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
from agentgym_envs.core.registry import REMOTE
from agentgym_envs.pool import Result
from agentgym_envs.remote.answers import result
from agentgym_envs.remote.servers import Servers
from agentgym_envs.server.wire import written
from gymnasium.error import ResetNeeded
from patience import PATIENCE, eventually
from remote_servers import HELD, FarServer, far_server

TEXTCRAFT = "agentgym/TextCraft-v0"
Far = Callable[..., gymnasium.Env[str, str]]


@pytest.fixture
def far(server: FarServer) -> Iterator[Far]:
    """`far(world, **options)`: that world on the server; closed afterwards."""
    made: list[gymnasium.Env[str, str]] = []

    def make_far(world: str = HELD, **options: Any) -> gymnasium.Env[str, str]:
        made.append(make(REMOTE, env=world, **{"url": server.url, **options}))
        return made[-1]

    yield make_far
    for env in made:
        env.close()


def transcript(env: gymnasium.Env[str, str]) -> list[Any]:
    """Draws, steps, nonsense and what comes after the end."""
    seen: list[Any] = [env.reset(seed=3), env.reset(), env.reset(seed=3, options={"split": "test"})]
    actions = ["inventory", "xyzzy", "\ud800", Malformed("hm", "Say something."), "get 1 stick", "\x00", "a" * 70_000]
    seen += [env.step(action) for action in actions]
    return seen


def test_it_says_what_the_world_says_here(far: Far) -> None:
    assert transcript(far(TEXTCRAFT)) == transcript(make(TEXTCRAFT))


def test_the_task_set_is_the_worlds(far: Far) -> None:
    world, here = text_env(far(TEXTCRAFT)), text_env(make(TEXTCRAFT))
    assert world.tasks.test.ids == list(here.tasks.test.ids)
    assert list(world.tasks.test[300:303]) == list(here.tasks.test[300:303])
    assert world.tasks.name == here.tasks.name
    assert world.instructions == here.instructions
    assert world.functions == here.functions
    assert len(here.functions) == 3
    world.reset(seed=1)
    assert world.task == here.tasks[world.task.id]


def test_only_the_pages_that_are_asked_for_are_fetched(server: FarServer, far: Far) -> None:
    asked = server.sessions.metrics.exposition

    def pages() -> int:
        lines = asked().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if "task_page" in line and "count" in line)

    before = pages()
    tasks = text_env(far("agentgym/TextCraft-v0", max_episode_steps=None, horizon=7)).tasks
    ids = pages() - before
    assert ids == 3
    assert [tasks.train[0], tasks.train[1], tasks.train[249]] and pages() - before == ids + 1
    assert tasks.train[250] and pages() - before == ids + 2


def test_limits_are_those_of_the_world_there(far: Far) -> None:
    env = far(TEXTCRAFT, horizon=2)
    env.reset(seed=0)
    assert [env.step("inventory")[3] for _ in range(2)] == [False, True]
    longer = far(TEXTCRAFT, horizon=1_000)
    longer.reset(seed=0)
    assert not any(longer.step("inventory")[3] for _ in range(70))


def test_it_is_rendered_there(far: Far) -> None:
    env = far(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    assert far().unwrapped.render() is None
    babyai, here = (
        far("agentgym/BabyAI-v0", render_mode="rgb_array"),
        make("agentgym/BabyAI-v0", render_mode="rgb_array"),
    )
    for one in (babyai, here):
        one.reset(seed=5)
    np.testing.assert_array_equal(babyai.render(), here.render())


def test_pictures_in_infos_are_arrays_again() -> None:
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    outcome = {"observation": "", "reward": 0.5, "terminated": False, "truncated": True}
    sent = json.loads(written({**outcome, "info": {"screenshot": picture, "score": 0.5}}))
    got = result(7, sent)
    np.testing.assert_array_equal(got.info.pop("screenshot"), picture)
    assert got == Result(7, **outcome, info={"score": 0.5})
    broken = {**outcome, "info": {"screenshot": "data:image/png;base64,AAAA"}}
    assert isinstance(result(7, broken).error, OSError)


def test_before_the_first_reset_there_is_nothing_to_play(far: Far) -> None:
    world = text_env(far())
    for act in (
        lambda: world.step("knock"),
        world.oracle,
        world.oracle_thought,
        world.oracle_plan,
        world.scene,
        lambda: world.task,
    ):
        with pytest.raises(ResetNeeded):
            act()


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        ({"env": "agentgym/Textcraft-v0"}, ValueError, "Did you mean agentgym/TextCraft-v0"),
        ({"env": TEXTCRAFT, "colour": 1}, ValueError, "colour"),
        ({"env": TEXTCRAFT, "depth": object()}, ValueError, "as JSON"),
        ({"env": TEXTCRAFT, "render_mode": "rgb_array"}, ValueError, "render_mode"),
        ({"env": HELD, "url": "127.0.0.1:8000"}, ValueError, "http://127.0.0.1:8000"),
        ({"env": HELD, "url": " , "}, ValueError, "No server URL was given"),
        ({"env": HELD, "token": "s\u00e9same"}, ValueError, "token"),
        ({"env": HELD, "timeout": 0}, ValueError, "above 0"),
        ({"env": HELD, "url": "http://127.0.0.1:1"}, EnvFault, "`serve` starts one"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cant_be_made_is_told(far: Far, made: dict[str, Any], error: type[Exception], words: str) -> None:
    env = far(made.pop("env"), **made)
    with pytest.raises(error, match=words):
        env.reset()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"task": "door/train/99"}, KeyError, "no task 'door/train/99'"),
        ({"split": "dev"}, ValueError, "no tasks in split 'dev'"),
        ({"split": "exam"}, ValueError, "split"),
        ({"colour": 1}, ValueError, "Unknown reset option"),
    ],
    ids=str,
)
def test_what_cant_be_begun_is_told(far: Far, options: dict[str, Any], error: type[Exception], words: str) -> None:
    env = far()
    with pytest.raises(error, match=words):
        env.reset(options=options)
    assert env.reset(options={"task": "door/train/2"})[0] == "Knock 2 times."


def test_a_token_opens_and_stays_secret() -> None:
    with far_server(token="sesame-sesame-sesame") as guarded:
        with_password = guarded.url.replace("//", "//:sesame-sesame-sesame@")
        for options in ({"url": guarded.url, "token": "sesame-sesame-sesame"}, {"url": with_password}):
            env = make(REMOTE, env=HELD, **options)
            env.reset(seed=0)
            with pytest.raises(ValueError, match="no environment") as unknown:
                make(REMOTE, **options, env="held/Hold-v0").reset()
            assert "sesame" not in str(unknown.value)
            env.close()
        for options in ({}, {"token": "sesame"}):
            with pytest.raises(PermissionError, match="token=TOKEN"):
                make(REMOTE, env=HELD, url=guarded.url, **options).reset()


def test_proxies_of_the_environment_are_not_followed(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert far().reset(options={"task": "door/train/1"})[0] == "Knock 1 times."


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("agentgym")}


@pytest.mark.long
def test_nothing_is_left_after_close(server: FarServer) -> None:
    gc.collect()
    sessions, threads, descriptors = len(server.sessions), ours(), psutil.Process().num_fds()
    for closing in ("close", "forgotten"):
        envs = [make(REMOTE, env=HELD, url=server.url) for _ in range(3)]
        for env in envs:
            env.reset(seed=1)
        assert len(server.sessions) == sessions + 3
        for env in envs if closing == "close" else ():
            env.close()
            env.close()
        del env, envs
        gc.collect()
        assert len(server.sessions) == sessions
        eventually(lambda: ours() <= threads)  # those of the server, too
        eventually(lambda: psutil.Process().num_fds() <= descriptors)  # the server closes its connections by and by


def test_it_may_be_used_again_after_close(far: Far) -> None:
    env = far()
    env.reset(seed=1)
    env.close()
    assert env.reset(options={"task": "door/train/3"})[0] == "Knock 3 times."


def test_a_copy_is_a_world_of_its_own(far: Far) -> None:
    env = far()
    env.reset(options={"task": "door/train/4"})
    env.step("knock")
    for copy in (pickle.loads(pickle.dumps(env)), deepcopy(env)):
        with pytest.raises(ResetNeeded):
            text_env(copy).step("knock")
        assert copy.reset(options={"task": "door/train/2"})[0] == "Knock 2 times."
        copy.close()
    assert env.step("knock")[0] == "You knocked 2 times."


def test_certificates_are_read_where_they_are_needed(server: FarServer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *asked, **_: read.append(asked))
    for url, times in ((server.url, 0), ("https://127.0.0.1:1", 1)):
        Servers(url).close()
        assert len(read) == times


def _play(env: gymnasium.Env[str, str], said: Any) -> None:
    for act in (
        lambda: env.step("knock"),
        lambda: env.reset(options={"task": "door/train/5"}),
        lambda: env.step("knock"),
    ):
        try:
            said.put(act()[0])
        except Exception as error:  # noqa: BLE001 - the parent waits for three answers
            said.put(type(error).__name__)
    env.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_a_session_of_its_own(far: Far, server: FarServer) -> None:
    env = far()
    env.reset(options={"task": "door/train/4"})
    env.step("knock")
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()
    child = fork.Process(target=_play, args=(env, said))
    child.start()
    assert [said.get() for _ in range(3)] == ["ResetNeeded", "Knock 5 times.", "You knocked 1 times."]
    child.join(PATIENCE)
    assert env.step("knock")[0] == "You knocked 2 times."


def test_plain_http_is_what_it_speaks(server: FarServer, far: Far) -> None:
    env = far()
    env.reset(options={"task": "door/train/1"})
    (session,) = (key for key, one in server.sessions._sessions.items() if one.last is not None)
    assert httpx.get(f"{server.url}/v1/sessions/{session}", trust_env=False).json()["task"] == "door/train/1"
