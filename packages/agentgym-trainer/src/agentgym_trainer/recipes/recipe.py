"""The type of recipes."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_trainer.config import BaseConfig


@dataclass(frozen=True)
class Recipe:
    """A configuration with a short description."""

    about: str
    config: BaseConfig
    cost: str = ""
    """Time and memory of the whole run, and on which machine; printed before it starts. Empty: unknown."""
    next: str = ""
    """Name of a recipe to suggest at the end of the run."""
