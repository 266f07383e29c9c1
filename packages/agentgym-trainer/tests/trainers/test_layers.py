"""Tests of how layers are chosen to be computed, and of a run with compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from agentgym_trainer.config import RLConfig
from agentgym_trainer.models.compiled import compile_layers
from agentgym_trainer.models.policy import PolicyModel, separate_critic
from agentgym_trainer.trainers import layers
from agentgym_trainer.trainers.layers import Layers, choose_layers
from safetensors import safe_open
from toy_learner import coin_flags, train_cli

SCRATCH = RLConfig(model="scratch")


@pytest.fixture
def _liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger is installed and knows Qwen3 only."""

    def why_not(model_type: str, device: torch.device) -> str | None:
        known = model_type == "qwen3" and device.type == "cuda"
        return None if known else f"Not for {model_type or 'any model'} on {device.type}."

    monkeypatch.setattr(layers, "why_not_liger", why_not)
    monkeypatch.setattr(layers, "choose_attention", lambda *_: "packed_sdpa")


def _accelerator(device: str = "cuda") -> Any:
    return SimpleNamespace(device=torch.device(device), mixed_precision="bf16")


@pytest.mark.usefixtures("_liger")
def test_liger_is_used_where_it_can_be(tmp_path: Path) -> None:
    assert choose_layers(SCRATCH, _accelerator()) == Layers("packed_sdpa", liger=True)
    assert choose_layers(SCRATCH, _accelerator("cpu")) == Layers("packed_sdpa")
    assert choose_layers(RLConfig(model="scratch", kernels="off"), _accelerator()) == Layers("packed_sdpa")
    assert choose_layers(RLConfig(model="scratch", compile=True), _accelerator()) == Layers("packed_sdpa", compile=True)
    assert choose_layers(RLConfig(model="Qwen/Qwen2.5-7B-Instruct"), _accelerator()) == Layers("packed_sdpa")
    # Loading it says what is wrong with it.
    (tmp_path / "config.json").write_text("{}")
    assert choose_layers(RLConfig(model=str(tmp_path)), _accelerator()) == Layers("packed_sdpa")


@pytest.mark.usefixtures("_liger")
def test_liger_is_refused_where_it_cannot_be_used() -> None:
    with pytest.raises(ValueError, match=r"^Not for any model on cpu\. Set kernels to auto or off to train without"):
        choose_layers(RLConfig(model="scratch", kernels="liger"), _accelerator("cpu"))
    with pytest.raises(ValueError, match=r"^Not for qwen2 on cuda\. Set kernels"):
        choose_layers(RLConfig(model="Qwen/Qwen2.5-7B-Instruct", kernels="liger"), _accelerator())
    with pytest.raises(ValueError, match="set kernels auto, or no compile"):
        RLConfig(compile=True, kernels="liger")


def test_a_missing_compiler_is_reported_before_anything_is_loaded() -> None:
    without = inductor_config.patch({"cpp.cxx": ("there-is-no-such-compiler",)})
    with without, pytest.raises(ValueError, match=r"needs a C\+\+ compiler"):
        choose_layers(RLConfig(model="scratch", compile=True), _accelerator("cpu"))


def test_layers_of_policy_and_critic_are_changed(
    new_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[tuple[str, Any]] = []
    monkeypatch.setattr(layers, "compile_layers", lambda model: changed.append(("compile", model)))
    monkeypatch.setattr(layers, "apply_liger", lambda model: changed.append(("liger", model)))
    model = new_model()
    critic = separate_critic(model)
    actor = PolicyModel(model, critic=critic)
    assert Layers("packed_sdpa").applied(actor) is actor
    assert changed == []
    assert Layers("packed_sdpa", liger=True).applied(actor) is actor
    Layers("packed_sdpa", compile=True).applied(actor)
    assert changed == [(how, part) for how in ("liger", "compile") for part in (model, critic.trunk)]
    assert str(Layers("a", liger=True)) == "attention a, RMSNorm and MLPs of Liger"
    assert str(Layers("a", compile=True)).startswith("attention a, layers compiled when first used")


@pytest.mark.long
def test_a_run_with_compiled_layers_saves_an_ordinary_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[Any]()

    def recorded(model: Any) -> int:
        compiled.append(model)
        return compile_layers(model, backend="aot_eager")

    monkeypatch.setattr(layers, "compile_layers", recorded)
    for name, more in {"plain": (), "compiled": ("--compile",)}.items():
        flags = coin_flags(tmp_path / name, *more, "--steps", "2", "--evaluation.every", "0")
        assert train_cli(flags, log=tmp_path / f"{name}.log") == 0, (tmp_path / f"{name}.log").read_text()
    # The warm start, the policy and the reference.
    assert len(compiled) == 3
    assert "layers compiled when first used" in (tmp_path / "compiled.log").read_text().replace("\n", " ")
    names: dict[str, list[str]] = {}
    for name in ("plain", "compiled"):
        with safe_open(tmp_path / name / "model/model.safetensors", "pt") as file:
            names[name] = sorted(file.keys())
    assert names["plain"] == names["compiled"]
