"""Setup steps that all trainers share: processes, engines, episodes of scripted policies, models from scratch.

It also contains the export of the final model, with which every run ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from accelerate.utils.memory import clear_device_cache
from agentgym_envs import Episode, Policy
from agentgym_envs.util.redaction import resolved
from agentgym_eval.policies.policies import Scripted
from agentgym_eval.util.errors import UsageError
from torch import Tensor

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.load import load_model, scratch_model
from agentgym_trainer.models.weights import weights_of
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat


def init_processes(config: BaseConfig) -> Ranks:
    """Join a run as one of the processes started by the launcher, or as the only one."""
    open_accelerator(config)
    return Ranks()


def has_own_weights(config: BaseConfig, accelerator: Accelerator) -> bool:
    """Whether the engine must have weights of its own instead of sharing the training module.

    A sharded module can't be sampled from by a single process.
    """
    return config.engine.kind != "transformers" or accelerator.distributed_type == DistributedType.FSDP


def open_engine(
    config: BaseConfig,
    name: str,
    policy: Any,
    chat: Chat,
    accelerator: Accelerator,
    folder: Path,
    say: Callable[[str], None],
    *,
    apart: bool,
) -> Engine:
    """Return the configured engine. Must be called before `policy` is distributed.

    Args:
        config: The configuration of the run.
        name: Path or name of the model from which `policy` was loaded.
        policy: The model that trains.
        chat: Its chat.
        accelerator: Determines the precision.
        folder: Folder of the engine's log.
        say: Called with messages about slow steps.
        apart: Whether the engine has weights of its own, see `has_own_weights`.

    Raises:
        UsageError: when the engine isn't installed, or can't run the model.
    """
    precision = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision]
    longest = config.generation.max_context
    longest = min(longest, getattr(policy.config, "max_position_embeddings", longest))
    try:
        match config.engine.kind:
            case "transformers":
                autocast: Any = accelerator.autocast
                return transformers_engine(policy, end_id=chat.end_id, own_copy=apart, autocast=autocast)
            case "vllm":
                from agentgym_trainer.engines.vllm.in_process import vllm_engine

                options: Any = {"max_context": longest, "dtype": precision, "lora_rank": config.lora.rank}
                return vllm_engine(name, config.engine.memory, end_id=chat.end_id, **options)
            case "vllm-server":
                return _server(config, name, precision, chat.end_id, longest, folder, say)
    except (ImportError, ValueError) as error:
        raise UsageError(f"The engine {config.engine.kind} can't be started: {error}") from error


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

    Args:
        config: The configuration of the run.
        model: Name or path of the model.
        folder: Folder of the engine's log.
        say: Called with messages about slow steps.
        check: Called while waiting for episodes; an exception that it raises ends the rollouts.
        version: Number of updates that the model has seen, which its samples carry.

    Raises:
        UsageError: when the engine can't be started.
        EngineError: when the engine can't be recovered.
    """
    accelerator = open_accelerator(config)
    policy, chat = load_model(model, dtype=torch.float32, device=accelerator.device)
    apart = has_own_weights(config, accelerator)
    engine = open_engine(config, model, policy, chat, accelerator, folder, say, apart=apart)
    with RolloutRunner(engine, check) as rollouts:
        with Ranks().errors_together():
            rollouts.load(weights_of(policy.eval(), version))
        yield rollouts, chat
    clear_device_cache(garbage_collection=True)


def _server(
    config: BaseConfig,
    name: str,
    dtype: torch.dtype,
    end_id: int,
    longest: int,
    folder: Path,
    say: Callable[[str], None],
) -> Engine:
    """Return the client of a vLLM server.

    Running servers (`engine.urls`) are assigned to the processes round-robin. Otherwise the first process of each
    machine starts one for all its processes. The first client of a server pushes the weights.

    Raises:
        ValueError: when there are more servers than processes, so that some would be idle.
        ImportError: when a server has to be started and vLLM isn't installed.
    """
    from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings
    from agentgym_trainer.engines.vllm.server import VllmServer

    settings, ranks = config.engine, Ranks()
    if len(settings.urls) > ranks.count:
        raise ValueError(
            f"engine.urls names {len(settings.urls)} servers, but each training process uses one of them, and there "
            f"are {ranks.count} processes. Name at most that many servers, or one with --data-parallel-size."
        )
    where: str | VllmProcess
    if settings.urls:
        where, pushes = resolved(settings.urls[ranks.index % len(settings.urls)]), ranks.index < len(settings.urls)
    else:
        serving = VllmServerSettings(
            Path(name),
            max_context=longest,
            dtype=str(dtype).removeprefix("torch."),
            memory=settings.memory,
            devices=settings.devices,
            lora_rank=config.lora.rank,
            seed=config.seed,
        )
        own, pushes = VllmProcess(serving, folder / f"vllm-{ranks.index}.log"), ranks.index == ranks.first_here
        urls = ranks.gather([own.url])
        where = own if pushes else urls[ranks.first_here]
        say(f"Starting a vLLM server, which takes a while; its log file is {own.log}.")
    return VllmServer(
        where,
        run=ranks.broadcast(uuid4().hex),
        end_id=end_id,
        max_context=longest,
        pushes=pushes,
        patience=settings.patience,
    )


def open_accelerator(config: BaseConfig) -> Accelerator:
    """Return the accelerator of this process.

    Raises:
        UsageError: when the launcher requests DeepSpeed ZeRO-3, whose weights can't be sent to engines.
    """
    on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
    # Processes wait for each other's rollouts, however slow the environments are. The launcher detects dead processes.
    patience = InitProcessGroupKwargs(timeout=timedelta(days=1))
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=config.precision, kwargs_handlers=[patience])
    deepspeed = accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        raise UsageError(
            "DeepSpeed's ZeRO-3 shards the weights so that they can't be sent to engines; use FSDP2 "
            "(accelerate_configs/fsdp2.yaml) or ZeRO-2."
        )
    return accelerator


def save_start(folder: RunFolder, model: Any, chat: Chat, weights: Mapping[str, Tensor] | None = None) -> None:
    """Save the initial model in the run's folder, atomically. Only one process may call this.

    Args:
        folder: The folder of the run.
        model: The model to save.
        chat: Its chat.
        weights: Weights to save instead of the model's own, which may be sharded.

    Raises:
        OSError: when it can't be written, for example because the disk is full. No partial files are left.
    """
    _save_model(model, chat, folder.start, weights)


def export_model(checkpoint: Path, folder: Path) -> None:
    """Export the model of a checkpoint as a whole model, with adapters merged.

    Raises:
        OSError: when it can't be written, for example because the disk is full. No partial files are left.
    """
    model, chat = load_model(str(checkpoint), dtype=torch.float32, device=torch.device("cpu"))
    _save_model(model, chat, folder)


def _save_model(model: Any, chat: Chat, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model and its tokenizer atomically, replacing an existing folder."""
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with writing(folder):
            model.save_pretrained(unfinished, state_dict=weights)
            chat.tokenizer.save_pretrained(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # it only exists after an error


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
        tasks: Number of different tasks; 0: no limit.

    Raises:
        TooManyFailed: when more episodes fail than `max_failed` allows.
    """
    rng = np.random.default_rng([config.seed, episodes])
    weights = [world.weight for world in worlds]
    shares, failed = apportion(episodes, weights, rng), FailureLimit(config.max_failed)
    limits = apportion(tasks, weights, rng) if tasks else [0] * len(worlds)
    for world, share, limit in zip(worlds, shares, limits, strict=True):
        known = world.tasks.train
        if tasks:
            known = [known[i] for i in evenly(known.ids, min(limit, len(known)), rng)]
        chosen = [known[i] for i in evenly([task.id for task in known], share, rng)]
        for episode in world.play(policy, chosen, seed=config.seed, horizon=config.horizon.longest):
            failed.count([EpisodeOutcome.of(episode)])
            yield episode


def model_from_scratch(
    config: BaseConfig, worlds: Sequence[OpenEnvironment], expert: Policy, seen: Sequence[Episode]
) -> tuple[Any, Chat]:
    """Create a model from scratch, whose tokenizer is trained on `seen` and on episodes of a novice and the expert."""
    texts = [
        episode
        for policy in (expert, Scripted(("?",)))
        for episode in play_tasks(policy, config, worlds, config.scratch.episodes)
    ]
    return scratch_model(config.scratch, [*seen, *texts], seed=config.seed)
