"""`train` as each of two processes: with DDP, or sharded, with FSDP2.

On GPUs accelerate shards models itself; on CPUs it ignores the wish, and is made to.
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


def _sharding(**settings: Any) -> Accelerator:
    accelerator = Accelerator(**settings)
    two_processes.shard(accelerator)
    return accelerator


def _befall(owner: type, method: str, call: int, what: Callable[[], None]) -> None:
    """Let `what` happen before that call of a method."""
    original, calls = getattr(owner, method), itertools.count(1)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            what()
        return original(*args, **kwargs)

    setattr(owner, method, watched)


def _let_nobody_speak() -> None:
    EnginePolicy.reply = _for_ever


async def _for_ever(*_: Any) -> Any:
    await asyncio.Event().wait()


def _be_terminated_later() -> None:
    """SIGTERM as soon as the main thread waits for the other process, where no handler of Python's can run."""
    gathering = threading.Event()
    _befall(Ranks, "gather", 1, gathering.set)

    def terminate() -> None:
        gathering.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()


def _lose_the_engine() -> None:
    raise EngineGone("The engine has left for good.")


def train(how: str, fate: str, arguments: Sequence[str]) -> None:
    """Train, "ddp" or "sharded". `fate` is what befalls the second process: it alone is "asked" to stop after a
    step, its engine is "gone" in the first rollout, it is "killed" in the first update; it alone is
    "preempted" when it waits for the first one, which can't play the second rollout to its end; "held", neither of them
    can, and there is a file `held` in the working folder; or all goes "well".
    """
    if how == "sharded":
        agentgym_trainer.trainers.setup.Accelerator = _sharding
    if fate == "held" or (fate == "preempted" and os.environ["RANK"] == "0"):
        _befall(RLLoop, "collect", 2, _let_nobody_speak)
    if fate == "held":
        _befall(RolloutRunner, "play", 4, Path("held").touch)
    if os.environ.get("RANK") == "1":
        match fate:
            case "preempted":
                _befall(RLLoop, "collect", 2, lambda: _befall(RolloutRunner, "play", 1, _be_terminated_later))
            case "gone":
                _befall(RolloutCollector, "_play_groups", 1, _lose_the_engine)
            case "killed":
                _befall(RLLoop, "update", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            case "asked":
                _befall(RLLoop, "finish_step", 1, lambda: os.kill(os.getpid(), signal.SIGINT))
            case _:
                pass
    main(arguments)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], sys.argv[3:])
