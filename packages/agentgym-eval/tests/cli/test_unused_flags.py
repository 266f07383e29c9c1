"""Tests of the messages about flags that have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.cli.unused_flags import unused_flags
from counting_world import ENV

pytestmark = pytest.mark.quick

FLAGS = ["--rate", "3", "--price=1", "--budget=cost=1", "--base_url", "http://x", "--no-native-tools", "--k", "1"]


def named(*policies: str) -> list[str]:
    return [sentence.partition(" has no effect: that needs ")[0] for sentence in unused_flags(policies, FLAGS)]


def test_flags_of_endpoints_need_a_policy_that_takes_them() -> None:
    of_requests, of_usage = ["--rate", "--base-url", "--no-native-tools"], ["--price", "--budget"]
    assert sorted(named("oracle:0.3", "hf:runs/mine/model")) == sorted([*of_requests, *of_usage])
    assert named("random", "mine:f") == of_requests  # it may count its tokens
    assert named("random", "openai:gpt") == []
    assert list(unused_flags(["oracle"], ["--body", "a=1", "--body=b=2"])) == [
        "--body has no effect: that needs --policy openai:MODEL."
    ]


def test_commands_name_unused_flags_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", ENV, "--policy", "oracle", "--tasks", "1", "--rate", "3"]
    assert evaluate([*flags, "--out", str(tmp_path / "run")]) == 0
    assert collect([*flags, "--out", str(tmp_path / "data.jsonl")]) == 0
    assert capsys.readouterr().err.count("--rate has no effect: that needs --policy openai:MODEL.\n") == 2
