"""Tests of Liger's kernels without a GPU: what is replaced, what isn't, and what the kernels compute and return.

The kernels run in Triton's interpreter. On the device `cuda` they are called with fake tensors and launch nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.models import liger
from agentgym_trainer.models.attention import SDPA, Segments
from agentgym_trainer.models.liger import apply_liger, why_not_liger
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.policy import PolicyModel, separate_critic
from agentgym_trainer.models.weights import weights_of
from dev_packages import require_packages
from fake_cuda import CUDA, fake_cuda, gradients
from patience import PATIENCE
from transformers import Qwen2Config, Qwen2ForCausalLM

require_packages("liger_kernel")

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Any:
    """Liger's module."""
    return import_module("liger_kernel.transformers")


def _forward(module: Any) -> Any:
    """Return the function that computes a module."""
    return module.forward.__func__


def test_norms_and_mlps_are_replaced_but_not_head_and_attention(new_model: Callable[..., Any], kernels: Any) -> None:
    model = new_model()
    actor = PolicyModel(model, critic=separate_critic(model))
    for trunk in actor.trunks:
        apply_liger(trunk)
        base = trunk.base_model
        norms = [base.norm]
        for layer in base.layers:
            norms += [layer.input_layernorm, layer.post_attention_layernorm]
            norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
        assert {_forward(norm) for norm in norms} == {kernels.LigerRMSNorm.forward}
        assert {_forward(layer.mlp) for layer in base.layers} == {kernels.LigerSwiGLUMLP.forward}
        changed = [module for module in trunk.modules() if "forward" in vars(module)]
        assert len(changed) == len(norms) + len(base.layers)
    assert not {"forward", "loss_function"} & {*vars(model)}
    assert model.config._attn_implementation == SDPA


def test_names_of_weights_stay_and_adapters_are_called(new_model: Callable[..., Any], kernels: Any) -> None:
    plain, changed = (with_lora(new_model(), Lora(rank=4), seed=0) for _ in range(2))
    actor = PolicyModel(changed)
    apply_liger(actor.causal_lm)
    assert [*changed.state_dict()] == [*plain.state_dict()]
    assert [name for name, _ in weights_of(changed, 0).tensors()] == [
        name for name, _ in weights_of(plain, 0).tensors()
    ]
    mlp = actor.causal_lm.model.layers[0].mlp
    assert _forward(mlp) is kernels.LigerSwiGLUMLP.forward
    called = list[str]()
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(mlp, name).lora_A["default"].register_forward_hook(lambda *_, name=name: called.append(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("liger_kernel.transformers.swiglu._swiglu_dispatch", lambda gate, up: gate * up)
        mlp(torch.ones(1, 3, 32))
    assert called == ["gate_proj", "up_proj", "down_proj"]


def test_other_models_are_unaffected(new_model: Callable[..., Any]) -> None:
    ids = torch.arange(3, 20)[None]
    before = new_model()
    module = sys.modules[type(before).__module__]
    expected, names = before(ids).logits, dict(vars(module))
    apply_liger(new_model())
    assert dict(vars(module)) == names
    other = new_model()
    assert torch.equal(before(ids).logits, expected)
    assert torch.equal(other(ids).logits, expected)


def test_the_reason_against_liger_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for model_type in ("qwen2", "qwen3", "llama", "mistral", "gemma", "phi3"):
        assert why_not_liger(model_type, CUDA) is None
    assert why_not_liger("qwen2", torch.device("cpu")) == "Liger's kernels run on CUDA, not on cpu."
    assert why_not_liger("gpt2", CUDA) == "Liger has no RMSNorm and gated MLP for gpt2."
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    assert (why_not_liger("qwen2", CUDA) or "").startswith("Liger's kernels can't be imported: import of")
    monkeypatch.setattr(liger.importlib.util, "find_spec", lambda _: None)
    assert "aren't installed" in (found := why_not_liger("qwen2", CUDA) or "")
    assert "liger" in found.partition(":")[2]


@pytest.mark.long
def test_the_kernels_compute_what_transformers_computes() -> None:
    script = Path(__file__).parents[1] / "liger_interpreter.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert errors.keys() == {"qwen2", "llama", "qwen3"}
    assert 0 < max(errors.values()) < 1e-5  # of other roundings


@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "checkpointing"])
def test_scores_and_gradients_with_kernels_are_float32_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    launched = list[str]()

    def launch(kernel: Any, *args: Any, **options: Any) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        assert {tensor.device for tensor in tensors} == {CUDA}
        launched.append(kernel.fn.__name__)

    monkeypatch.setattr("triton.runtime.jit.JITFunction.run", launch)
    for name in ("rms_norm", "swiglu"):
        monkeypatch.setattr(import_module(f"liger_kernel.ops.{name}"), "device_context", lambda _: nullcontext())
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4))
    # Its length depends on values, and so does the comparison of logits on construction.
    monkeypatch.setattr(Segments, "returning", property(lambda self: self.bounds.new_zeros(12, dtype=torch.long)))
    monkeypatch.setattr("agentgym_trainer.models.policy._check_model", lambda _: None)
    with fake_cuda():
        with CUDA:
            model = Qwen2ForCausalLM._from_config(Qwen2Config(**SHAPE))
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        policy = PolicyModel(model).train()
        apply_liger(policy.causal_lm)
        ids_T = torch.zeros(12, dtype=torch.long, device=CUDA)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = policy(ids_T, ids_T, (5, 7), ids_T[:6], ids_T[:6])[:2]
        found = gradients(outputs)
    assert [(output.shape, output.dtype, output.device) for output in outputs] == [((6,), torch.float32, CUDA)] * 2
    assert {*policy.parameters()} == found.keys()
    assert all((grad.shape, grad.dtype) == (weight.shape, torch.float32) for weight, grad in found.items())
    passes = 2 if checkpointing else 1
    assert launched.count("_rms_norm_forward_kernel") == 1 + 2 * 2 * passes
    assert launched.count("_swiglu_forward_kernel") == 2 * passes
    assert (launched.count("_rms_norm_backward_kernel"), launched.count("_swiglu_backward_kernel")) == (5, 2)
