"""Multi-turn reinforcement learning of language agents, from a world to a learning curve.

`from agentgym_trainer import train, resume, load_run` is the Python interface (docs/python.md). Importing this package
loads neither torch nor transformers.
"""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym_trainer.api import Run, load_run, resume, train

__all__ = ["Run", "load_run", "resume", "train"]

# peft imports bitsandbytes if it is installed, which on some CPUs reports that it can't download a kernel, which isn't
# used (`models.quantization.keep_layout`).
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def __getattr__(name: str) -> Any:  # on first use, so that a command's `--help` doesn't load torch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentgym_trainer import api

    return getattr(api, name)
