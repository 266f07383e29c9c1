"""Tests of the activations that are measured without data, against figures and against the CUDA branch's forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.models.attention import VARLEN
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.planning.activations import NotMeasurable, Pass, measure
from agentgym_trainer.planning.families import known_shape
from agentgym_trainer.planning.shapes import adapter_weights, build, count_weights
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

ROW = Pass((16_384,), gpu=True, precision=torch.bfloat16, autocast=True)
"""A full micro-batch on a GPU."""
WEIGHTS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
}
"""Numbers of parameters on the models' pages."""


def key(tensor: torch.Tensor) -> Any:
    storage: Any = tensor.untyped_storage()
    return storage._cdata


def config_of(name: str) -> Any:
    shape = known_shape(name)
    assert shape
    return AutoConfig.for_model(**shape)


@pytest.mark.parametrize(("name", "weights"), WEIGHTS.items(), ids=WEIGHTS)
def test_known_shapes_have_the_published_number_of_weights(name: str, weights: int) -> None:
    assert count_weights(config_of(name)).weights == weights


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("Qwen/Qwen2.5-0.5B", 32_768),
        ("Qwen/Qwen2.5-7B", 131_072),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("Qwen/Qwen3-8B", 40_960),
        ("Qwen/Qwen3-8B-Base", 32_768),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_192),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 8_192),
    ],
)
def test_base_and_instruct_models_have_their_own_context(name: str, context: int) -> None:
    assert config_of(name).max_position_embeddings == context


def test_unknown_names_have_no_shape() -> None:
    assert known_shape("Qwen/Qwen2.5-8B") is None
    assert known_shape("Qwen/Qwen2.5-7B-Instruct-GGUF") is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "autocast", "gigabytes"),
    [
        pytest.param("Qwen2.5-0.5B", True, 26.9, id="0.5B"),
        pytest.param("Qwen2.5-1.5B", True, 57.3, id="1.5B"),
        pytest.param("Qwen2.5-3B", True, 94.6, id="3B"),
        pytest.param("Qwen2.5-7B", False, 103.8, id="7B-fsdp2"),
    ],
)
def test_a_row_without_checkpointing_keeps_what_was_measured_before(
    name: str, autocast: bool, gigabytes: float
) -> None:
    """The figures are of an independent measurement by hooks on saved tensors, with copies of the weights."""
    assert measure(config_of(name), replace(ROW, autocast=autocast)).saved / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_with_checkpointing_a_row_keeps_the_inputs_of_the_layers() -> None:
    config = config_of("Qwen2.5-7B")
    found = measure(config, replace(ROW, autocast=False, checkpointing=True))
    inputs = 28 * 16_384 * 3_584 * 2
    assert inputs < found.saved < 1.2 * inputs
    assert found.peak < 0.1 * measure(config, replace(ROW, autocast=False)).peak


@pytest.mark.parametrize("checkpointing", [False, True])
def test_kernels_without_shared_heads_keep_repeated_keys_and_values(checkpointing: bool) -> None:
    """On GPUs, these are the kernels for float32, and for half precision where it has no fused ones."""
    config = config_of("SmolLM2-135M")
    layers = 1 if checkpointing else config.num_hidden_layers
    repeated = 2 * layers * (config.num_attention_heads - config.num_key_value_heads) * config.head_dim * 4_096
    cpu = Pass((2_048, 2_048), gpu=False, precision=torch.float32, autocast=False, checkpointing=checkpointing)
    on_cpu, on_gpu = (measure(config, replace(cpu, gpu=gpu)) for gpu in (False, True))
    old, new = (
        measure(config, replace(cpu, gpu=True, precision=torch.float16, autocast=True, bf16=bf16))
        for bf16 in (False, True)
    )
    if checkpointing:  # the peak is elsewhere, in the head
        assert on_gpu.saved == on_cpu.saved
    else:
        assert on_gpu.saved - on_cpu.saved == 4 * repeated
        assert old.saved - new.saved >= 2 * repeated


@pytest.mark.long
def test_memory_grows_with_tokens_critic_and_adapter() -> None:
    config = config_of("SmolLM2-135M")
    plain = measure(config, ROW)
    assert measure(config, replace(ROW, lengths=(8_192,))).saved == pytest.approx(plain.saved / 2, rel=0.1)
    assert measure(config, replace(ROW, critic="separate")).saved > 1.7 * plain.saved
    assert measure(config, replace(ROW, lora=Lora(rank=8))).saved < plain.saved  # the residual stream is bfloat16
    assert measure(config, replace(ROW, train=False)).peak < 0.5 * plain.peak


def test_adapters_have_two_matrices_for_each_linear_layer() -> None:
    config = config_of("SmolLM2-135M")
    sizes = [(576, 576), (576, 192), (576, 192), (576, 576), (576, 1_536), (576, 1_536), (1_536, 576)]
    assert adapter_weights(config, Lora(rank=4)) == 30 * 4 * sum(map(sum, sizes))


def test_a_forward_pass_on_the_gpu_keeps_as_much_as_the_measured_one() -> None:
    """Forward passes of the CUDA branch work on fake tensors without a GPU; backward passes don't."""
    config, kept = config_of("SmolLM2-135M"), list[int]()
    for layers in (1, 2):
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            model = build(config, layers, torch.bfloat16)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "equal", Mock(return_value=True))
                policy = PolicyModel(model, attention=VARLEN)
            ids, saved = torch.zeros(4_096, dtype=torch.long), dict[int, int]()
            known = {key(weight) for weight in model.parameters()}

            def keep(tensor: torch.Tensor) -> torch.Tensor:
                saved[key(tensor)] = tensor.untyped_storage().nbytes()  # noqa: B023
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                outputs = policy(ids, ids, (4_096,), ids, ids)
            kept.append(sum(size for found, size in saved.items() if found not in known))
            del outputs
    measured = measure(config, replace(ROW, lengths=(4_096,), autocast=False)).saved
    assert kept[0] + 29 * (kept[1] - kept[0]) == pytest.approx(measured, rel=0.02)


def test_a_model_that_needs_data_is_refused_with_its_reason() -> None:
    config = config_of("SmolLM2-135M")
    config.rope_parameters = {"rope_type": "default", "rope_theta": "none"}
    with pytest.raises(NotMeasurable, match="can't be measured without loading the model"):
        measure(config, ROW)
