"""Run models with Liger's kernels on a CPU, in Triton's interpreter, and print how far they are from transformers' own.

A script with a process of its own: what interprets the kernels is decided when Triton is imported.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from agentgym_trainer.models.liger import apply_liger
from agentgym_trainer.models.policy import PolicyModel
from liger_kernel.ops import rms_norm
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from triton.runtime import interpreter

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-3,
}  # fmt: skip
ARCHITECTURES = ((Qwen2Config, Qwen2ForCausalLM), (LlamaConfig, LlamaForCausalLM), (Qwen3Config, Qwen3ForCausalLM))


def complete_interpreter() -> None:
    """Let the interpreter take floats as arguments of kernels, and the function of CUDA's library that a kernel calls,
    as the compiler does.
    """
    convert = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(argument)

    interpreter._implicit_cvt = converted
    vars(rms_norm)["rsqrt"] = lambda x: tl.math.rsqrt(x)  # what the interpreter has replaced when it is called


def outcome(actor: PolicyModel) -> list[torch.Tensor]:
    """Return log-probabilities and entropies of two segments, and the gradients of all weights."""
    ids, position = torch.arange(3, 12), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])
    scores = actor(ids, position, (4, 5), torch.tensor([1, 2, 5, 6]), ids[[2, 3, 6, 7]])
    (scores.logprobs_M.sum() + scores.entropy_M.sum()).backward()
    return [
        scores.logprobs_M,
        scores.entropy_M,
        *(weight.grad for weight in actor.parameters() if weight.requires_grad),
    ]


def main() -> None:
    """Print the largest error of each architecture, relative to the largest value."""
    torch.set_num_threads(1)
    complete_interpreter()
    errors: dict[str, float] = {}
    for config, architecture in ARCHITECTURES:
        torch.manual_seed(0)
        model = architecture._from_config(config(**SHAPE))
        for weight in model.parameters():
            torch.nn.init.normal_(weight, 1 if weight.ndim == 1 else 0, 0.3)
        actors = [PolicyModel(copy.deepcopy(model)) for _ in range(2)]
        apply_liger(actors[1].causal_lm)
        pairs = zip(*map(outcome, actors), strict=True)
        errors[model.config.model_type] = max(float((b - a).abs().max() / a.abs().max()) for a, b in pairs)
    sys.stdout.write(json.dumps(errors))


if __name__ == "__main__":
    main()
