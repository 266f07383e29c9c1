"""`train` as one of two processes, with DDP or sharded with FSDP2, with optional faults.

On GPUs, accelerate shards models itself; on CPUs it ignores the setting, so it is forced here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import agentgym_trainer.trainers.setup
import two_processes
from accelerate import Accelerator
from agentgym_envs import EnvFault
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.cli import main
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.plugins import PluginError
from agentgym_trainer.rollout import collector
from agentgym_trainer.rollout.collector import RolloutCollector
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRunner
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.rl_loop import RLLoop
from transformers import Trainer


def _sharded_accelerator(**settings: Any) -> Accelerator:
    accelerator = Accelerator(**settings)
    two_processes.shard(accelerator)
    return accelerator


def _before_call(owner: Any, method: str, call: int, action: Callable[[], None]) -> None:
    """Call `action` right before the nth call of a method, or of a module's function."""
    original, calls = getattr(owner, method), itertools.count(1)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            action()
        return original(*args, **kwargs)

    setattr(owner, method, watched)


def _block_replies() -> None:
    EnginePolicy.reply = _wait_forever


async def _wait_forever(*_: Any) -> Any:
    await asyncio.Event().wait()


def _terminate_when_gathering() -> None:
    """Send SIGTERM once the main thread waits for the other process, where Python's signal handlers can't run."""
    gathering = threading.Event()
    _before_call(Ranks, "gather", 1, gathering.set)

    def terminate() -> None:
        gathering.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()


def _raise(error: Exception) -> None:
    raise error


def train(mode: str, fault: str, arguments: Sequence[str]) -> None:
    """Run `train` as one of two processes.

    Args:
        mode: "ddp" or "sharded".
        fault: What happens to the second process: "interrupted" after a step, "engine-gone" in the first rollout,
            "killed" in the first update, or "preempted" while it waits for the first process, which can't finish the
            second rollout. With "blocked", neither process can finish it, and the file `blocked` is created in the
            working folder when it begins. With "tasks", its environment can't build the tasks of the second rollout;
            with "evaluation", those of the first evaluation; with "estimator", the first advantages can't be estimated.
            With "random-state", it can't write its first random state into a checkpoint of TRL's. With "saved", the
            first process can't read its first saved evaluation. With "none", nothing.
    """
    if mode == "sharded":
        agentgym_trainer.trainers.setup.Accelerator = _sharded_accelerator
    if fault == "blocked" or (fault == "preempted" and os.environ["RANK"] == "0"):
        _before_call(RLLoop, "collect", 2, _block_replies)
    if fault == "blocked":
        _before_call(RolloutRunner, "play", 4, Path("blocked").touch)
    if fault == "saved" and os.environ["RANK"] == "0":
        _before_call(Evaluator, "_saved", 1, lambda: _raise(EnvFault("The tasks can't be counted.")))
    if os.environ.get("RANK") == "1":
        match fault:
            case "preempted":
                _before_call(
                    RLLoop, "collect", 2, lambda: _before_call(RolloutRunner, "play", 1, _terminate_when_gathering)
                )
            case "engine-gone":
                gone = EngineGone("The engine has left for good.")
                _before_call(RolloutCollector, "_play_groups", 1, lambda: _raise(gone))
            case "tasks":
                _before_call(collector, "group_specs", 2, lambda: _raise(EnvFault("The tasks are gone.")))
            case "evaluation":
                _before_call(Evaluator, "_group_specs", 1, lambda: _raise(EnvFault("The dev tasks are gone.")))
            case "estimator":
                _before_call(
                    Algorithm, "compute_advantages", 1, lambda: _raise(PluginError("There are no advantages."))
                )
            case "random-state":
                _before_call(Trainer, "_save_rng_state", 1, lambda: _raise(OSError("The disk is full.")))
            case "killed":
                _before_call(RLLoop, "update", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            case "interrupted":
                _before_call(RLLoop, "finish_step", 1, lambda: os.kill(os.getpid(), signal.SIGINT))
            case _:
                pass
    main(arguments)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], sys.argv[3:])
