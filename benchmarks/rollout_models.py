"""Small models that write a thought before each action, for `rollout.py`: their replies differ in length.

A model imitates an expert half of whose actions are random, with a thought before each action: a run of words from the
last observation, short in most cases and long in a few, like the thoughts of large models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_envs import Episode, EpisodeSpec, ReplyWrapper, play_many, text_env
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import Optimizer
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.load import load_model, scratch_model
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming
from agentgym_trainer.trainers.warm_start import encode_demonstrations, warm_start

HORIZON = 8
MODEL = Scratch(vocab=512, hidden=128, layers=3, heads=4, context=2048)
"""About the quickstart's model, with a head size of 32, which vLLM's CPU kernels need."""
_MEAN_WORDS = 10.0
"""Of a thought."""
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """An environment, and an action that never ends its episodes."""

    env: str
    options: tuple[str, ...]
    idle: str


SCENES = {
    "TextCraft": Scene("agentgym/TextCraft-v0", ("depth=(1, 2)",), "inventory"),
    "BabyAI": Scene(
        "agentgym/BabyAI-v0",
        ("levels=('OneRoomS8', 'OpenRedDoor', 'OpenRedBlueDoors', 'UnlockLocal')", "available_actions_in_text=False"),
        "turn left",
    ),
}


def thinking_model(env: ReplyWrapper, folder: Path, *, episodes: int) -> tuple[Any, Chat]:
    """Load the model for an environment from a folder; train and save it first if there is none."""
    if not (folder / "config.json").exists():
        _train(env, folder, episodes)
    return load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))


def _train(env: ReplyWrapper, folder: Path, episodes: int) -> None:
    tasks = text_env(env).tasks.train
    specs = [EpisodeSpec(tasks[i % len(tasks)].id, i // len(tasks), seed=0) for i in range(episodes)]
    rng = np.random.default_rng(0)
    examples = [_with_thoughts(e, env, rng) for e in play_many(env, Oracle(0.5), specs, horizon=HORIZON)]
    model, chat = scratch_model(MODEL, examples, seed=0)
    steps = -(-len(examples) // _BATCH)
    optimizer = Optimizer(lr=4e-3, warmup=steps // 10, schedule="linear", micro_tokens=4096)
    learner = Learner(PolicyModel(model), Accelerator(cpu=True), optimizer, total_steps=steps)
    encoded = encode_demonstrations(chat, examples, Trimming(ContextLimit(MODEL.context)))
    for _ in warm_start(learner, encoded, epochs=1, batch=_BATCH, seed=0, ranks=Ranks()):
        pass
    learner.policy.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)


def _with_thoughts(episode: Episode, env: ReplyWrapper, rng: np.random.Generator) -> Episode:
    turns = [
        replace(turn, reply=replace(turn.reply, text=env.format(turn.action or "", thought(turn.observation, rng))))
        for turn in episode.turns
    ]
    return replace(episode, turns=tuple(turns))


def thought(observation: str, rng: np.random.Generator) -> str:
    """Return consecutive words of the observation, a geometrically distributed number of them."""
    words = observation.split()
    count = min(len(words), int(rng.geometric(1 / _MEAN_WORDS)))
    begin = int(rng.integers(len(words) - count + 1))
    return " ".join(words[begin : begin + count])


def idle_replies(scene: Scene, env: ReplyWrapper, chat: Chat) -> Sequence[tuple[int, ...]]:
    """Return the token ids of replies that never end an episode, with thoughts of different lengths."""
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    return [tuple(chat.reply_ids(env.format(scene.idle, thought(observation, rng)))) for _ in range(256)]
