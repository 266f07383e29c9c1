"""Tests of policies of users: what happens when their code raises an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, Policy, Reply, TurnContext
from agentgym_eval.cli.main import evaluate
from agentgym_eval.policies.objects import as_policy, guarded
from agentgym_eval.policies.policies import Oracle, Random
from agentgym_eval.util.errors import RunStopped, UsageError
from counting_world import ENV

BAD = """
import json
from agentgym_envs import Policy, Reply
replies = 0
def helps():
    return json.loads("{")
def bad(context):
    global replies
    replies += 1
    if replies > 3:
        raise ValueError("boom")
    return "Action: stop"
class Listens(Policy):
    name = "listens"
    needs_env = True
    async def reply(self, context):
        return helps()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_bad.py").write_text(BAD)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("module")
def test_a_command_says_where_a_policy_failed_and_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", ENV, "--slots", "1", "--out", str(tmp_path / "run")]
    assert evaluate([*flags, "--policy", "my_bad:bad"]) == 1
    error = capsys.readouterr().err
    assert "evaluate: The policy my_bad:bad raised ValueError: boom (my_bad.py, line 11)." in error
    assert f"The episodes so far are kept in {tmp_path / 'run'}. Resume with: " in error
    assert "Traceback" not in error
    assert len((tmp_path / "run/episodes.jsonl").read_text().splitlines()) == 3


@pytest.mark.usefixtures("module")
def test_the_line_is_that_of_the_user_and_not_of_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["--env", ENV, "--policy", "my_bad:Listens", "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "The policy my_bad:Listens raised JSONDecodeError: Expecting property name" in error
    assert "(my_bad.py, line 6). No episode has been played yet." in error


def policy_of(act: Callable[..., Any]) -> Policy:
    class Mine(Policy):
        name = "mine"
        sees_pictures = True

        async def reply(self, context: TurnContext) -> Reply:
            return act()

        def count_tokens(self, context: TurnContext) -> int:
            return act()

        def forget(self, key: int) -> None:
            act()

        async def close(self) -> None:
            act()

    return guarded(Mine(), "here:mine")


def fail() -> Any:
    raise LookupError("no way")


@pytest.mark.parametrize("method", ["reply", "count_tokens", "forget", "close"])
def test_errors_of_every_method_are_chained(method: str) -> None:
    policy, arguments = policy_of(fail), () if method == "close" else (None,)
    with pytest.raises(RunStopped, match=r"^The policy here:mine raised LookupError: no way \(test_objects") as stopped:
        called = getattr(policy, method)(*arguments)
        asyncio.run(called)
    assert isinstance(stopped.value.__cause__, LookupError)
    assert (policy.name, policy.sees_pictures, policy.needs_env) == ("mine", True, False)


@pytest.mark.parametrize("error", [EnvFault("jammed"), UsageError("No model."), RunStopped("The server is gone.")])
def test_errors_with_a_meaning_are_passed_on(error: Exception) -> None:
    def act() -> Any:
        raise error

    context: Any = None
    with pytest.raises(type(error)) as raised:
        asyncio.run(policy_of(act).reply(context))
    assert raised.value is error


def test_a_reply_of_another_type_is_named() -> None:
    context: Any = None
    with pytest.raises(RunStopped, match=r"^The policy here:mine returned 'stop', which is not a Reply\.$"):
        asyncio.run(policy_of(lambda: "stop").reply(context))
    assert asyncio.run(policy_of(lambda: Reply("stop")).reply(context)) == Reply("stop")


def test_own_policies_keep_their_traceback() -> None:
    for own in (Oracle(), Random()):
        assert guarded(own, own.name) is own
    of_user = as_policy(json.dumps)
    assert of_user is not None
    assert guarded(of_user, "json:dumps") is not of_user
