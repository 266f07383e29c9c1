"""Recipes: whole configurations by name, as typed Python values.

The four for real models have the settings of AgentGym-RL (arXiv 2509.08755 and its published scripts).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Config, Evaluation, Generation, Optimizer, WarmStart, World
from agentgym_trainer.horizon import FixedHorizon, Horizon, StepHorizon
from agentgym_trainer.scratch import Scratch


@dataclass(frozen=True)
class Recipe:
    """A configuration with a sentence on what it is for."""

    about: str
    config: Config


def _quickstart() -> Config:
    return Config(
        model="scratch",
        scratch=Scratch(vocab=512, hidden=96, layers=3, heads=4, context=1024),
        world=World("agentgym/BabyAI-v0", options=("levels=('GoToObj', 'GoToLocal')",), wrapper="bare", instructions=False),
        algorithm=GRPO(),
        horizon=StepHorizon(stages=(3, 5, 8), every=20),
        generation=Generation(max_tokens=16, max_context=1000),
        optimizer=Optimizer(lr=3e-4),
        warm_start=WarmStart(episodes=256, noise=0.5, epochs=4, batch=32, lr=2e-3),
        evaluation=Evaluation(tasks=64, samples=4, every=20),
        steps=60,
        tasks=16,
        samples=8,
        layout="pad",
        save_every=10,
    )
