"""What a recipe is."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_trainer.config import BaseConfig


@dataclass(frozen=True)
class Recipe:
    """A configuration with a few words on what it is for."""

    about: str
    config: BaseConfig
