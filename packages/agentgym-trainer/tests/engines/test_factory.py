"""Tests of engines by name: those of this package, of entry points, and MODULE:NAME."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import engine_examples
import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer import plugins
from agentgym_trainer.config import EngineSettings
from agentgym_trainer.engines.factory import ENGINES, GROUP, EngineFactory
from agentgym_trainer.trainers.setup import engine_factory
from toy_learner import coin_flags, train_cli


def test_built_in_engines_are_found_by_name() -> None:
    assert [name for name in ENGINES if engine_factory(name).shares_weights] == ["transformers"]


def test_a_function_is_a_factory_of_an_engine_with_its_own_weights() -> None:
    found = engine_factory("engine_examples:with_own_weights")
    assert found == EngineFactory(engine_examples.with_own_weights)
    assert not found.shares_weights


def test_an_entry_point_names_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("sharing", "engine_examples:SHARING", GROUP)
    monkeypatch.setattr(plugins, "installed", lambda *groups: {group: {"sharing": entry} for group in groups})
    assert engine_factory("sharing") is engine_examples.SHARING


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", "There is no engine 'vlm'. Did you mean 'vllm'? There are: transformers, vllm, vllm-server."),
        ("engine_examples:NUMBER", "engine_examples:NUMBER is no engine: it must be an EngineFactory, or a function"),
        ("engine_examples:EngineFactory", "engine_examples:EngineFactory is no engine"),
        ("engine_examples:gone", "engine_examples has no 'gone'."),
    ],
)
def test_names_of_no_engine_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        engine_factory(name)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("vlm", 2, "There is no engine 'vlm'. Did you mean 'vllm'?"),
        ("engine_examples:not_installed", 2, "can't be started: run: pip install engine for engine_examples:not_inst"),
        ("engine_examples:no_engine", 2, "engine_examples:no_engine is no engine: it lacks version and usage and"),
        ("engine_examples:unusable", 1, "engine_examples:unusable could not be started: KeyError: 200"),
    ],
)
def test_a_run_without_an_engine_ends_with_the_reason(name: str, code: int, message: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = coin_flags(tmp_path / "run", "--warm-start.episodes", "8", "--engine.kind", name)
    assert train_cli(flags, log) == code
    assert message in " ".join(log.read_text().split())
    assert "Traceback" not in log.read_text()


@pytest.mark.long
def test_engines_of_other_packages_train_like_the_built_in_one(tmp_path: Path) -> None:
    """They sample the same completions, with the weights after each update, so the metrics are the same, too."""
    scores: list[list[float]] = []
    for kind in ("transformers", "engine_examples:SHARING", "engine_examples:with_own_weights"):
        out = tmp_path / kind.replace(":", "-")
        assert train_cli(coin_flags(out, "--engine.kind", kind)) == 0
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
        assert any("logprob_check_gap" in line for line in steps) == kind.endswith("own_weights")
        scores.append([line["loss"] for line in steps])
    assert scores[0] == scores[1]
    assert scores[0] == pytest.approx(scores[2], abs=1e-4)


def test_urls_need_an_engine_with_servers() -> None:
    urls = ("http://127.0.0.1:1",)
    with pytest.raises(
        ValueError, match=r"engine\.urls requires an engine with servers, such as vllm-server, not vllm"
    ):
        EngineSettings("vllm", urls)
    assert EngineSettings("engine_examples:SHARING", urls).urls == urls


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"devices": "0,1,2"}, "needs a multiple of 2 GPUs in engine.devices, not 0,1,2"),
        ({"devices": "0,1", "urls": ("http://127.0.0.1:1",)}, "is for a server that the run starts"),
        ({"kind": "vllm"}, "is for a server that the run starts"),
    ],
)
def test_tensor_parallelism_needs_the_gpus_of_a_server_of_the_run(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"engine.tensor_parallel 2 {error}"):
        EngineSettings(**{"kind": "vllm-server", "tensor_parallel": 2, **settings})
    for devices in ("", "0,1,2,3"):
        assert EngineSettings("vllm-server", devices=devices, tensor_parallel=2).tensor_parallel == 2


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"kind": "vllm", "transfer": "ipc"}, "engine.transfer is for vLLM servers"),
        ({"transfer": "ipc", "devices": "1"}, "and engine.devices gives it others: use nccl or tcp"),
        ({"transfer": "ipc", "urls": ("http://127.0.0.1:1",)}, "and engine.urls names others: use nccl or tcp"),
        ({"transfer": "nccl"}, "nccl needs other GPUs than those that train"),
    ],
)
def test_weights_are_not_transferred_where_it_cannot_work(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        EngineSettings(**{"kind": "vllm-server", **settings})


def test_weights_are_transferred_as_asked() -> None:
    assert EngineSettings("vllm-server", transfer="ipc").transfer == "ipc"
    assert EngineSettings("vllm-server", transfer="nccl", devices="1").transfer == "nccl"
    assert EngineSettings("vllm-server", ("http://127.0.0.1:1",), transfer="tcp").transfer == "tcp"
