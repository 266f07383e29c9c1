"""Tests of the names that users import from the top of a package: each exists, and is imported only when it's used."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest
from documents import ROOT

PACKAGES = ("agentgym_envs", "agentgym_eval", "agentgym_trainer")
CONFIGS = ("AgentEvolConfig", "DPOConfig", "RLConfig", "SFTConfig")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = import_module(package)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_a_name_has_one_home() -> None:
    """What two packages call by the same name is for the two kinds of runs that they read."""
    names = [{*import_module(package).__all__} for package in PACKAGES]
    assert names[0] & (names[1] | names[2]) == set()
    assert names[1] & names[2] == {"load_run"}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import agentgym_envs, agentgym_eval, agentgym_trainer", ["gymnasium", "numpy", "torch", "tyro"]),
        (f"from agentgym_trainer import {', '.join(CONFIGS)}, find_recipe, tiny", ["torch", "transformers"]),
        ("from agentgym_eval import RunStopped, UsageError", ["gymnasium", "numpy", "rich"]),
    ],
)
def test_imports_are_light(code: str, heavy: list[str]) -> None:
    call = f"{code}; import sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_configurations_that_the_documents_name_are_at_the_top() -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+Config)`", text))
    assert named >= set(CONFIGS)
    assert named <= set(import_module("agentgym_trainer").__all__)
