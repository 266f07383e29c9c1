"""Tests of the section of `agentgym list` for policies."""

from __future__ import annotations

import pytest
from agentgym_eval.cli.listings import policies
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.util.errors import UsageError


def test_every_listed_policy_exists() -> None:
    names = [entry.name for entry in policies()]
    assert names[:2] == ["oracle", "oracle:NOISE"]
    arguments = {"oracle:NOISE": "oracle:0.5", "scripted:FILE": f"scripted:{__file__}"}
    for name in names:
        find_policy(arguments.get(name, name))
    with pytest.raises(UsageError, match=r"There are: oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL"):
        find_policy("orcale")
