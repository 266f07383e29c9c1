"""Tests of BrowserGym's environments as environments.

They need the extra `browsergym`: `uv sync --inexact --package agentgym-envs --extra browsergym`.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from agentgym_envs import make, text_env
from gymnasium.error import DependencyNotInstalled

if find_spec("browsergym") is None:
    pytest.skip(
        "browsergym is missing: uv sync --inexact --package agentgym-envs --extra browsergym",
        allow_module_level=True,
    )

from browsergym_settings import NO_DELAY

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("requires_browser")]
SHELF = "browsergym:browsergym_tasks:shelf.borrow"
QUICK = {**NO_DELAY, "slow_mo": 0}


def id_of(text: str, name: str) -> str:
    found = re.search(rf"\[(\w+)\] \w+ '{name}'", text)
    assert found, text
    return found[1]


def test_a_page_of_miniwob_is_played_to_its_end() -> None:
    if find_spec("miniwob") is None or find_spec("browsergym.miniwob") is None:
        pytest.skip("miniwob and browsergym-miniwob are missing")
    env = make("browsergym:miniwob.click-test-2", settings=QUICK)
    task = text_env(env).tasks.test[3]
    first, info = env.reset(options={"task": task.id})
    assert first == env.reset(options={"task": task.id})[0]
    assert first.startswith("Goal: Click button ONE.\n\nTab 0 (current): Click Test Task (file://")
    assert "InlineTextBox" not in first
    assert info["task_id"] == "miniwob.click-test-2/test/3"
    _, reward, terminated, _, info = env.step(f"click('{id_of(first, 'ONE')}')")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    first, _ = env.reset(options={"task": task.id})
    _, reward, terminated, _, info = env.step(f"click('{id_of(first, 'TWO')}')")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    env.close()
    env.close()


def test_the_tasks_of_a_benchmark_take_turns() -> None:
    if find_spec("browsergym.miniwob") is None:
        pytest.skip("browsergym-miniwob is missing")
    env = make("browsergym:miniwob", settings=QUICK)
    tasks = text_env(env).tasks.test
    assert [task.category for task in tasks[:2]] == ["miniwob.ascending-numbers", "miniwob.bisect-angle"]
    assert len({task.category for task in tasks}) > 100
    env.close()


def test_a_task_of_a_module_with_a_user_who_asks() -> None:
    env = make(SHELF, settings=QUICK, task_settings={"shelf": "B"})
    assert "send_msg_to_user(text: str)" in text_env(env).instructions
    task = text_env(env).tasks.train.ids[0]
    first, _ = env.reset(options={"task": task})
    book = next(book for book in ("Emma", "Ulysses", "Dracula") if f"Goal: Borrow {book} from shelf B" in first)
    observation, _, _, _, info = env.step("click('none')")
    assert observation.startswith("The action failed: ValueError: Could not find element")
    assert info["valid"] is False
    observation, reward, terminated, _, info = env.step(f"click('{id_of(first, f'Borrow {book}')}')")
    assert observation.startswith("The user says: Which one is it?\n\nTab 0 (current): Borrowed")
    assert (reward, terminated, info["valid"]) == (0.0, False, True)
    _, reward, terminated, _, info = env.step(f"send_msg_to_user('It is {book}.')")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_environments_of_several_threads_do_not_touch_each_other() -> None:
    def play(number: int) -> float:
        env = make(SHELF, settings=QUICK)
        first, _ = env.reset(options={"task": text_env(env).tasks.train.ids[number]})
        found = re.search(r"Goal: Borrow (\w+)", first)
        assert found
        env.step(f"click('{id_of(first, f'Borrow {found[1]}')}')")
        score = env.step(f"send_msg_to_user('{found[1]}')")[4]["score"]
        env.close()
        return score

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(play, range(3))) == [1.0, 1.0, 1.0]


def test_event_loops_of_the_caller_run_while_an_environment_is_open() -> None:
    async def answer() -> int:
        return 42

    with closing(make(SHELF, settings=QUICK)) as one, closing(make(SHELF, settings=QUICK)) as other:
        first, _ = one.reset(options={"task": text_env(one).tasks.train.ids[0]})
        with asyncio.Runner() as runner:
            assert runner.run(answer()) == 42
            other.reset(options={"task": text_env(other).tasks.train.ids[1]})
            assert one.step("click('none')")[4]["valid"] is False
            assert one.reset(options={"task": text_env(one).tasks.train.ids[0]})[0] == first
            assert runner.run(answer()) == 42
    with ThreadPoolExecutor(1) as thread:  # another thread than the one that began the episode
        env = make(SHELF, settings=QUICK)
        env.reset(options={"task": text_env(env).tasks.train.ids[0]})
        assert thread.submit(env.step, "click('none')").result()[4]["valid"] is False
        thread.submit(env.close).result()
    assert asyncio.run(answer()) == 42
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("browsergym")]


def test_evaluate_ends_with_a_report(tmp_path: Path) -> None:
    pytest.importorskip("agentgym_eval")
    (tmp_path / "actions.txt").write_text("click('none')\nsend_msg_to_user('Emma')\n")
    command = [
        *(sys.executable, "-c", "from agentgym_eval.cli.main import evaluate; evaluate()"),
        *("--env", SHELF, "--policy", f"scripted:{tmp_path / 'actions.txt'}", "--agent", "bare", "--tasks", "2"),
        *("--horizon", "2", "--slots", "2", "--out", str(tmp_path / "run")),
    ]
    folder = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.json").is_file()


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no task 'shelf.borow'. Did you mean shelf.borrow"):
        make("browsergym:browsergym_tasks:shelf.borow")
    with pytest.raises(DependencyNotInstalled, match="install browsergym-workarenas"):
        make("browsergym:workarenas.fill-form")
    with pytest.raises(ValueError, match="subsets of BrowserGym's high-level actions"):
        make(SHELF, actions=["juggle"])
