"""The hardware that a run is planned for: the GPUs of this machine, or GPUs described as 8xH100. No torch at import."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgym_eval.util.errors import UsageError, did_you_mean

GPUS = {
    "H200": 150.1e9,
    "H100": 85.0e9,
    "A100": 85.0e9,
    "A100-40": 42.3e9,
    "L40S": 47.6e9,
    "RTX4090": 25.2e9,
    "T4": 15.8e9,
    "V100": 16.9e9,
    "V100-32": 34.1e9,
}
"""Memory of known GPUs in bytes, as torch reports it."""
_WITHOUT_BF16 = {"T4", "V100", "V100-32"}
_USABLE = 0.98
"""Share of the nominal memory of a GPU, in GiB, that torch reports."""
_DESCRIBED = re.compile(
    r"(?:(?P<count>[1-9]\d*)x)?(?P<gpu>[a-z][a-z0-9-]*|(?P<gb>[1-9]\d*)GB)(?::(?P<mode>fsdp2|ddp))?", re.I
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The training processes of a run, each with one GPU or all with the CPU, and their memory."""

    name: str
    """Name of a GPU, or CPU."""
    processes: int
    """Number of training processes."""
    gpu_bytes: float = 0.0
    """Memory of each GPU; 0: the run trains on the CPU."""
    host_bytes: float | None = None
    """Memory of each machine; None: unknown."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are sharded over the processes (FSDP2) or replicated (DDP)."""
    bf16: bool = True
    """Whether each GPU computes in bfloat16, as those of compute capability 8.0 and above do; others emulate it."""

    @property
    def on_gpu(self) -> bool:
        """Whether the run trains on GPUs."""
        return self.gpu_bytes > 0

    def __str__(self) -> str:
        """Describe the hardware as `--plan` reads it; the CPU with its memory."""
        if not self.on_gpu:
            memory = f" with {self.host_bytes / 1e9:.0f} GB" if self.host_bytes else ""
            return f"the CPU of this machine{memory}"
        mode = ("" if self.sharded else ":ddp") if self.processes > 1 else ""
        return f"{self.processes}x{self.name}{mode}"


def described(text: str) -> Hardware:
    """Return the hardware for a description such as H100, 8xH100, 4x80GB or 8xH100:ddp.

    Several GPUs are used with FSDP2 unless the description ends with :ddp.

    Raises:
        UsageError: The description can't be read, or names an unknown GPU.
    """
    found = _DESCRIBED.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--plan {text} describes no hardware. Give a number and a kind of GPU, such as 8xH100, 4x80GB or "
            f"8xH100:ddp; known are {', '.join(GPUS)}."
        )
    count, name = int(found["count"] or 1), found["gpu"].upper()
    if found["gb"]:
        memory = _USABLE * int(found["gb"]) * 2**30
    elif name in GPUS:
        memory = GPUS[name]
    else:
        raise UsageError(
            f"--plan knows no GPU {found['gpu']}.{did_you_mean(name, list(GPUS))} It knows {', '.join(GPUS)}; describe "
            "others by their memory, such as 4x80GB."
        )
    sharded = count > 1 and (found["mode"] or "fsdp2").lower() == "fsdp2"
    return Hardware(name, count, memory, sharded=sharded, bf16=name not in _WITHOUT_BF16)


def this_machine(*, cpu: bool) -> Hardware:
    """Return the hardware of this machine: all of its GPUs, with FSDP2 if there are several, or its CPU.

    Args:
        cpu: Use the CPU even if there is a GPU.
    """
    import torch

    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    count = 0 if cpu else torch.cuda.device_count()
    if not count:
        return Hardware("CPU", 1, host_bytes=host)
    found = [torch.cuda.get_device_properties(gpu) for gpu in range(count)]
    return replace(on_gpus(count, found, sharded=count > 1), host_bytes=host)


def on_gpus(count: int, found: Sequence[Any], *, sharded: bool) -> Hardware:
    """Return the hardware of this many GPUs.

    Args:
        count: Number of training processes.
        found: torch's properties of their GPUs, or of one if all are equal; the smallest one counts.
        sharded: Whether weights, gradients and optimizer state are sharded over the processes.
    """
    import torch

    memory = float(min(gpu.total_memory for gpu in found))
    bf16 = bool(torch.version.hip) or all(gpu.major >= 8 for gpu in found)
    return Hardware(f"{round(memory / _USABLE / 2**30)}GB", count, memory, sharded=sharded, bf16=bf16)
