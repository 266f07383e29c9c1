"""Recipes for supervised fine-tuning.

Those for real models have the settings of AgentGym's behavioral cloning (arXiv 2406.04151 and its scripts): one pass
over the data, 8 GPUs x 2 x 2 episodes per update, learning rate 1e-5, gradients clipped at 1. Horizons, token budgets
and the number of training tasks per environment are those of AgentGym-RL (arXiv 2509.08755), except the number for
SearchQA, which is this package's. Episodes are those of this package's experts; to train on AgentGym's own
conversations, give their file as `data.files`.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.config import DataConfig, Evaluation, Generation, Optimizer, SFTConfig, WorldConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes.recipe import Recipe

# The model learns to copy names from noisy experts, which sometimes take a random listed action, so that the names to
# copy vary between episodes. With perfect experts it would memorize the few goals that they repeat.
_FROM_SCRATCH = SFTConfig(
    model="scratch",
    scratch=Scratch(vocab=800, merges="words", hidden=128, layers=3, heads=4, context=1024),
    world=WorldConfig("agentgym/TextCraft-v0", ("depth=(1,2)", "distractors=2"), agent="bare", instructions=False),
    horizon=FixedHorizon(12),
    generation=Generation(max_tokens=48, max_context=1024),
    optimizer=Optimizer(lr=3e-3, betas=(0.9, 0.99), schedule="linear", warmup=20, micro_tokens=4096),
    evaluation=Evaluation(tasks=0, test_tasks=0, every=500),
    data=DataConfig(episodes=12_000, noise=0.3, imitate_noise=True, keep="all"),
    epochs=1,
    batch=8,
    save_every=250,
    device="cpu",
)

# Names must be copied rather than learned by heart: episodes have other names, distractors and another order of
# recipes. Goals of one recipe first, since finding the recipe of the goal is what takes longest to learn.
_ONE_RECIPE = replace(
    _FROM_SCRATCH,
    scratch=replace(_FROM_SCRATCH.scratch, vocab=1_600, episodes=2_000),
    world=replace(_FROM_SCRATCH.world, options=("depth=(1,1)", "distractors=2", "layout=episode")),
    data=DataConfig(episodes=12_000, noise=0.1, rename=1.0, copies=2, keep="all"),
    evaluation=replace(_FROM_SCRATCH.evaluation, every=1_000),
)
_RENAMED = replace(
    _ONE_RECIPE,
    model="runs/sft-textcraft-one-recipe/model",
    scratch=_FROM_SCRATCH.scratch,
    world=replace(_FROM_SCRATCH.world, options=("depth=(1,2)", "distractors=2", "layout=episode")),
    data=replace(_ONE_RECIPE.data, rename=0.5),
)
_ALL_GOALS = replace(
    _RENAMED,
    model="runs/sft-textcraft-renamed/model",
    world=replace(_FROM_SCRATCH.world, options=("distractors=10", "layout=episode")),
    horizon=FixedHorizon(30),
)

# BabyAI with its default options and the paper's horizon. Its objective, objects and actions share words, each of which
# is a token. Only BabyAI and TextCraft list their actions, so only their experts can be noisy.
_BABYAI = replace(
    _FROM_SCRATCH,
    world=WorldConfig("agentgym/BabyAI-v0", agent="bare", instructions=False),
    scratch=replace(_FROM_SCRATCH.scratch, vocab=1_000, hidden=192, layers=4, context=4_096, episodes=500),
    horizon=FixedHorizon(20),
    generation=Generation(max_tokens=24, max_context=4_096),
    optimizer=replace(_FROM_SCRATCH.optimizer, lr=2e-3),
    evaluation=Evaluation(tasks=30, test_tasks=60, samples=2, ks=(1, 2), every=0),
    data=DataConfig(episodes=28_000, noise=0.1, rename=0.5),
)

# The other environments, likewise. In SciWorld the expert takes a second or two per solution, and these 20 of the 30
# tasks can be solved within the horizon; all of their variations would mostly be those of five tasks.
_SCIWORLD = replace(
    _FROM_SCRATCH,
    world=WorldConfig(
        "agentgym/SciWorld-v0",
        (
            "variations=60",
            "tasks=('1-4', '2-1', '2-2', '3-1', '3-2', '3-3', '3-4', '4-1', '4-2', '4-3', '4-4', '6-1', '6-2', '6-3', "
            "'7-1', '7-2', '7-3', '8-2', '9-1', '9-2')",
        ),
        agent="bare",
        instructions=False,
    ),
    scratch=replace(_FROM_SCRATCH.scratch, vocab=2_000, context=2_048),
    horizon=FixedHorizon(30),
    generation=Generation(max_tokens=24, max_context=2_048),
    evaluation=Evaluation(tasks=20, test_tasks=20, samples=1, ks=(1,), every=400),
    data=DataConfig(episodes=870),
    epochs=12,
)
# Thousands of names, most of which are in few questions. With one passage for each search, episodes are short, and with
# all tokens in the loss, the names that recur in passages teach copying, too.
_ONE_PASSAGE = replace(
    _FROM_SCRATCH,
    world=WorldConfig("agentgym/SearchQA-v0", ("top_k=1",), agent="bare", instructions=False),
    scratch=replace(_SCIWORLD.scratch, merges="labels", episodes=1_000),
    horizon=FixedHorizon(10),
    generation=Generation(max_tokens=48, max_context=2_048),
    optimizer=replace(_FROM_SCRATCH.optimizer, micro_tokens=8_192),
    evaluation=Evaluation(tasks=60, test_tasks=60, samples=1, ks=(1,), every=500),
    data=DataConfig(episodes=12_000, rename=1.0, copies=2),
    completion_only_loss=False,
    precision="auto",
)
_SEARCHQA = replace(
    _ONE_PASSAGE,
    model="runs/sft-searchqa-one-passage/model",
    world=replace(_ONE_PASSAGE.world, options=()),
    optimizer=replace(_ONE_PASSAGE.optimizer, lr=1.5e-3),
    evaluation=replace(_ONE_PASSAGE.evaluation, every=0),
    data=DataConfig(episodes=6_000, rename=1.0),
    completion_only_loss=True,
)
# Observations are mostly fixed phrases, each of which is a token.
_WEBARENA = replace(
    _FROM_SCRATCH,
    world=WorldConfig("agentgym/WebArena-v0", agent="bare", instructions=False),
    scratch=replace(_FROM_SCRATCH.scratch, vocab=4_000, merges="phrases", context=4_096),
    horizon=FixedHorizon(15),
    generation=Generation(max_tokens=48, max_context=4_096),
    evaluation=Evaluation(tasks=10, test_tasks=20, samples=1, ks=(1,), every=0),
    data=DataConfig(episodes=120),
    epochs=4,
)


def _cloning(world: str, *, turns: int, episodes: int, context: int, reply: int = 512, agent: str = "react") -> Recipe:
    """Return a recipe for SFT of a real model on an environment's expert."""
    config = SFTConfig(
        world=WorldConfig(f"agentgym/{world}-v0", agent=agent),
        horizon=FixedHorizon(turns),
        generation=Generation(max_tokens=reply, max_context=context),
        optimizer=Optimizer(lr=1e-5, betas=(0.9, 0.999)),
        data=DataConfig(episodes=episodes),
        batch=32,
        slots=64,
        precision="bf16",
    )
    return Recipe(f"SFT on {episodes} episodes of {world}'s expert", config)


SFT_RECIPES = {
    "sft-textcraft": Recipe("a model from scratch imitates TextCraft's expert, on a CPU in minutes", _FROM_SCRATCH),
    "sft-textcraft-one-recipe": Recipe(
        "a model from scratch copies names in TextCraft's goals of one recipe, on a CPU in minutes", _ONE_RECIPE
    ),
    "sft-textcraft-renamed": Recipe("the model of sft-textcraft-one-recipe goes on with two recipes", _RENAMED),
    "sft-textcraft-all-goals": Recipe(
        "the model of sft-textcraft-renamed goes on with all goals and ten distractors", _ALL_GOALS
    ),
    "sft-babyai": Recipe("a model from scratch imitates BabyAI's expert, on a CPU in two hours", _BABYAI),
    "sft-sciworld": Recipe("a model from scratch imitates SciWorld's expert, on a CPU in an hour", _SCIWORLD),
    "sft-searchqa-one-passage": Recipe(
        "a model from scratch copies names in SearchQA with one passage per search, on a CPU in an hour", _ONE_PASSAGE
    ),
    "sft-searchqa": Recipe("the model of sft-searchqa-one-passage goes on with three passages", _SEARCHQA),
    "sft-webarena": Recipe("a model from scratch imitates WebArena's expert, on a CPU in minutes", _WEBARENA),
    "textcraft-sft": _cloning("TextCraft", turns=30, episodes=374, context=512 + 10_240),
    "babyai-sft": _cloning("BabyAI", turns=20, episodes=810, context=512 + 8_192),
    "sciworld-sft": _cloning("SciWorld", turns=30, episodes=2_120, context=1_024 + 8_192, reply=200),
    "searchqa-sft": _cloning("SearchQA", turns=10, episodes=1_000, context=1_024 + 8_192, agent="tags"),
    "webarena-sft": _cloning("WebArena", turns=15, episodes=372, context=750 + 14_098),
}
