"""The kinds of training runs. A new kind is a file here, with its configuration and trainer, and an entry in KINDS."""

from typing import Any, TypeVar

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.kinds.agent_evol import AGENT_EVOL
from agentgym_trainer.kinds.base import RunKind, shrunk
from agentgym_trainer.kinds.dpo import DPO
from agentgym_trainer.kinds.rl import RL
from agentgym_trainer.kinds.sft import SFT

__all__ = ["KINDS", "RunKind", "kind_of", "tiny"]

_Config = TypeVar("_Config", bound=BaseConfig)

KINDS: dict[str, RunKind] = {kind.name: kind for kind in (RL, SFT, DPO, AGENT_EVOL)}
"""All kinds of training runs, by their name in `run.json`."""


def kind_of(config: BaseConfig) -> RunKind:
    """The kind of run that a configuration is for.

    Raises:
        TypeError: if there is none.
    """
    for kind in KINDS.values():
        if type(config) is kind.config:
            return kind
    raise TypeError(f"There is no kind of run for a configuration of type {type(config).__name__}.")


def tiny(config: _Config) -> _Config:
    """The same run as a smoke test that takes seconds: two steps of a tiny model on a CPU, otherwise unchanged."""
    small: Any = kind_of(config).miniature(shrunk(config))
    return small
