"""Tests of RL runs whose frozen weights are in 4 bits: agreement of the engine, the saved models, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from agentgym_trainer.models.load import load_model
from agentgym_trainer.models.quantization import linear_layers, round_to_nf4
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers import rl
from quantized_models import require_bitsandbytes
from safetensors.torch import load_file
from toy_learner import coin_flags, train_cli
from transformers import AutoModelForCausalLM

require_bitsandbytes()

CPU = torch.device("cpu")
QLORA = ("--lora.rank", "2", "--lora.quantize", "nf4", "--optimizer.lr", "1e-2")
WIDE = ("--scratch.hidden", "64")


def _assert_rounded(folder: Path) -> None:
    """Assert that rounding the model in a folder to NF4 changes nothing."""
    model, _ = load_model(str(folder), dtype="auto", device=CPU)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert linear_layers(model)
    round_to_nf4(model, dtype=model.dtype, device=CPU)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def _assert_no_quantized_files(run: RunFolder) -> None:
    for settings in run.path.rglob("config.json"):
        assert "quantization_config" not in json.loads(settings.read_text())
    files = [path for path in run.path.rglob("*.safetensors") if "checkpoints" in path.parts]
    assert files
    assert all("lora_" in name for file in files for name in load_file(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run from scratch, with a warm start, whose engine has the weights in float32."""
    folder = RunFolder(tmp_path_factory.mktemp("qlora") / "run")
    engine = ("--engine.kind", "quantized_models:open_unquantized", "--engine.tolerance", "1e-4")
    assert train_cli(coin_flags(folder.path, *WIDE, *QLORA, *engine)) == 0
    return folder


@pytest.mark.long
def test_an_engine_without_quantized_weights_agrees_with_the_learner(run: RunFolder) -> None:
    lines = list(run.read_metrics())
    gaps = [line["logprob_check_gap"] for line in lines if "logprob_check_gap" in line]
    assert len(gaps) >= 5
    assert max(gaps) < 1e-4
    assert all(line["grad_norm"] > 0 for line in lines)


def test_files_of_a_run_need_no_bitsandbytes(run: RunFolder) -> None:
    _assert_rounded(run.start)
    _assert_no_quantized_files(run)
    start, final = (load_file(folder / "model.safetensors") for folder in (run.start, run.model))
    assert {name for name in final if not torch.equal(final[name], start[name])} == {n for n in final if "proj" in n}
    merged, _ = load_model(str(run.checkpoints / "step-000006"), dtype=torch.float32, device=CPU)
    exported = AutoModelForCausalLM.from_pretrained(run.model)
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, merged(ids).logits)


@pytest.mark.long
def test_a_pretrained_model_is_rounded_and_trains_in_bfloat16(
    run: RunFolder, tmp_path: Path, accelerator_of: Callable[[str], Accelerator]
) -> None:
    accelerator_of("bf16")  # instead of that of other tests
    other = RunFolder(tmp_path / "run")
    model = ("--model", str(run.model), "--warm-start.episodes", "0", "--precision", "bf16", "--steps", "2")
    # The engine samples from a copy, whose log-probabilities must be within engine.tolerance of the learner's.
    more = ("--async-rollout.max-staleness", "1", "--algorithm.groups.zero-variance", "keep")
    assert train_cli(coin_flags(other.path, *QLORA, *model, *more)) == 0
    _assert_rounded(other.start)
    _assert_no_quantized_files(other)
    assert {weight.dtype for weight in load_file(other.start / "model.safetensors").values()} == {torch.bfloat16}
    assert all("logprob_check_gap" in line and "grad_norm" in line for line in other.read_metrics())


def test_a_missing_package_is_reported_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentgym_trainer.models.quantization.find_spec", lambda _: None)
    monkeypatch.setattr(rl, "open_environments", lambda _: pytest.fail("environments were opened"))
    assert train_cli(coin_flags(tmp_path / "run", *QLORA)) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "lora.quantize nf4 needs the package bitsandbytes, which isn't installed: " in said
    assert "qlora" in said


def test_layers_that_are_too_narrow_are_refused_before_they_train(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_cli(coin_flags(tmp_path / "run", *QLORA)) == 2
    assert "multiples of 64, and this qwen3 has 32" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "run" / "start").exists()
