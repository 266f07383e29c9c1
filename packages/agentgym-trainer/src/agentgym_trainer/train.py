"""A whole run: worlds, a model to begin with, reinforcement learning, and what is left in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from agentgym_envs import Episode, Policy
from agentgym_eval.errors import UsageError
from agentgym_eval.policies import Oracle, Scripted

from agentgym_trainer.actor import Actor, ValueHead, separate_critic
from agentgym_trainer.attention import choose_attention
from agentgym_trainer.checkpoint import Progress
from agentgym_trainer.config import Config
from agentgym_trainer.learner import Learner
from agentgym_trainer.loop import Loop
from agentgym_trainer.models import is_adapter, load_model, save_policy, scratch_model, with_lora
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.sampler import Uniform, apportion, draw
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.warm_start import imitate
from agentgym_trainer.worlds import OpenWorld, open_worlds

_TOKENIZER_EPISODES = 64


def train(config: Config, folder: RunFolder, tracker: Tracker, stopping: Callable[[], bool]) -> Progress:
    """Begin a run or go on with one, as far as `stopping` lets it.

    Returns:
        How far it came. At `config.steps` the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, a world or one of its options doesn't exist.
    """
    torch.set_num_threads(config.threads)
    accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision=config.precision)
    if accelerator.num_processes > 1:
        raise UsageError("Training runs in one process so far; start `train` without a launcher.")
    attention = choose_attention(accelerator.device, config.precision)
    tracker.say(f"Training on {accelerator.device} with attention {attention}.")
    with open_worlds(config) as worlds, tracker.showing():
        if _is_made_here(config) and not folder.start.exists():
            _make_start(config, folder, accelerator, attention, worlds, tracker, stopping)
        name = str(folder.start) if _is_made_here(config) else config.model
        model, chat = load_model(name, dtype=torch.float32, device=accelerator.device)
        learner = Learner(
            _actor(config, model, attention),
            accelerator,
            config.optimizer,
            total_steps=config.steps * config.epochs * config.minibatches,
            critic_lr=config.critic.lr,
            reference=config.algorithm.needs_reference,
        )
        # Dropout draws from torch's own generator and takes no other; checkpoints keep its state.
        set_seed(config.seed, device_specific=True)
        loop = Loop(config, folder, worlds, learner, chat, tracker)
        progress = loop.run(stopping)
        if progress.step == config.steps:
            save_policy(learner.policy, folder.model)
            chat.tokenizer.save_pretrained(folder.model)
    return progress


def _is_made_here(config: Config) -> bool:
    # An adapter's model, merged, lies nowhere yet; a new adapter would note the one without it as its own.
    return config.model == "scratch" or config.warm_start.episodes > 0 or is_adapter(config.model)


def _actor(config: Config, model: Any, attention: str) -> Actor:
    """What trains: the model or an adapter of it, with a critic if the algorithm needs one."""
    critic = None
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if config.algorithm.needs_critic:
        # Before the model has an adapter: the critic's copy trains all its weights.
        critic = separate_critic(model) if config.critic.where == "separate" else ValueHead(model.config.hidden_size)
    if config.lora.rank:
        model = with_lora(model, config.lora, seed=config.seed)
    return Actor(model, temperature=config.generation.temperature, critic=critic, attention=attention)


def _make_start(
    config: Config,
    folder: RunFolder,
    accelerator: Accelerator,
    attention: str,
    worlds: Sequence[OpenWorld],
    tracker: Tracker,
    stopping: Callable[[], bool],
) -> None:
    """Make the model that reinforcement learning begins with: from scratch, by imitation, by merging an adapter."""
    warm, expert = config.warm_start, Oracle(config.warm_start.noise)
    watched = _play_some(expert, config, worlds, warm.episodes)
    demonstrations = list(tracker.phase("Watching the expert", watched, warm.episodes))
    if config.model == "scratch":
        # The tokenizer should know what a world says to a learner as well as what it says to an expert.
        texts = [
            episode
            for player in (expert, Scripted(("?",)))
            for episode in _play_some(player, config, worlds, _TOKENIZER_EPISODES)
        ]
        model, chat = scratch_model(config.scratch, [*demonstrations, *texts], seed=config.seed)
    else:
        model, chat = load_model(config.model, dtype=torch.float32, device=accelerator.device)
    total = warm.epochs * -(-warm.episodes // warm.batch)
    settings = replace(config.optimizer, lr=warm.lr, warmup=total // 10, schedule="linear")
    actor = Actor(model, temperature=config.generation.temperature, attention=attention)
    learner = Learner(actor, accelerator, settings, total_steps=max(1, total))
    steps = imitate(learner, chat, demonstrations, epochs=warm.epochs, batch=warm.batch, seed=config.seed)
    for _ in tracker.phase("Imitating it", steps, total):
        if stopping():
            raise KeyboardInterrupt
    unfinished = folder.path / ".start"
    shutil.rmtree(unfinished, ignore_errors=True)
    save_policy(learner.policy, unfinished)
    chat.tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder.start)
    accelerator.free_memory()


def _play_some(policy: Policy, config: Config, worlds: Sequence[OpenWorld], episodes: int) -> Iterator[Episode]:
    """Let a player who needs no model play training tasks, of each world its share."""
    rng = np.random.default_rng([config.seed, episodes])
    shares = apportion(episodes, [world.weight for world in worlds], rng)
    for world, share in zip(worlds, shares, strict=True):
        tasks = world.tasks.train
        chosen = [tasks[i] for i in draw(Uniform(), tasks.ids, share, state={}, rng=rng)]
        yield from world.play(policy, chosen, samples=1, seed=config.seed, horizon=config.horizon.longest)
