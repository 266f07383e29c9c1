"""A whole run: worlds, a model to begin with, reinforcement learning, and what is left in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed
from agentgym_envs import Episode, Policy
from agentgym_eval.errors import UsageError
from agentgym_eval.policies import Oracle, Scripted

from agentgym_trainer.actor import Actor, ValueHead, separate_critic
from agentgym_trainer.attention import choose_attention
from agentgym_trainer.chat import Chat
from agentgym_trainer.config import Config
from agentgym_trainer.engines import Engine
from agentgym_trainer.engines.transformers import transformers_engine
from agentgym_trainer.learner import Learner
from agentgym_trainer.loop import Loop, samples_apart
from agentgym_trainer.models import is_adapter, load_model, scratch_model, with_lora
from agentgym_trainer.progress import Progress
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.rollout import Rollouts
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.sampler import Uniform, apportion, draw
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.warm_start import imitate
from agentgym_trainer.worlds import OpenWorld, open_worlds

_TOKENIZER_EPISODES = 64


def join(config: Config) -> Ranks:
    """Take part in a run as one of the processes that the launcher has started, or as the only one."""
    _accelerator(config)
    return Ranks()


def train(config: Config, folder: RunFolder, tracker: Tracker, stopping: Callable[[], bool]) -> Progress:
    """Begin a run or go on with one, as far as `stopping` lets it. All processes of the run call this.

    Returns:
        How far it came. At `config.steps` the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, a world or one of its options doesn't exist, or the engine can't be had.
        EngineError: when the engine can't be brought back, or doesn't sample from what is trained.
    """
    torch.set_num_threads(config.threads)
    accelerator, ranks = _accelerator(config), join(config)
    attention = choose_attention(accelerator.device, config.precision)
    processes = f" by {ranks.count} processes" if ranks.count > 1 else ""
    tracker.say(f"Training on {accelerator.device}{processes} with attention {attention}.")
    with open_worlds(config) as worlds, tracker.showing():
        made_here = _is_made_here(config)
        if made_here and not ranks.tell(folder.start.exists()):
            _make_start(config, folder, accelerator, attention, worlds, tracker, stopping)
        name = str(folder.start) if made_here else config.model
        model, chat = load_model(name, dtype=torch.float32, device=accelerator.device)
        with _refusing(config):
            actor = _actor(config, model, attention)
        engine = _open_engine(config, name, actor.policy, chat, accelerator, folder.path, tracker.say)
        with Rollouts(engine) as rollouts:
            with _refusing(config):
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
            loop = Loop(config, folder, worlds, learner, chat, tracker, rollouts)
            progress = loop.run(stopping)
        if progress.step == config.steps and ranks.leads:
            _leave_model(loop.checkpoints.at(progress.step), folder.model)
    return progress


def _open_engine(
    config: Config,
    name: str,
    policy: Any,
    chat: Chat,
    accelerator: Accelerator,
    folder: Path,
    say: Callable[[str], None],
) -> Engine:
    """The engine that the configuration asks for, before `policy`, which came from the model `name`, is distributed.

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
                apart = samples_apart(config, accelerator)
                return transformers_engine(policy, end_id=chat.end_id, own_copy=apart, autocast=autocast)
            case "vllm":
                from agentgym_trainer.engines.vllm import vllm_engine

                how: Any = {"max_context": longest, "dtype": precision, "lora_rank": config.lora.rank}
                return vllm_engine(name, config.engine.memory, end_id=chat.end_id, **how)
            case "vllm-server":
                return _server(config, name, precision, chat.end_id, longest, folder, say)
    except (ImportError, ValueError) as error:
        raise UsageError(f"The engine {config.engine.kind} can't be had: {error}") from error


def _server(
    config: Config,
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
    from agentgym_trainer.engines.vllm_process import Serving, VllmProcess
    from agentgym_trainer.engines.vllm_server import VllmServer

    settings, ranks = config.engine, Ranks()
    if len(settings.urls) > ranks.count:
        raise ValueError(
            f"engine.urls names {len(settings.urls)} servers, each process that trains uses one of them, and there are "
            f"{ranks.count} of these. Name no more servers than that, or one that has --data-parallel-size."
        )
    where: str | VllmProcess
    if settings.urls:
        where, pushes = settings.urls[ranks.index % len(settings.urls)], ranks.index < len(settings.urls)
    else:
        serving = Serving(
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
        run=ranks.tell(uuid4().hex),
        end_id=end_id,
        max_context=longest,
        pushes=pushes,
        patience=settings.patience,
    )


def _accelerator(config: Config) -> Accelerator:
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


def _leave_model(checkpoint: Path, folder: Path) -> None:
    """The model of a checkpoint as a whole one: shards were put together there, and adapters are merged here."""
    model, chat = load_model(str(checkpoint), dtype=torch.float32, device=torch.device("cpu"))
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)


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


@contextmanager
def _refusing(config: Config) -> Generator[None]:
    """Tell in a sentence why a model can't be trained as it was asked for."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"The model {config.model} can't be trained like this: {error}") from error


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
    warm, expert, ranks = config.warm_start, Oracle(config.warm_start.noise), Ranks()
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
    with _refusing(config):
        actor = Actor(model, temperature=config.generation.temperature, attention=attention)
        learner = Learner(actor, accelerator, settings, total_steps=max(1, total))
    steps = imitate(learner, chat, demonstrations, epochs=warm.epochs, batch=warm.batch, seed=config.seed, ranks=ranks)
    for _ in tracker.phase("Imitating it", steps, total):
        if ranks.any(stopping()):
            raise KeyboardInterrupt
    weights = dict(learner.weights(0).tensors())
    with ranks.together():
        if ranks.leads:
            unfinished = folder.path / ".start"
            shutil.rmtree(unfinished, ignore_errors=True)
            learner.policy.save_pretrained(unfinished, state_dict=weights)
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
        yield from world.watch(policy, chosen, seed=config.seed, horizon=config.horizon.longest)
