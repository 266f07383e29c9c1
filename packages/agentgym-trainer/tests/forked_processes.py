"""Processes that are forked from one that has imported what is heavy: to import it takes each of them ten seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from patience import PATIENCE
from torch.distributed import TCPStore
from torch.multiprocessing.spawn import ProcessException, start_processes
from toy_learner import Moment, train_process

# All files of a test process share one server, so it imports what any of them needs.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        *(f"agentgym_trainer.trainers.{module}" for module in ("rl", "sft", "dpo", "agent_evol")),
        "transformers.models.qwen3",
    ]
)


def train_until(moment: Moment, arguments: Sequence[str], log: Path, *more: Moment) -> int | None:
    """The exit code of `train`, which is sent a signal at that moment, and at those that may follow; what it says goes
    to `log`.
    """
    moments = (moment, *more)
    process = multiprocessing.get_context("forkserver").Process(target=train_process, args=(arguments, log, *moments))
    process.start()
    process.join(3 * PATIENCE)
    process.kill()  # nothing happens to one that has ended
    process.join()
    return process.exitcode


def is_loaded(module: str) -> bool:
    """Whether what trains has imported that module."""
    process = multiprocessing.get_context("forkserver").Process(target=_look_for, args=(module,))
    process.start()
    process.join()
    return {0: True, 1: False}[process.exitcode or 0]


def _look_for(module: str) -> None:
    sys.exit(module not in sys.modules)


def by_two(work: Callable[..., None], *args: Any, log: Path) -> list[int | None]:
    """The exit codes of two processes that do this together, as accelerate's launcher starts them with `cpu-ddp.yaml`;
    what they say on stderr goes to `log`. When one fails, the other has some time to end by itself.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = start_processes(
        _take_part, (store.port, log, work, args), nprocs=2, join=False, start_method="forkserver"
    )
    try:
        while not started.join(grace_period=PATIENCE):
            pass
    except ProcessException:
        pass
    return [process.exitcode for process in started.processes]


def _take_part(rank: int, port: int, log: Path, work: Callable[..., None], args: Sequence[Any]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "no",
    }
    torch.set_num_threads(1)
    with log.open("a", buffering=1) as said:
        os.dup2(said.fileno(), 2)
        sys.stderr = said
        work(*args)
