"""Tests of the sections of `agentgym list` for policies and protocols."""

from __future__ import annotations

import pytest
from agentgym_eval.cli.listings import policies, protocols
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.runs.protocols import PROTOCOLS
from agentgym_eval.util.errors import UsageError


def test_every_listed_policy_exists() -> None:
    names = [entry.name for entry in policies()]
    assert names[:2] == ["oracle", "oracle:NOISE"]
    arguments = {"oracle:NOISE": "oracle:0.5", "scripted:FILE": f"scripted:{__file__}"}
    for name in names:
        find_policy(arguments.get(name, name))
    with pytest.raises(UsageError, match=r"There are: oracle, oracle:NOISE, random, scripted:FILE, openai:MODEL"):
        find_policy("orcale")


def test_protocols_are_listed_with_the_settings_of_each_environment() -> None:
    entries = {entry.name: entry for entry in protocols()}
    assert entries.keys() == PROTOCOLS.keys()
    facts = entries["agentgym-rl"].facts
    assert facts["sciworld"] == {"tasks": 200, "turns": 30, "tokens per reply": 200}
    assert (facts["split"], facts["samples"], facts["temperature"]) == ("test", 1, 1.0)
