"""Engines as another package would provide them, good and faulty, for `--engine.kind engine_examples:NAME`."""

from __future__ import annotations

from typing import Any

from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.factory import EngineContext, EngineFactory
from agentgym_trainer.engines.hf.engine import transformers_engine


def with_own_weights(context: EngineContext) -> Engine:
    """The transformers engine with its own copy of the weights."""
    assert context.own_copy
    return transformers_engine(context.model(), end_id=context.end_id, own_copy=True, autocast=context.autocast)


def _sharing(context: EngineContext) -> Engine:
    assert not context.own_copy
    return transformers_engine(context.model(), end_id=context.end_id, autocast=context.autocast)


SHARING = EngineFactory(_sharing, shares_weights=True)


def not_installed(context: EngineContext) -> Engine:
    raise ImportError(f"run: pip install engine for {context.settings.kind}")


def unusable(context: EngineContext) -> Engine:
    raise KeyError(context.max_context)


def no_engine(context: EngineContext) -> Any:
    return context.name


NUMBER = 3
