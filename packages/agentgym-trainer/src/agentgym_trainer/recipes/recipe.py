"""The type of recipes."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_trainer.config import BaseConfig


@dataclass(frozen=True)
class Recipe:
    """A configuration with a short description."""

    about: str
    config: BaseConfig
