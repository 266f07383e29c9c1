"""What a run begins with, whatever it learns from: processes, an engine, players without a model, a model from scratch.

And what every run ends with, its model as a whole one.
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
    """Take part in a run as one of the processes that the launcher has started, or as the only one."""
    open_accelerator(config)
    return Ranks()


def has_own_weights(config: BaseConfig, accelerator: Accelerator) -> bool:
    """Whether the engine samples from weights of its own, and not from the very module that trains, in any case: one
    that is sharded can't be sampled from by one process.
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
    """The engine that the configuration asks for, before `policy`, which came from the model `name`, is distributed.

    Args:
        config: Names the engine and what it needs.
        name: Where the model lies.
        policy: What trains.
        chat: Its chat.
        accelerator: Decides on precision.
        folder: For an engine's log.
        say: Told what takes a while.
        apart: Whether it samples from weights of its own, see `has_own_weights`.

    Raises:
        UsageError: when it isn't installed, or can't run the model.
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

                how: Any = {"max_context": longest, "dtype": precision, "lora_rank": config.lora.rank}
                return vllm_engine(name, config.engine.memory, end_id=chat.end_id, **how)
            case "vllm-server":
                return _server(config, name, precision, chat.end_id, longest, folder, say)
    except (ImportError, ValueError) as error:
        raise UsageError(f"The engine {config.engine.kind} can't be had: {error}") from error


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
    """A whole model by name or path, ready to play. All processes of the run call this.

    Args:
        config: Of the run.
        model: Who plays.
        folder: For an engine's log.
        say: Told what takes a while.
        check: Called while episodes are waited for; what it raises ends their play.
        version: Number of updates that it has seen, which its samples carry.

    Raises:
        UsageError: when the engine can't be had.
        EngineError: when it can't be brought back.
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
    """A vLLM server: one of those that run, in turn, or else one for all processes of a machine, started by the first
    of them. Whoever of its clients is the first gives it the weights.

    Raises:
        ValueError: when there are more servers than processes, so that some would have nothing to do.
        ImportError: without vLLM, where one has to be started.
    """
    from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings
    from agentgym_trainer.engines.vllm.server import VllmServer

    settings, ranks = config.engine, Ranks()
    if len(settings.urls) > ranks.count:
        raise ValueError(
            f"engine.urls names {len(settings.urls)} servers, each process that trains uses one of them, and there are "
            f"{ranks.count} of these. Name no more servers than that, or one that has --data-parallel-size."
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
        say(f"Starting a vLLM server, which takes a while; its log is {own.log}.")
    return VllmServer(
        where,
        run=ranks.broadcast(uuid4().hex),
        end_id=end_id,
        max_context=longest,
        pushes=pushes,
        patience=settings.patience,
    )


def open_accelerator(config: BaseConfig) -> Accelerator:
    """The accelerator of this process.

    Raises:
        UsageError: when the launcher asks for what no engine could get its weights from.
    """
    on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
    # Who has played its share waits for the others, however long their worlds take; the dead are the launcher's part.
    patience = InitProcessGroupKwargs(timeout=timedelta(days=1))
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=config.precision, kwargs_handlers=[patience])
    deepspeed = accelerator.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        raise UsageError(
            "DeepSpeed's ZeRO-3 parts the weights in a way that engines can't be given them; use FSDP2 "
            "(accelerate_configs/fsdp2.yaml) or ZeRO-2."
        )
    return accelerator


def save_start(folder: RunFolder, model: Any, chat: Chat, weights: Mapping[str, Tensor] | None = None) -> None:
    """Leave what a run begins with in its folder: all of it or nothing. One process calls this.

    Args:
        folder: Of the run.
        model: What is to be saved.
        chat: Its chat.
        weights: What to save instead of the model's own weights, which may be in shards.

    Raises:
        OSError: when it can't be written, for one because the disk is full. Nothing is left of it.
    """
    _save_model(model, chat, folder.start, weights)


def export_model(checkpoint: Path, folder: Path) -> None:
    """The model of a checkpoint as a whole one: shards were put together there, and adapters are merged here.

    Raises:
        OSError: when it can't be written, for one because the disk is full. Nothing is left of it.
    """
    model, chat = load_model(str(checkpoint), dtype=torch.float32, device=torch.device("cpu"))
    _save_model(model, chat, folder)


def _save_model(model: Any, chat: Chat, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model and its tokenizer in the place of what is there: all of it or nothing."""
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with writing(folder):
            model.save_pretrained(unfinished, state_dict=weights)
            chat.tokenizer.save_pretrained(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # there only where it could not be written whole


@contextmanager
def refusing(config: BaseConfig) -> Generator[None]:
    """Tell in a sentence why a model can't be trained as it was asked for."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"The model {config.model} can't be trained like this: {error}") from error


def play_tasks(
    policy: Policy, config: BaseConfig, worlds: Sequence[OpenEnvironment], episodes: int, *, tasks: int = 0
) -> Iterator[Episode]:
    """Let a player who needs no model play training tasks, of each world its share.

    Args:
        policy: Who plays.
        config: Of the run.
        worlds: Where.
        episodes: How many are played.
        tasks: On how many tasks; 0: any.

    Raises:
        TooManyFailed: when more episodes fail than the configuration bears.
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
        for episode in world.watch(policy, chosen, seed=config.seed, horizon=config.horizon.longest):
            failed.count([EpisodeOutcome.of(episode)])
            yield episode


def model_from_scratch(
    config: BaseConfig, worlds: Sequence[OpenEnvironment], expert: Policy, seen: Sequence[Episode]
) -> tuple[Any, Chat]:
    """A model from scratch, whose tokenizer knows `seen` and what a world says to a learner and to an expert."""
    texts = [
        episode
        for player in (expert, Scripted(("?",)))
        for episode in play_tasks(player, config, worlds, config.scratch.episodes)
    ]
    return scratch_model(config.scratch, [*seen, *texts], seed=config.seed)
