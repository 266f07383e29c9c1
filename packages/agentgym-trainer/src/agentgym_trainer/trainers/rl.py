"""A whole run of reinforcement learning: environments, the initial model, the training loop, the final model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from agentgym_envs import Episode
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.optimizer import compute_dtype
from agentgym_trainer.models.load import check_model, is_adapter, load_chat, with_lora
from agentgym_trainer.models.policy import PolicyModel, ValueHead, separate_critic
from agentgym_trainer.models.quantization import check_quantization
from agentgym_trainer.planning.engine_support import check_engine_model
from agentgym_trainer.planning.report import check_memory
from agentgym_trainer.planning.sharding import check_sharding
from agentgym_trainer.rollout.environments import check_context, open_environments
from agentgym_trainer.rollout.play import find_harness
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import Demonstrations
from agentgym_trainer.tokens.trajectory import Trimming
from agentgym_trainer.trainers.distillation import check_expert, check_tokenizers, open_expert
from agentgym_trainer.trainers.expert_starts import check_expert_starts
from agentgym_trainer.trainers.layers import Layers, choose_layers
from agentgym_trainer.trainers.model_setup import export_model, load_policy
from agentgym_trainer.trainers.rl_loop import RLLoop
from agentgym_trainer.trainers.setup import (
    context_limit,
    engine_has_weights,
    init_processes,
    is_sharded,
    open_accelerator,
    open_engine,
    refusing,
    release_memory,
)
from agentgym_trainer.trainers.training_data import gather_episodes, imitated
from agentgym_trainer.trainers.warm_start import WarmStarter


def train(config: RLConfig, folder: RunFolder, console: RunConsole, stopping: Stopping) -> Reached:
    """Start or resume a run and train until it is finished or `stopping` ends it. All processes of the run call this.

    Returns:
        How far the run got. Once it is finished, the folder holds the model, evaluations and metrics of the whole run.

    Raises:
        UsageError: if the model, an environment or one of its options doesn't exist, or the engine can't be started.
        EngineError: if the engine can't be brought back, or its log-probabilities disagree with the learner's.
        TooManyFailed: if more episodes failed than `max_failed` allows.
        NotFinite: if the weights aren't finite, or too many optimizer steps in a row were skipped.
        OSError: if a file can't be written, for example because the disk is full.
        Stopped: if the run was told to end immediately. It is saved.
    """
    torch.set_num_threads(config.threads)
    find_harness(config)  # before anything is loaded
    accelerator, ranks = open_accelerator(config), init_processes(config)
    check_sharding(config, sharded=is_sharded(accelerator))
    check_engine_model(config)
    check_quantization(config.lora)
    check_memory(config, accelerator, console.say)
    with refusing(config):
        layers = choose_layers(config, accelerator)
    processes = f" by {ranks.count} processes" if ranks.count > 1 else ""
    numbers = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}[accelerator.mixed_precision]
    console.say(f"Training on {accelerator.device}{processes} in {numbers} with {layers}.")
    with open_environments(config) as worlds, console.showing():
        if config.model != "scratch" and not folder.start.exists():
            check_model(config.model)
        if config.distillation.teacher:
            check_model(config.distillation.teacher)
        check_expert_starts(config, worlds, console.say)
        check_expert(config, worlds)
        demonstrated: list[Episode] = []
        if config.imitation.weight:
            data = config.imitation.data
            found = gather_episodes(config, data, worlds, folder, console, stopping)
            demonstrated = imitated(found, noise=data.imitate_noise, labels=data.imitate_labels)
        needs_start = _needs_start(config)
        if needs_start and not ranks.broadcast(folder.start.exists()):
            WarmStarter(config, folder, worlds, accelerator, layers, console, stopping).make_start()
            release_memory()
        name = str(folder.start) if needs_start else config.model
        # Here, and not at the first collective of the GPUs, the others wait for a process that downloads weights.
        with ranks.errors_together(), refusing(config):
            model, chat = load_policy(config, name, accelerator)
            reference = _reference(config, name, accelerator, layers)
            teacher = _teacher(config, chat, accelerator, layers)
        for world in worlds:
            check_context(world.wrapped, replace(config.generation, max_context=context_limit(config, model).tokens))
        with refusing(config):
            learner = Learner(
                _policy_model(config, model, layers),
                accelerator,
                config.optimizer,
                total_steps=config.steps * config.epochs * config.minibatches,
                critic_lr=config.critic.lr,
                reference=reference,
                teacher=teacher,
            )
        own_copy = engine_has_weights(config, accelerator)
        # Last, so that the memory that loading needs for a while is free again.
        engine = open_engine(
            config, name, learner.policy, chat, accelerator, folder.path, console.say, own_copy=own_copy
        )
        with RolloutRunner(engine, stopping.check) as rollouts, open_expert(config, rollouts) as expert:
            # For what a model draws while it trains, such as a router's noise; the state is part of checkpoints.
            set_seed(config.seed, device_specific=True)
            demonstrations = (
                Demonstrations(
                    demonstrated,
                    chat,
                    batch=config.imitation.batch,
                    limit=context_limit(config, model),
                    seed=config.seed,
                    ranks=ranks,
                )
                if demonstrated
                else None
            )
            with ranks.errors_together():
                if demonstrations and ranks.is_main:
                    _check_demonstrations(len(demonstrated), demonstrations.trimming(), console)
            loop = RLLoop(config, folder, worlds, learner, chat, console, rollouts, demonstrations, expert)
            with loop.checkpoints.naming_last():
                state = loop.run(stopping)
        best = state.best if config.evaluation.load_best_model_at_end else None
        reached = Reached(state.step, of=config.steps, best=best)
        if reached.done and ranks.is_main:
            export_model(loop.checkpoints.at(reached.model_step), folder.model)
    return reached


def _needs_start(config: RLConfig) -> bool:
    # An adapter has to be merged and saved first: a new adapter would record the base model without it as its base.
    # Engines and the final model need the weights that the quantized ones stand for.
    changed = config.lora.quantize != "off" or is_adapter(config.model)
    return config.model == "scratch" or config.warm_start.episodes > 0 or changed


def _check_demonstrations(episodes: int, trimming: Trimming, console: RunConsole) -> None:
    """Say what of the demonstrations exceeds the token limit.

    Raises:
        UsageError: if nothing in them is trained on.
    """
    if trimming.lost == trimming.total:
        why = f"no reply ends within {trimming.limit}. {trimming.limit.remedy}."
        if not trimming.total:
            why = (
                "there are no replies, or all are marked `loss: false` or are random actions of a noisy expert, which "
                "imitation.data.imitate_noise would include."
            )
        raise UsageError(f"The {episodes} demonstrations of imitation.data contain nothing to train on: {why}")
    if trimming.lost:
        console.say(str(trimming))


def _policy_model(config: RLConfig, model: Any, layers: Layers) -> PolicyModel:
    """The model that trains, or an adapter of it, with a critic if the algorithm needs one."""
    critic = None
    if config.algorithm.needs_critic:
        # Copied before the model gets an adapter, so that all weights of the critic train.
        critic = (
            separate_critic(model).float() if config.critic.where == "separate" else ValueHead(model.config.hidden_size)
        )
    if config.lora.rank:
        model = with_lora(model, config.lora, seed=config.seed)
    temperature = config.generation.temperature
    return layers.applied(PolicyModel(model, temperature=temperature, critic=critic, attention=layers.attention))


def _reference(config: RLConfig, name: str, accelerator: Accelerator, layers: Layers) -> PolicyModel | None:
    """The frozen initial model, if the algorithm needs a reference that isn't the policy without its adapter."""
    if not config.algorithm.needs_reference or config.lora.rank:
        return None
    return _frozen(load_policy(config, name, accelerator, dtype=compute_dtype(accelerator))[0], config, layers)


def _teacher(config: RLConfig, chat: Chat, accelerator: Accelerator, layers: Layers) -> PolicyModel | None:
    """The frozen teacher of on-policy distillation, if there is one."""
    name = config.distillation.teacher
    if not name:
        return None
    check_tokenizers(name, chat, load_chat(name))
    return _frozen(load_policy(config, name, accelerator, dtype=compute_dtype(accelerator))[0], config, layers)


def _frozen(model: Any, config: RLConfig, layers: Layers) -> PolicyModel:
    model.requires_grad_(False).eval()
    return layers.applied(PolicyModel(model, temperature=config.generation.temperature, attention=layers.attention))
