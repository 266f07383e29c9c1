from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # makes the helper modules importable, also by name

import matplotlib as mpl
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.scratch import build_model, train_tokenizer
from agentgym_trainer.tokens.chat import Chat
from coin_loops import Build, builder
from faulty_runs import rl, sft
from toy_learner import TEXTS, VOCAB

mpl.use("Agg")
__all__ = ["rl", "sft"]  # fixtures


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def chat() -> Chat:
    """A scratch tokenizer with its ChatML template."""
    return Chat(train_tokenizer(TEXTS, 320))


@pytest.fixture(scope="session")
def new_model(chat: Chat) -> Callable[..., Any]:
    """A function that builds a tiny random model, deterministically for a given seed."""

    def build(seed: int = 0, *, init: float = 4.0) -> Any:
        model = build_model(
            Scratch(vocab=320, hidden=32, layers=2, heads=2, context=512),
            vocab=VOCAB,
            end_id=chat.end_id,
            pad_id=chat.pad_id,
            seed=seed,
        )
        # Small random weights give nearly uniform distributions; larger ones make them depend on the context.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(init)
        return model

    return build


@pytest.fixture(scope="session")
def model(new_model: Callable[..., Any]) -> Any:
    """A tiny random model for tests that don't train it."""
    return new_model().eval()


@pytest.fixture
def accelerator_of() -> Generator[Callable[[str], Accelerator]]:
    """A function that creates an accelerator of a given precision; Accelerate's shared state is reset each time."""

    def make(precision: str) -> Accelerator:
        AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(cpu=True, mixed_precision=precision)

    yield make
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def build(tmp_path: Path, new_model: Callable[..., Any], chat: Chat) -> Generator[Build]:
    """A function that builds a training loop in the coin environment. Everything it opens is closed after the test."""
    with ExitStack() as stack:
        yield builder(stack, tmp_path, new_model, chat)
