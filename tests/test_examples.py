"""The examples do what they say. Those that train or start servers take longer."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from dev_packages import need

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = 100  # lines
# What has no test of its own: a part of others, and what can't be installed beside the rest (tried by hand).
UNTESTED = {"tiny_model", "verifiers_env"}
NEEDS = {
    "mcp_client": ("mcp",),
    "openenv_server": ("openenv",),
    "skyrl_gym_env": ("skyrl_gym",),
    "stable_baselines3_babyai": ("stable_baselines3",),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The example of the test's name, imported as its script imports what lies beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    name = request.node.originalname.removeprefix("test_")
    need(*NEEDS.get(name, ()))
    return import_module(name)


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL without vLLM, which it imports where there is one, and without its warning that this part may change."""
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda min_version=None: False)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def test_each_is_a_page_and_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= PAGE, path
        assert path.stem in tested | UNTESTED, path


def test_plain_gymnasium(example: ModuleType) -> None:
    scores = example.main(tasks=8)
    assert scores["expert"] == 1.0
    assert scores["random"] < 1.0


def test_skyrl_gym_env(example: ModuleType) -> None:
    assert example.main() == {"score": 1.0, "success": 1.0, "turns": 3}


@pytest.mark.long
def test_stable_baselines3_babyai(example: ModuleType) -> None:
    before, after = example.main(steps=4_096, episodes=60)
    assert after > before + 0.1


@pytest.mark.long
def test_trl_environment_factory(trl: None, example: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's and transformers' own
        (line,) = example.main(lessons=200, steps=1)
    assert line["tools/call_frequency"] > 0
    assert line["tools/failure_frequency"] == 0
    assert 0 <= line["rewards/TextCraft/mean"] <= 1


@pytest.mark.long
def test_trl_rollout_func(trl: None, example: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (line,) = example.main(lessons=200, steps=1)
    assert line["reward"] > 0
    assert line["completions/mean_length"] > 5


@pytest.mark.long
def test_openenv_server(example: ModuleType) -> None:
    assert example.main() == 1.0


@pytest.mark.long
def test_mcp_client(example: ModuleType) -> None:
    serve = [sys.executable, "-c", "from agentgym_envs.cli.main import serve; serve()", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2].rstrip(":")
        stands = example.main(url)
        server.terminate()
    assert stands["success"] is True
    assert stands["score"] == 1.0
