"""Recipes for reinforcement learning.

Those for real models have the settings of AgentGym-RL (arXiv 2509.08755 and its scripts): `steps` corresponds to its
epochs over its training tasks, and GRPO has clip 0.2 and KL in the loss, estimated by k3 with weight 1e-3.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.algorithms import GRPO, KL, GroupRelative
from agentgym_trainer.config import (
    CriticModel,
    Distillation,
    Evaluation,
    Generation,
    Optimizer,
    RLConfig,
    WarmStart,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon, StepHorizon
from agentgym_trainer.curriculum.task_sampler import MidSuccess
from agentgym_trainer.recipes.recipe import Recipe

_PAPER = RLConfig(
    algorithm=GRPO,
    generation=Generation(temperature=1.0, max_tokens=512, max_context=512 + 8_192),
    optimizer=Optimizer(lr=1e-6),
    evaluation=Evaluation(every=50),
    tasks_per_step=32,
    group_size=4,
    epochs=2,
    minibatches=4,
    precision="bf16",
    slots=64,
)
_TEXTCRAFT = replace(
    _PAPER,
    world=WorldConfig("agentgym/TextCraft-v0"),
    generation=replace(_PAPER.generation, max_context=512 + 10_240),
    steps=350,
    group_size=8,
)
_BABYAI = replace(_PAPER, world=WorldConfig("agentgym/BabyAI-v0"), steps=506)
_SCIWORLD = replace(
    _PAPER,
    world=WorldConfig("agentgym/SciWorld-v0"),
    generation=replace(_PAPER.generation, max_tokens=200, max_context=1_024 + 8_192),
    steps=1_325,
    tasks_per_step=16,
    group_size=8,
    minibatches=2,
)
_SEARCHQA = replace(
    _PAPER,
    world=WorldConfig("agentgym/SearchQA-v0", agent="tags"),
    generation=replace(_PAPER.generation, max_context=1_024 + 8_192),
    steps=350,
)
_WEBARENA = replace(
    _PAPER,
    world=WorldConfig("agentgym/WebArena-v0"),
    generation=replace(_PAPER.generation, max_context=750 + 14_098),
    steps=290,
    minibatches=8,
    slots=16,
)
_MIXTURE = replace(_TEXTCRAFT, extra_worlds=(WorldConfig("agentgym/BabyAI-v0"),), sampler=MidSuccess(), steps=500)

_QUICKSTART = RLConfig(
    model="scratch",
    scratch=Scratch(vocab=512, hidden=96, layers=3, heads=4, context=1024),
    world=WorldConfig(
        "agentgym/BabyAI-v0",
        ("levels=('OneRoomS8', 'OpenRedDoor', 'OpenRedBlueDoors', 'UnlockLocal')", "available_actions_in_text=False"),
        agent="bare",
        instructions=False,
    ),
    # Without the KL penalty, some seeds unlearn to end their replies.
    algorithm=replace(GRPO, kl=KL("loss", "k3", 0.05)),
    horizon=StepHorizon(stages=(4, 8, 12), every=25),
    generation=Generation(max_tokens=16, max_context=1024),
    optimizer=Optimizer(lr=7e-4, micro_tokens=4096),
    critic=CriticModel(lr=2e-3),
    warm_start=WarmStart(episodes=1000, noise=0.7, imitate_noise=True, epochs=2, batch=16, lr=5e-3),
    evaluation=Evaluation(tasks=48, test_tasks=96, every=25),
    steps=75,
    tasks_per_step=16,
    group_size=8,
    epochs=2,
    minibatches=2,
    save_every=15,
    device="cpu",
)

# A model this small copies a name from the objective, but doesn't learn to look up the id of an element.
_MINIWOB = replace(
    _QUICKSTART,
    world=WorldConfig(
        "agentgym/WebArena-v0",
        (
            "task_set=miniwob",
            'pages=("click-button", "click-button-sequence", "click-collapsible", "click-dialog", "click-dialog-2", '
            '"click-link", "click-tab", "click-test", "click-test-2", "enter-text", "focus-text", "focus-text-2")',
            "elements=names",
        ),
        agent="bare",
        instructions=False,
    ),
    # Each word of the pages is a token, so that it can be copied in one step.
    scratch=Scratch(vocab=1500, merges="labels", hidden=128, layers=3, heads=2, context=2048),
    # Few groups have both successes and failures, and failed episodes have many more tokens.
    algorithm=replace(_QUICKSTART.algorithm, advantages=GroupRelative(whiten=True)),
    horizon=StepHorizon(stages=(2, 3, 4), every=10),
    generation=Generation(max_tokens=40, max_context=2048),
    optimizer=Optimizer(lr=2e-4, micro_tokens=4096),
    # Its random actions are imitated, too, which leaves RL something to learn.
    warm_start=WarmStart(episodes=1_200, noise=0.3, imitate_noise=True, rename=1.0, copies=48, batch=16, lr=1.5e-3),
    evaluation=Evaluation(tasks=36, test_tasks=120, samples=2, ks=(1, 2), every=10),
    steps=30,
    tasks_per_step=12,
    slots=8,
    epochs=1,
    save_every=5,
)

# The expert's own warm start is weak on purpose, so that labels and rewards have something to teach.
_DISTILL = replace(
    _QUICKSTART,
    horizon=FixedHorizon(8),
    warm_start=replace(_QUICKSTART.warm_start, episodes=400, epochs=1),
    # Labels want a higher learning rate than rewards, and no penalty that holds the policy at its weak start.
    algorithm=replace(GRPO, kl=KL()),
    optimizer=replace(_QUICKSTART.optimizer, lr=3e-3),
    critic=CriticModel(lr=3e-3),
    distillation=Distillation("oracle", label_weight=1.0, reward_weight=0.3),
    evaluation=Evaluation(tasks=48, test_tasks=96, every=15),
    steps=30,
    tasks_per_step=8,
    group_size=4,
    epochs=1,
    minibatches=4,
)
_DAGGER = replace(_DISTILL, distillation=Distillation("oracle", label_weight=1.0, reward_weight=0.0))


def _fixed(config: RLConfig, turns: int) -> Recipe:
    return Recipe(f"GRPO at a fixed horizon of {turns} turns", replace(config, horizon=FixedHorizon(turns)))


def _scaling(config: RLConfig, *stages: int, every: int = 100) -> Recipe:
    turns = ", ".join(map(str, stages))
    return Recipe(f"ScalingInter-RL: {turns} turns", replace(config, horizon=StepHorizon(stages, every)))


RL_RECIPES = {
    "quickstart": Recipe(
        "a model from scratch learns to find, fetch and open things, on a CPU in minutes",
        _QUICKSTART,
        next="smollm2-textcraft",
    ),
    "miniwob": Recipe(
        "a model from scratch learns twelve pages of MiniWoB++ by their elements' names, on a CPU",
        _MINIWOB,
        cost="40 to 60 minutes and up to 2.5 GB of memory on two cores",
    ),
    "babyai-distill": Recipe(
        "on-policy distillation, GRPO with the expert's labels in every turn of a model from scratch on a CPU", _DISTILL
    ),
    "babyai-dagger": Recipe("DAgger, the expert's labels alone in every turn of the same model", _DAGGER),
    "textcraft-grpo": _fixed(_TEXTCRAFT, 30),
    "textcraft-scaling": _scaling(_TEXTCRAFT, 10, 20, 30),
    "babyai-grpo": _fixed(_BABYAI, 20),
    "babyai-scaling": _scaling(_BABYAI, 6, 13, 20),
    "sciworld-grpo": _fixed(_SCIWORLD, 30),
    "sciworld-scaling": _scaling(_SCIWORLD, 10, 20, 30),
    "searchqa-grpo": _fixed(_SEARCHQA, 10),
    "searchqa-scaling": _scaling(_SEARCHQA, 5, 8, 10),
    "webarena-grpo": _fixed(_WEBARENA, 15),
    "webarena-scaling": _scaling(_WEBARENA, 8, 12, 15, every=80),
    "mixture": Recipe(
        "TextCraft and BabyAI in one run, preferring tasks of intermediate success",
        replace(_MIXTURE, horizon=StepHorizon((10, 20, 30), 100)),
    ),
}
