"""Processes forked from a server that has imported torch and transformers, since importing them takes ten seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from agentgym_trainer.run.folder import RunFolder
from coin_world import Coin
from patience import PATIENCE
from torch.distributed import TCPStore
from torch.multiprocessing.spawn import ProcessException, start_processes
from toy_learner import SignalPoint, train_process

# All files of a test process share one server, so it preloads what any of them needs.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        *(f"agentgym_trainer.trainers.{module}" for module in ("rl", "sft", "dpo", "agent_evol")),
        "transformers.models.qwen3",
    ]
)


def train_with_signals(
    point: SignalPoint, arguments: Sequence[str], log: Path, *more_points: SignalPoint
) -> int | None:
    """Run `train`, which sends itself signals at the given points. Return its exit code; stderr goes to `log`."""
    return run_process(train_process, arguments, log, point, *more_points)


def train_with_hanging_environment(step: int, arguments: Sequence[str], folder: Path, log: Path) -> int | None:
    """Run `train` in `folder`; an environment hangs in the rollout of this step, and the process gets SIGTERM. Return
    the exit code; stderr goes to `log`.
    """
    return run_process(_train_and_hang, step, arguments, RunFolder(folder).metrics, log)


def _train_and_hang(step: int, arguments: Sequence[str], metrics: Path, log: Path) -> None:
    act = Coin._act

    def hang(self: Coin, action: str) -> Any:
        in_rollout = threading.current_thread() is not threading.main_thread() and metrics.exists()
        if in_rollout and metrics.read_bytes().count(b"\n") == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10 * PATIENCE)
        return act(self, action)

    Coin._act = hang
    train_process(arguments, log)


def run_process(work: Callable[..., None], *args: Any) -> int | None:
    """Run `work` in a process, and return its exit code."""
    process = multiprocessing.get_context("forkserver").Process(target=work, args=args)
    process.start()
    process.join(3 * PATIENCE)
    process.kill()  # no effect on a process that has ended
    process.join()
    return process.exitcode


def is_loaded(module: str) -> bool:
    """Return whether the preloaded modules import `module`."""
    process = multiprocessing.get_context("forkserver").Process(target=_exit_with_presence, args=(module,))
    process.start()
    process.join()
    return {0: True, 1: False}[process.exitcode or 0]


def _exit_with_presence(module: str) -> None:
    sys.exit(module not in sys.modules)


def run_two_processes(work: Callable[..., None], *args: Any, log: Path) -> list[int | None]:
    """Run `work` in two processes, see `run_processes`."""
    return run_processes(2, work, *args, log=log)


def run_processes(count: int, work: Callable[..., None], *args: Any, log: Path) -> list[int | None]:
    """Run `work` in processes, as accelerate's launcher does with `cpu-ddp.yaml`, and return their exit codes.

    Their stderr goes to `log`. If one fails, the others have some time to end by themselves. All are killed if they
    wait for each other forever.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = start_processes(
        _run_process, (count, store.port, log, work, args), nprocs=count, join=False, start_method="forkserver"
    )
    end = time.monotonic() + 3 * PATIENCE
    try:
        while not context.join(end - time.monotonic(), grace_period=PATIENCE):
            if time.monotonic() > end:
                for process in context.processes:
                    process.kill()
    except ProcessException:
        pass
    return [process.exitcode for process in context.processes]


def _run_process(rank: int, count: int, port: int, log: Path, work: Callable[..., None], args: Sequence[Any]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "no",
    }
    torch.set_num_threads(1)
    with log.open("a", buffering=1) as stderr:
        os.dup2(stderr.fileno(), 2)
        sys.stderr = stderr
        work(*args)
