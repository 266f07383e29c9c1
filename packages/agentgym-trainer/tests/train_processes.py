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
from agentgym_trainer.cli import main
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.rollout.collector import RolloutCollector
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRunner
from agentgym_trainer.trainers.rl_loop import RLLoop


def _sharded_accelerator(**settings: Any) -> Accelerator:
    accelerator = Accelerator(**settings)
    two_processes.shard(accelerator)
    return accelerator


def _before_call(owner: type, method: str, call: int, action: Callable[[], None]) -> None:
    """Call `action` right before the nth call of a method."""
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


def _raise_engine_gone() -> None:
    raise EngineGone("The engine has left for good.")


def train(mode: str, fault: str, arguments: Sequence[str]) -> None:
    """Run `train` as one of two processes.

    Args:
        mode: "ddp" or "sharded".
        fault: What happens to the second process: "interrupted" after a step, "engine-gone" in the first rollout,
            "killed" in the first update, or "preempted" while it waits for the first process, which can't finish the
            second rollout. With "blocked", neither process can finish it, and the file `blocked` is created in the
            working folder when it begins. With "none", nothing.
    """
    if mode == "sharded":
        agentgym_trainer.trainers.setup.Accelerator = _sharded_accelerator
    if fault == "blocked" or (fault == "preempted" and os.environ["RANK"] == "0"):
        _before_call(RLLoop, "collect", 2, _block_replies)
    if fault == "blocked":
        _before_call(RolloutRunner, "play", 4, Path("blocked").touch)
    if os.environ.get("RANK") == "1":
        match fault:
            case "preempted":
                _before_call(
                    RLLoop, "collect", 2, lambda: _before_call(RolloutRunner, "play", 1, _terminate_when_gathering)
                )
            case "engine-gone":
                _before_call(RolloutCollector, "_play_groups", 1, _raise_engine_gone)
            case "killed":
                _before_call(RLLoop, "update", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            case "interrupted":
                _before_call(RLLoop, "finish_step", 1, lambda: os.kill(os.getpid(), signal.SIGINT))
            case _:
                pass
    main(arguments)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], sys.argv[3:])
