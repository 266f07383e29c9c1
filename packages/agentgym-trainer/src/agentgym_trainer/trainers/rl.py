"""A whole run: worlds, a model to begin with, reinforcement learning, and what is left in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from agentgym_envs import Episode
from agentgym_eval.policies.policies import Oracle

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.attention import choose_attention
from agentgym_trainer.models.load import check_model, is_adapter, load_model, with_lora
from agentgym_trainer.models.policy import PolicyModel, ValueHead, separate_critic
from agentgym_trainer.rollout.environments import OpenEnvironment, open_environments
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.demonstrations import Demonstrations
from agentgym_trainer.trainers.rl_loop import RLLoop, samples_apart
from agentgym_trainer.trainers.setup import (
    export_model,
    init_processes,
    model_from_scratch,
    open_accelerator,
    open_engine,
    play_tasks,
    refusing,
    save_start,
)
from agentgym_trainer.trainers.training_data import gather_episodes
from agentgym_trainer.trainers.warm_start import warm_start


def train(config: RLConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Begin a run or go on with one, as far as `stopping` lets it. All processes of the run call this.

    Returns:
        How far it came. At the end, the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, a world or one of its options doesn't exist, or the engine can't be had.
        EngineError: when the engine can't be brought back, or doesn't sample from what is trained.
        TooManyFailed: when more episodes failed than the configuration bears.
        NotFinite: when the weights aren't finite, or too many optimizer steps in a row were skipped.
        OSError: when something can't be written, for one because the disk is full.
        Stopped: when the run is to end at once. What is done is saved.
    """
    torch.set_num_threads(config.threads)
    accelerator, ranks = open_accelerator(config), init_processes(config)
    attention = choose_attention(accelerator.device, config.precision)
    processes = f" by {ranks.count} processes" if ranks.count > 1 else ""
    tracker.say(f"Training on {accelerator.device}{processes} with attention {attention}.")
    with open_environments(config) as worlds, tracker.showing():
        if config.model != "scratch" and not folder.start.exists():
            check_model(config.model)
        shown: list[Episode] = []
        if config.imitation.weight:
            shown = gather_episodes(config, config.imitation.data, worlds, folder, tracker, stopping)
        made_here = _is_made_here(config)
        if made_here and not ranks.broadcast(folder.start.exists()):
            _make_start(config, folder, accelerator, attention, worlds, tracker, stopping)
        name = str(folder.start) if made_here else config.model
        model, chat = load_model(name, dtype=torch.float32, device=accelerator.device)
        with refusing(config):
            actor = _actor(config, model, attention)
        apart = samples_apart(config, accelerator)
        engine = open_engine(config, name, actor.policy, chat, accelerator, folder.path, tracker.say, apart=apart)
        with RolloutRunner(engine, stopping.check) as rollouts:
            with refusing(config):
                learner = Learner(
                    actor,
                    accelerator,
                    config.optimizer,
                    total_steps=config.steps * config.epochs * config.minibatches,
                    critic_lr=config.critic.lr,
                    reference=config.algorithm.needs_reference,
                )
            # Dropout draws from torch's own generator and takes no other; checkpoints keep its state.
            set_seed(config.seed, device_specific=True)
            dealt = {"batch": config.imitation.batch, "longest": config.generation.max_context, "seed": config.seed}
            demonstrations = Demonstrations(shown, chat, **dealt, ranks=ranks) if shown else None
            if demonstrations and ranks.is_main and (told := str(demonstrations.trimming())):
                tracker.say(told)
            loop = RLLoop(config, folder, worlds, learner, chat, tracker, rollouts, demonstrations)
            with loop.checkpoints.naming_last():
                progress = loop.run(stopping)
        if progress.step == config.steps and ranks.is_main:
            export_model(loop.checkpoints.at(progress.step), folder.model)
    return Reached(progress.step, of=config.steps)


def _is_made_here(config: RLConfig) -> bool:
    # An adapter's model, merged, lies nowhere yet; a new adapter would note the one without it as its own.
    return config.model == "scratch" or config.warm_start.episodes > 0 or is_adapter(config.model)


def _actor(config: RLConfig, model: Any, attention: str) -> PolicyModel:
    """What trains: the model or an adapter of it, with a critic if the algorithm needs one."""
    critic = None
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if config.algorithm.needs_critic:
        # Before the model has an adapter: the critic's copy trains all its weights.
        critic = separate_critic(model) if config.critic.where == "separate" else ValueHead(model.config.hidden_size)
    if config.lora.rank:
        model = with_lora(model, config.lora, seed=config.seed)
    return PolicyModel(model, temperature=config.generation.temperature, critic=critic, attention=attention)


def _make_start(
    config: RLConfig,
    folder: RunFolder,
    accelerator: Accelerator,
    attention: str,
    worlds: Sequence[OpenEnvironment],
    tracker: RunConsole,
    stopping: Stopping,
) -> None:
    """Make the model that reinforcement learning begins with: from scratch, by imitation, by merging an adapter."""
    warm, expert, ranks = config.warm_start, Oracle(config.warm_start.noise), Ranks()
    watched = stopping.heeded(play_tasks(expert, config, worlds, warm.episodes))
    with ranks.errors_together():
        demonstrations = list(tracker.phase("Watching the expert", watched, warm.episodes))
    if config.model == "scratch":
        model, chat = model_from_scratch(config, worlds, expert, demonstrations)
    else:
        model, chat = load_model(config.model, dtype=torch.float32, device=accelerator.device)
    total = warm.epochs * -(-warm.episodes // warm.batch)
    settings = replace(config.optimizer, lr=warm.lr, warmup=total // 10, schedule="linear")
    with refusing(config):
        actor = PolicyModel(model, temperature=config.generation.temperature, attention=attention)
        learner = Learner(actor, accelerator, settings, total_steps=max(1, total))
    steps = warm_start(
        learner, chat, demonstrations, epochs=warm.epochs, batch=warm.batch, seed=config.seed, ranks=ranks
    )
    for _ in tracker.phase("Imitating it", steps, total):
        if ranks.any(stopping()):
            raise KeyboardInterrupt
    weights = dict(learner.weights(0).tensors())
    with ranks.errors_together():
        if ranks.is_main:
            save_start(folder, learner.policy, chat, weights)
    accelerator.free_memory()
