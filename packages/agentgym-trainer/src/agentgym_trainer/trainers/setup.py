"""Setup steps that all trainers share: processes, accelerators, engines, and episodes of scripted policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs, is_bf16_available, parse_flag_from_env
from accelerate.utils.memory import clear_device_cache
from agentgym_envs import Episode, Policy
from agentgym_envs.util.importing import described
from agentgym_envs.util.redaction import resolved
from agentgym_eval.storage.vocabulary_file import vocabulary_file, write_vocabulary
from agentgym_eval.util.errors import UsageError
from torch.distributed.fsdp import MixedPrecisionPolicy, StateDictType
from torch.distributed.tensor import DTensor

from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.distributed import PATIENCE, Ranks
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.factory import ENGINES, GROUP, EngineContext, EngineFactory
from agentgym_trainer.learner.optimizer import compute_dtype
from agentgym_trainer.models.load import (
    load_model,
    with_lora,
)
from agentgym_trainer.models.memory import limit_kernel_caches, trim_heap
from agentgym_trainer.models.resolve import resolve_model
from agentgym_trainer.models.weights import Weights, weights_of
from agentgym_trainer.plugins import PluginError, PluginPoint, find_named
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import find_harness
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.disk import writing
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import ContextLimit

_POINT = PluginPoint("engine", Engine, GROUP, ())


def init_processes(config: BaseConfig) -> Ranks:
    """Join a run as one of the processes started by the launcher, or as the only one.

    Raises:
        UsageError: when there is no engine of the configured name, or the launcher requests DeepSpeed.
    """
    engine_factory(config.engine.kind)
    open_accelerator(config)
    return Ranks()


def engine_factory(name: str) -> EngineFactory:
    """Return the factory of an engine: one of `ENGINES`, an entry point of an installed package, or MODULE:NAME.

    Raises:
        UsageError: there is none of this name, or it is neither an `EngineFactory` nor a function.
    """
    if name in ENGINES:
        return ENGINES[name]
    found = find_named(name, "engine", ENGINES, GROUP)
    if not callable(found) or inspect.isclass(found):
        raise UsageError(
            f"{name} is no engine: it must be an EngineFactory, or a function that takes an EngineContext."
        )
    return found if isinstance(found, EngineFactory) else EngineFactory(cast("Any", found))


def has_own_weights(config: BaseConfig, accelerator: Accelerator) -> bool:
    """Whether the engine must have weights of its own instead of sharing the training module.

    A sharded module can't be sampled from by a single process.
    """
    return is_sharded(accelerator) or not engine_factory(config.engine.kind).shares_weights


def engine_has_weights(config: RLConfig, accelerator: Accelerator) -> bool:
    """Whether the engine samples from its own copy of the weights: a module can't train and sample at the same time."""
    return config.async_rollout.max_staleness > 0 or has_own_weights(config, accelerator)


def open_engine(
    config: BaseConfig,
    name: str,
    policy: Any,
    chat: Chat,
    accelerator: Accelerator,
    folder: Path,
    say: Callable[[str], None],
    *,
    own_copy: bool,
) -> Engine:
    """Return the configured engine.

    Args:
        config: The configuration of the run.
        name: Path or name of the model from which `policy` was loaded.
        policy: The model that trains; it may be distributed.
        chat: Its chat.
        accelerator: Determines the precision.
        folder: Folder of the run, for the engine's log and the vocabulary.
        say: Called with messages about slow steps.
        own_copy: Whether the engine has weights of its own, see `has_own_weights`.

    Raises:
        UsageError: when the engine isn't installed, can't run the model, or isn't an `Engine`.
        PluginError: when an engine of another package fails with any other exception.
    """
    longest, factory = config.generation.max_context, engine_factory(config.engine.kind)
    context = EngineContext(
        settings=replace(config.engine, urls=tuple(map(resolved, config.engine.urls))),
        model=partial(_whole_model, config, name, policy, accelerator),
        name=resolve_model(name),
        own_copy=own_copy,
        end_id=chat.end_id,
        max_context=min(longest, getattr(policy.config, "max_position_embeddings", longest)),
        # A harness has a number of its own, and may hold several conversations at a time.
        concurrent=None if find_harness(config) else config.slots * len(config.worlds),
        device=accelerator.device,
        dtype=compute_dtype(accelerator),
        autocast=accelerator.autocast,
        lora_rank=config.lora.rank,
        seed=config.seed,
        ranks=Ranks(),
        folder=folder,
        say=say,
    )
    try:
        engine = factory(context)
    except (ImportError, ValueError) as error:
        raise UsageError(f"The engine {config.engine.kind} can't be started: {error}") from error
    except Exception as error:
        if config.engine.kind in ENGINES:
            raise
        raise PluginError(f"The engine {config.engine.kind} could not be started: {described(error)}.") from error
    _POINT.check_contract(engine, config.engine.kind)
    if context.ranks.is_main:
        _save_vocabulary(folder, chat)
    return engine


def _save_vocabulary(folder: Path, chat: Chat) -> None:
    """Save the vocabulary by which the viewer decodes the sampled ids of all episodes of a run, if it isn't there."""
    path = vocabulary_file(folder)
    if not path.exists() and (tokenizer := chat.tokenizer_json()) is not None:
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_vocabulary(folder, tokenizer)


def _whole_model(config: BaseConfig, name: str, policy: Any, accelerator: Accelerator) -> Any:
    """Return `policy`, or if it is sharded or on the CPU, a whole model like it on the device of this process."""
    whole = not any(isinstance(weight, DTensor) for weight in policy.parameters())
    if whole and policy.device.type == accelerator.device.type:
        return policy
    model, _ = load_model(name, dtype=compute_dtype(accelerator), device=accelerator.device)
    return with_lora(model, config.lora, seed=config.seed) if config.lora.rank else model


def context_limit(config: BaseConfig, model: Any) -> ContextLimit:
    """Return the limit on contexts from data: `generation.max_context`, or the context of the model if it is shorter,
    which limits the engine, too.
    """
    chosen = config.generation.max_context
    longest = getattr(model.config, "max_position_embeddings", None) or chosen
    return ContextLimit(min(chosen, longest), of_model=longest < chosen)


@contextmanager
def saved_model(
    config: BaseConfig,
    model: str,
    folder: Path,
    say: Callable[[str], None],
    check: Callable[[], object],
    *,
    version: int = 0,
) -> Generator[tuple[RolloutRunner, Chat]]:
    """Load a whole model by name or path and open an engine for it. All processes of the run must call this.

    A run that shards weights may have no room for it on a GPU beside an engine with weights of its own, so that these
    are then loaded from the CPU. Other engines sample from the model.

    Args:
        config: The configuration of the run.
        model: Name or path of the model.
        folder: Folder of the run, for the engine's log and the vocabulary.
        say: Called with messages about slow steps.
        check: Called while waiting for episodes; an exception that it raises ends the rollouts.
        version: Number of updates that the model has seen, which its samples carry.

    Raises:
        UsageError: when the engine can't be started.
        EngineError: when the engine can't be recovered.
    """
    accelerator = open_accelerator(config)
    own_copy = not engine_factory(config.engine.kind).shares_weights
    device = torch.device("cpu") if own_copy and is_sharded(accelerator) else accelerator.device
    policy, chat = load_model(model, dtype=compute_dtype(accelerator), device=device)
    engine = open_engine(config, model, policy, chat, accelerator, folder, say, own_copy=own_copy)
    with RolloutRunner(engine, check) as rollouts:
        load_weights(config, rollouts, weights_of(policy.eval(), version), Ranks())
        yield rollouts, chat
    release_memory()


def load_weights(config: BaseConfig, rollouts: RolloutRunner, weights: Weights, ranks: Ranks) -> None:
    """Load weights into the engines of all processes.

    Before that, all processes free what torch has cached of their GPUs: an engine that allocates by itself couldn't use
    it. The transformers engine allocates from the same cache.

    Raises:
        EngineError: when an engine can't be recovered.
    """
    if config.engine.kind != "transformers":
        with ranks.errors_together():
            clear_device_cache()
    with ranks.errors_together():
        rollouts.load(weights)


def release_memory() -> None:
    """Return the memory of unreachable objects to the device and to the operating system."""
    clear_device_cache(garbage_collection=True)
    trim_heap()


def runs_on_cpu(config: BaseConfig) -> bool:
    """Whether a run trains on the CPU: because it is set, or because there is no accelerator."""
    return config.device == "cpu" or not torch.accelerator.is_available()


def resolve_precision(config: BaseConfig) -> str:
    """Return the mixed precision of a run, with "auto" resolved for this machine."""
    if config.precision != "auto":
        return config.precision
    if runs_on_cpu(config):
        capabilities = torch.cpu.get_capabilities()
        supported = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    elif torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported(including_emulation=False)  # which vLLM refuses, and which is slow
    else:
        supported = is_bf16_available()
    return "bf16" if supported else "no"


def resolve_gradient_checkpointing(config: BaseConfig) -> bool:
    """Return whether activations are recomputed, with "auto" resolved for this model and machine."""
    if config.gradient_checkpointing != "auto":
        return config.gradient_checkpointing == "on"
    return config.model != "scratch" and not runs_on_cpu(config)


def saves_in_background(config: RLConfig, accelerator: Accelerator) -> bool:
    """Return whether checkpoints are written while training continues, with "auto" resolved for this run."""
    if config.save_async != "auto":
        return config.save_async == "on"
    return accelerator.device.type != "cpu" or accelerator.num_processes > 1


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether FSDP2 shards the weights that train over the processes."""
    return accelerator.distributed_type == DistributedType.FSDP


def open_accelerator(config: BaseConfig) -> Accelerator:
    """Return the accelerator of this process.

    Raises:
        UsageError: when the launcher requests DeepSpeed.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise UsageError(
            "The launcher requests DeepSpeed, which isn't supported; use FSDP2, which shards as much: "
            "--config_file accelerate_configs/fsdp2.yaml, in the folder of the package agentgym_trainer."
        )
    on_cpu = runs_on_cpu(config)
    if on_cpu:
        limit_kernel_caches()
    # On CPUs, tensors and messages share a process group. A GPU's group has only updates to wait for.
    patience = InitProcessGroupKwargs(timeout=PATIENCE if on_cpu else timedelta(minutes=30))
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=resolve_precision(config), kwargs_handlers=[patience])
    if accelerator.is_fsdp2:
        configure_sharding(accelerator)
    return accelerator


def configure_sharding(accelerator: Accelerator) -> None:
    """Set what accelerate's configuration file can't express."""
    plugin: Any = accelerator.state.fsdp_plugin
    # Set here and not in the file, where it would make transformers load every model without weights.
    plugin.cpu_ram_efficient_loading = True
    # The only form in which checkpoints are written.
    plugin.set_state_dict_type(StateDictType.SHARDED_STATE_DICT)
    if accelerator.mixed_precision != "no":
        # accelerate would round outputs (log-probabilities, entropies and values) and the sums of gradients.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=compute_dtype(accelerator), reduce_dtype=torch.float32
        )


@contextmanager
def refusing(config: BaseConfig) -> Generator[None]:
    """Turn a ValueError into a UsageError that says why the model can't be trained with these settings."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"The model {config.model} can't be trained with these settings: {error}") from error


def play_tasks(
    policy: Policy, config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: int, *, tasks: int = 0
) -> Iterator[Episode]:
    """Play training tasks of all environments, in proportion to their weights, with a policy that needs no engine.

    Args:
        policy: The policy.
        config: The configuration of the run.
        worlds: The environments.
        episodes: Number of episodes.
        tasks: Number of different tasks, at least one of each environment if there are enough; 0: no limit.

    Raises:
        TooManyFailed: when more episodes fail than `max_failed` allows.
    """
    rng = np.random.default_rng([config.seed, episodes])
    weights = [world.weight for world in worlds]
    shares, failed = apportion(episodes, weights, rng), FailureLimit(config.max_failed)
    limits = _one_each(apportion(tasks, weights, rng)) if tasks else [0] * len(worlds)
    for world, share, limit in zip(worlds, shares, limits, strict=True):
        known = world.tasks.train
        if tasks:
            known = [known[i] for i in evenly(known.ids, min(limit, len(known)), rng)]
        chosen = [known[i] for i in evenly([task.id for task in known], share, rng)]
        for episode in world.play(policy, chosen, seed=config.seed, horizon=config.horizon.longest):
            failed.count([EpisodeOutcome.of(episode)])
            yield episode


def _one_each(counts: Sequence[int]) -> list[int]:
    """Return the counts with those of 0 raised to 1, at the expense of the largest as long as it is above 1."""
    counts = list(counts)
    while min(counts) < 1 and max(counts) > 1:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(min(counts))] += 1
    return counts
