"""Recipes: whole configurations by name, as typed Python values.

Those for real models have the settings that AgentGym-RL was trained with (arXiv 2509.08755 and its scripts), steps
being its epochs over its training tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Config, Evaluation, Generation, Optimizer, WarmStart, World
from agentgym_trainer.horizon import FixedHorizon, Horizon, StepHorizon
from agentgym_trainer.scratch import Scratch


@dataclass(frozen=True)
class Recipe:
    """A configuration with a few words on what it is for."""

    about: str
    config: Config


def _paper(env: str, horizon: Horizon, *, samples: int, response_tokens: int, steps: int) -> Config:
    return Config(
        model="Qwen/Qwen2.5-7B-Instruct",
        world=World(env, wrapper="react"),
        algorithm=GRPO(clip_low=0.2, clip_high=0.2, kl=1e-3),
        horizon=horizon,
        generation=Generation(temperature=1.0, max_tokens=512, max_context=512 + response_tokens),
        optimizer=Optimizer(lr=1e-6),
        evaluation=Evaluation(every=50),
        steps=steps,
        tasks=32,
        samples=samples,
        epochs=2,
        minibatches=4,
        precision="bf16",
        slots=64,
    )


def _textcraft(horizon: Horizon) -> Config:
    return _paper("agentgym/TextCraft-v0", horizon, samples=8, response_tokens=10_240, steps=350)


def _babyai(horizon: Horizon) -> Config:
    return _paper("agentgym/BabyAI-v0", horizon, samples=4, response_tokens=8_192, steps=506)


_QUICKSTART = Config(
    model="scratch",
    scratch=Scratch(vocab=512, hidden=96, layers=3, heads=4, context=1024),
    world=World(
        "agentgym/BabyAI-v0",
        ("levels=('OneRoomS8', 'OpenRedDoor', 'OpenRedBlueDoors', 'UnlockLocal')", "available_actions_in_text=False"),
        wrapper="bare",
        instructions=False,
    ),
    # Without the penalty some seeds unlearn how to end a reply.
    algorithm=GRPO(kl=0.05),
    horizon=StepHorizon(stages=(4, 8, 12), every=25),
    generation=Generation(max_tokens=16, max_context=1024),
    optimizer=Optimizer(lr=7e-4, micro_tokens=4096),
    warm_start=WarmStart(episodes=1000, noise=0.7, epochs=2, batch=16, lr=5e-3),
    evaluation=Evaluation(tasks=96, every=25),
    steps=75,
    tasks=16,
    samples=8,
    epochs=2,
    minibatches=2,
    save_every=15,
    device="cpu",
)

DEFAULT = "quickstart"
RECIPES = {
    DEFAULT: Recipe("a model from scratch learns to find, fetch and open things, on a CPU in minutes", _QUICKSTART),
    "textcraft-grpo": Recipe("GRPO at a fixed horizon of 30 turns", _textcraft(FixedHorizon(30))),
    "textcraft-scaling": Recipe("ScalingInter-RL: 10, 20, 30 turns", _textcraft(StepHorizon((10, 20, 30), 100))),
    "babyai-grpo": Recipe("GRPO at a fixed horizon of 20 turns", _babyai(FixedHorizon(20))),
    "babyai-scaling": Recipe("ScalingInter-RL: 6, 13, 20 turns", _babyai(StepHorizon((6, 13, 20), 100))),
}


def tiny(config: Config) -> Config:
    """The same run in miniature: two steps of a tiny model from scratch on a CPU, everything else as it was."""
    return replace(
        config,
        model="scratch",
        scratch=Scratch(vocab=320, hidden=32, layers=2, heads=2, context=4096),
        generation=replace(config.generation, max_tokens=8, max_context=4096),
        warm_start=replace(config.warm_start, episodes=min(8, config.warm_start.episodes), epochs=1),
        evaluation=replace(config.evaluation, tasks=2, every=0),
        # So small a model succeeds nowhere: without this no group would differ and no update be taken.
        algorithm=replace(config.algorithm, flat_groups="keep"),
        steps=2,
        tasks=2,
        samples=2,
        save_every=1,
        device="cpu",
        precision="no",
    )
