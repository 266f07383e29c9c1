"""Small models that think aloud, for `rollout.py`. It matters that their replies differ in length, not how they play.

An expert that errs half of the time is imitated, with a thought before each of its actions: some words of what the
world last said, few of them mostly and now and then many, as the thoughts of large models are.
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
from agentgym_trainer.trainers.warm_start import warm_start

HORIZON = 8
SIZE = Scratch(vocab=512, hidden=128, layers=3, heads=4, context=2048)
"""About the quickstart's; with heads of 32, which vLLM's kernels for a CPU want."""
_WORDS = 10.0
"""Of a thought, on average."""
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """A world, and what a player may say in it again and again without ending the episode."""

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


def talker(env: ReplyWrapper, folder: Path, *, episodes: int) -> tuple[Any, Chat]:
    """The model for the world in `env` that lies in `folder`, made there if there is none."""
    if not (folder / "config.json").exists():
        _make(env, folder, episodes)
    return load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))


def _make(env: ReplyWrapper, folder: Path, episodes: int) -> None:
    tasks = text_env(env).tasks.train
    jobs = [EpisodeSpec(tasks[i % len(tasks)].id, i // len(tasks), seed=0) for i in range(episodes)]
    rng = np.random.default_rng(0)
    watched = [_aloud(e, env, rng) for e in play_many(env, Oracle(0.5), jobs, horizon=HORIZON)]
    model, chat = scratch_model(SIZE, watched, seed=0)
    steps = -(-len(watched) // _BATCH)
    settings = Optimizer(lr=4e-3, warmup=steps // 10, schedule="linear", micro_tokens=4096)
    learner = Learner(PolicyModel(model), Accelerator(cpu=True), settings, total_steps=steps)
    for _ in warm_start(learner, chat, watched, epochs=1, batch=_BATCH, seed=0, ranks=Ranks()):
        pass
    learner.policy.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)


def _aloud(episode: Episode, env: ReplyWrapper, rng: np.random.Generator) -> Episode:
    turns = [
        replace(turn, reply=replace(turn.reply, text=env.format(turn.action or "", thought(turn.observation, rng))))
        for turn in episode.turns
    ]
    return replace(episode, turns=tuple(turns))


def thought(observation: str, rng: np.random.Generator) -> str:
    """Some words of the observation that follow each other, more often few than many."""
    words = observation.split()
    count = min(len(words), int(rng.geometric(1 / _WORDS)))
    begin = int(rng.integers(len(words) - count + 1))
    return " ".join(words[begin : begin + count])


def idle_replies(scene: Scene, env: ReplyWrapper, chat: Chat) -> Sequence[tuple[int, ...]]:
    """Replies that go on for ever, of the lengths that the thoughts have."""
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    return [tuple(chat.reply_ids(env.format(scene.idle, thought(observation, rng)))) for _ in range(256)]
