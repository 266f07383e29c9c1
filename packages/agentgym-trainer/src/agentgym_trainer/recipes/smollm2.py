"""Recipes that train SmolLM2-135M-Instruct on two CPU cores: a short imitation of the expert, then ScalingInter-RL.

The replies of so small a model are bare actions, and its prompts have no instructions. RL trains a LoRA adapter on the
imitating model, which takes less time and memory than training all weights. In TextCraft a round of DAgger shows what
to do after an error, which no episode of the expert contains. Advantages are normalized over the tokens of the batch,
so that failed episodes, which are longer, don't outweigh successful ones.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.algorithms import GRPO, KL, GroupRelative
from agentgym_trainer.config import (
    DAgger,
    Evaluation,
    Generation,
    Lora,
    Optimizer,
    RLConfig,
    RolloutFiles,
    WarmStart,
    WorldConfig,
)
from agentgym_trainer.curriculum.horizon import StepHorizon
from agentgym_trainer.recipes.recipe import Recipe

_SMOLLM2 = RLConfig(
    model="smollm2",
    algorithm=replace(GRPO, advantages=GroupRelative(whiten=True), kl=KL()),
    optimizer=Optimizer(lr=6e-4, micro_tokens=512),
    lora=Lora(rank=16, alpha=32.0),
    warm_start=WarmStart(episodes=480, batch=16, lr=3e-4),
    evaluation=Evaluation(tasks=40, test_tasks=100, every=15),
    tasks_per_step=8,
    group_size=8,
    slots=64,
    steps=45,
    save_every=5,
    rollouts=RolloutFiles(every=5),
    keep_checkpoints=1,
    precision="auto",
    threads=2,
    device="cpu",
)

_TEXTCRAFT = replace(
    _SMOLLM2,
    world=WorldConfig("agentgym/TextCraft-v0", ("depth=(1, 2)", "distractors=2"), agent="bare", instructions=False),
    horizon=StepHorizon(stages=(6, 8, 10), every=15),
    generation=Generation(max_tokens=32, max_context=1024),
    warm_start=replace(_SMOLLM2.warm_start, dagger=DAgger(rounds=1, episodes=240)),
)
_BABYAI = replace(
    _SMOLLM2,
    world=WorldConfig(
        "agentgym/BabyAI-v0",
        (
            "levels=('GoToRedBall', 'GoToObjS6', 'GoToLocal', 'PickupLoc', 'OpenDoor', 'OpenDoorColor', "
            "'OpenRedBlueDoors', 'ActionObjDoor', 'OneRoomS8', 'UnlockLocal')",
            "available_actions_in_text=False",
        ),
        agent="bare",
        instructions=False,
    ),
    horizon=StepHorizon(stages=(8, 10, 12), every=15),
    generation=Generation(max_tokens=16, max_context=2048),
    warm_start=replace(_SMOLLM2.warm_start, episodes=160),
    slots=32,
)
_SEARCHQA = replace(
    _SMOLLM2,
    world=WorldConfig("agentgym/SearchQA-v0", ("top_k=1",), agent="bare", instructions=False),
    horizon=StepHorizon(stages=(3, 4, 6), every=15),
    generation=Generation(max_tokens=32, max_context=2048),
    warm_start=replace(_SMOLLM2.warm_start, episodes=320),
    slots=32,
)
# Each of these types is learned from more than 60 tasks, and its score is full for one right focus or one right object.
_SCIWORLD = replace(
    _SMOLLM2,
    world=WorldConfig(
        "agentgym/SciWorld-v0",
        (
            "tasks=('find-living-thing', 'find-non-living-thing', 'find-plant', 'find-animal', "
            "'lifespan-longest-lived', 'lifespan-shortest-lived')",
            "simplifications='easy'",
        ),
        agent="bare",
        instructions=False,
    ),
    horizon=StepHorizon(stages=(8, 10, 12), every=15),
    generation=Generation(max_tokens=24, max_context=2048),
    # An expert's path takes seconds to compute.
    warm_start=replace(_SMOLLM2.warm_start, episodes=320, epochs=2),
    evaluation=replace(_SMOLLM2.evaluation, tasks=24, test_tasks=90),
    tasks_per_step=6,
    slots=32,
)
# Templates whose tasks the expert solves in up to four turns, with answers in the part of the pages that shows.
_WEBARENA = replace(
    _SMOLLM2,
    world=WorldConfig(
        "agentgym/WebArena-v0",
        (
            "templates=('admin/note-here', 'admin/review-words', 'code/mail-of', 'code/stars', 'code/top-contributor', "
            "'forum/biography', 'forum/look-into-messages', 'forum/moderate-post', 'forum/vote', 'map/coordinates', "
            "'map/hours', 'map/nearest', 'map/phone', 'map/postcode', 'map/show-place', 'shop/by-sku', "
            "'shop/this-to-cart', 'wiki/architect', 'wiki/award', 'wiki/festival', 'wiki/firm-of-town', "
            "'wiki/links-here', 'wiki/meaning', 'wiki/town-fact')",
            "elements=names",
            "max_chars=1200",
        ),
        agent="bare",
        instructions=False,
    ),
    horizon=StepHorizon(stages=(5, 6), every=15),
    generation=Generation(max_tokens=48, max_context=3584),
    # All train tasks, three times: there are five for each template.
    warm_start=replace(_SMOLLM2.warm_start, episodes=120, epochs=3, batch=8),
    evaluation=replace(_SMOLLM2.evaluation, tasks=24, test_tasks=24, samples=8),
    optimizer=replace(_SMOLLM2.optimizer, lr=3e-4),
    slots=16,
    steps=30,
    gradient_checkpointing="on",
)
# Pages of MiniWoB++ whose text tells what to do: an element to press or to fill in, or a small form.
_MINIWOB = replace(
    _SMOLLM2,
    world=WorldConfig(
        "agentgym/WebArena-v0",
        (
            "task_set=miniwob",
            "pages=('click-button', 'click-checkboxes', 'click-collapsible', 'click-dialog', 'click-link', "
            "'click-option', 'click-tab', 'click-test-2', 'enter-password', 'enter-text', 'focus-text', "
            "'focus-text-2')",
        ),
        agent="bare",
        instructions=False,
    ),
    horizon=StepHorizon(stages=(3, 5, 8), every=10),
    generation=Generation(max_tokens=32, max_context=2048),
    evaluation=replace(_SMOLLM2.evaluation, tasks=36, test_tasks=96),
    # Replies are short and many groups have equal rewards, so that an update has few tokens to learn from.
    optimizer=replace(_SMOLLM2.optimizer, lr=3e-4),
    tasks_per_step=12,
    slots=16,
    steps=30,
)

SMOLLM2_RECIPES = {
    "smollm2-textcraft": Recipe(
        "SmolLM2-135M learns to craft, on two CPU cores",
        _TEXTCRAFT,
        cost="1.5 to 3 hours and up to 6 GB of memory, if they compute in bfloat16",
    ),
    "smollm2-babyai": Recipe(
        "SmolLM2-135M learns to find, fetch and open things, on two CPU cores",
        _BABYAI,
        cost="2.5 to 3.5 hours and up to 6 GB of memory, if they compute in bfloat16",
    ),
    "smollm2-searchqa": Recipe(
        "SmolLM2-135M learns to search and answer, on two CPU cores",
        _SEARCHQA,
        cost="2 to 3 hours and up to 8 GB of memory, if they compute in bfloat16",
    ),
    "smollm2-sciworld": Recipe(
        "SmolLM2-135M learns six of SciWorld's task types, on two CPU cores",
        _SCIWORLD,
        cost="2 to 3 hours and up to 6 GB of memory, if they compute in bfloat16",
    ),
    "smollm2-webarena": Recipe(
        "SmolLM2-135M learns 24 kinds of short tasks on six web sites, on two CPU cores",
        _WEBARENA,
        cost="an estimated 6 hours and 9 GB of memory, if they compute in bfloat16",
    ),
    "smollm2-miniwob": Recipe(
        "SmolLM2-135M learns twelve pages of MiniWoB++, on two CPU cores",
        _MINIWOB,
        cost="1.5 to 2.5 hours and up to 6 GB of memory, if they compute in bfloat16",
    ),
}
