"""`train` as each of two processes: with DDP, or sharded, with FSDP2.

On GPUs accelerate shards models itself; on CPUs it ignores the wish, and is made to.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import agentgym_trainer.beginning
import two_processes
from accelerate import Accelerator
from agentgym_trainer.arena import Arena
from agentgym_trainer.cli import main
from agentgym_trainer.engines import EngineGone
from agentgym_trainer.loop import Loop


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


def _lose_the_engine() -> None:
    raise EngineGone("The engine has left for good.")


def train(how: str, fate: str, arguments: Sequence[str]) -> None:
    """Train, "ddp" or "sharded". `fate` is what befalls the second process: it alone is "asked" to stop after the
    second step, its engine is "gone" in the first rollout, it is "killed" in the first update; or all goes "well".
    """
    if how == "sharded":
        agentgym_trainer.beginning.Accelerator = _sharding
    if os.environ["RANK"] == "1":
        match fate:
            case "gone":
                _befall(Arena, "_play_groups", 1, _lose_the_engine)
            case "killed":
                _befall(Loop, "update", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            case "asked":
                _befall(Loop, "conclude", 2, lambda: os.kill(os.getpid(), signal.SIGINT))
            case _:
                pass
    main(arguments)
