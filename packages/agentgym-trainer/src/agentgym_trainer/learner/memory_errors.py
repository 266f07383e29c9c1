"""What to do if the learner's device has too little memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from agentgym_eval.util.errors import RunStopped


@contextmanager
def explained_memory(micro_tokens: int) -> Generator[None]:
    """Say what to do if a micro-batch of this many tokens needs more memory than the device has.

    Raises:
        RunStopped: if it does.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunStopped(
            f"A micro-batch of up to {micro_tokens} tokens needs more memory than the device has. Start a run with a "
            "lower --optimizer.micro-tokens or with --gradient-checkpointing on; --plan shows what fits. "
            f"({str(error).splitlines()[0]})"
        ) from error
