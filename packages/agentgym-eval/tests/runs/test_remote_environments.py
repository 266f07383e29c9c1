"""Tests of evaluating a remote environment: `--env agentgym/Remote-v0 --options url=... env=...`."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from agentgym_envs import read_episodes
from agentgym_envs.agents.formats import Tags
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from agentgym_eval.cli.main import evaluate
from agentgym_eval.runs.environments import choose_tasks, open_world
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build_app(Settings(), grace=0.0), log_level="critical", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


def settings(*options: str, horizon: int | None = None) -> PlaySettings:
    return PlaySettings(env=REMOTE, policy="oracle", options=options, tasks=2, horizon=horizon)


def test_episodes_on_a_server_record_its_environment(url: str, tmp_path: Path) -> None:
    flags = ["--tasks", "3", "--policy", "oracle", "--out", str(tmp_path)]
    assert evaluate(["--env", REMOTE, "--options", f"url={url}", "env=textcraft", "token=secret", *flags]) == 0
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [(episode.env, episode.success) for episode in episodes] == [("agentgym/TextCraft-v0", True)] * 3
    for name in ("run.json", "report.json"):
        assert "secret" not in (tmp_path / name).read_text()
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["options"] == ["env=textcraft"]


def test_reply_format_is_that_of_the_remote_environment(url: str) -> None:
    env = open_world(settings(f"url={url}", "env=agentgym/SearchQA-v0"))
    assert isinstance(env, Tags)
    env.close()


def test_horizon_replaces_the_limit_of_the_remote_environment(url: str) -> None:
    env = open_world(settings(f"url={url}", "env=textcraft", horizon=70))
    env.reset(seed=0)
    assert [env.step("Action: inventory")[3] for _ in range(70)] == [False] * 69 + [True]
    env.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["env=textcraft"], "is missing a required option.*'url'"),
        (["url=http://127.0.0.1:1", "env=textcraft"], "`serve` starts one"),
        (["url={url}", "env=agentgym/TextKraft-v0"], r"Did you mean agentgym/TextCraft-v0\?"),
        (["url={url}", "env=textcraft", "speed=3"], "can't set speed"),
    ],
    ids=str,
)
def test_invalid_remote_options_are_one_sentence_errors(url: str, options: list[str], sentence: str) -> None:
    remote = settings(*(option.format(url=url) for option in options))
    with pytest.raises(UsageError, match=sentence):
        choose_tasks(open_world(remote), remote)


def test_prompts_are_those_of_the_environment_on_the_server(url: str, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("First think.\n\n{instructions}\n\n{format_instructions}", encoding="utf-8")
    flags = ["--tasks", "1", "--policy", "oracle", "--prompt", str(prompt)]
    remote = ["--env", REMOTE, "--options", f"url={url}", "env=textcraft"]
    assert evaluate([*remote, *flags, "--out", str(tmp_path / "remote")]) == 0
    assert evaluate(["--env", "textcraft", *flags, "--out", str(tmp_path / "local")]) == 0
    served, local = (next(read_episodes(tmp_path / name / "episodes.jsonl")) for name in ("remote", "local"))
    assert served.instructions == local.instructions
    assert served.instructions.startswith("First think.")
