"""A whole run: worlds, a model to begin with, reinforcement learning, and what is left in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import gymnasium
import numpy as np
import torch
from accelerate import Accelerator
from agentgym_envs import Episode, Job, Policy, make, play_many, text_env
from agentgym_envs.wrappers import WRAPPERS
from agentgym_eval.errors import UsageError
from agentgym_eval.policies import Oracle, Scripted
from agentgym_eval.worlds import parse_options, world_id

from agentgym_trainer.chat import Chat
from agentgym_trainer.checkpoint import Progress
from agentgym_trainer.config import Config
from agentgym_trainer.learner import Learner
from agentgym_trainer.loop import Loop
from agentgym_trainer.models import load_model, scratch_model
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.warm_start import imitate

_TOKENIZER_EPISODES = 64


def train(config: Config, folder: RunFolder, tracker: Tracker, stopping: Callable[[], bool]) -> Progress:
    """Begin a run or go on with one, as far as `stopping` lets it.

    Returns:
        How far it came. At `config.steps` the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, the world or one of its options doesn't exist.
    """
    torch.set_num_threads(config.threads)
    accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision=config.precision)
    if accelerator.num_processes > 1:
        raise UsageError("Training runs in one process so far; start `train` without a launcher.")
    with _worlds(config) as envs, tracker.showing():
        if _is_made_here(config) and not folder.start.exists():
            _make_start(config, folder, accelerator, envs, tracker, stopping)
        name = str(folder.start) if _is_made_here(config) else config.model
        model, chat = load_model(name, dtype=torch.float32, device=accelerator.device)
        learner = Learner(
            model,
            accelerator,
            config.optimizer,
            temperature=config.generation.temperature,
            reference=config.algorithm.kl > 0,
        )
        loop = Loop(config, folder, envs, learner, chat, tracker)
        progress = loop.run(stopping)
        if progress.step == config.steps:
            _save_model(learner, chat, folder)
    return progress


def _is_made_here(config: Config) -> bool:
    return config.model == "scratch" or config.warm_start.episodes > 0


@contextmanager
def _worlds(config: Config) -> Generator[list[gymnasium.Env[str, str]]]:
    """As many worlds as there are episodes at once."""
    world = config.world
    wrapper = WRAPPERS[world.wrapper]
    options = parse_options(world.options)
    with ExitStack() as stack:
        envs: list[gymnasium.Env[str, str]] = []
        for _ in range(min(config.slots, config.tasks * config.samples)):
            try:
                env = make(world_id(world.env), max_episode_steps=config.horizon.longest, **options)
            except (ValueError, ImportError, gymnasium.error.Error) as error:
                raise UsageError(str(error)) from error
            stack.enter_context(closing(env))
            envs.append(wrapper(env, instructions=None if world.instructions else ""))
        yield envs


def _make_start(
    config: Config,
    folder: RunFolder,
    accelerator: Accelerator,
    envs: Sequence[gymnasium.Env[str, str]],
    tracker: Tracker,
    stopping: Callable[[], bool],
) -> None:
    """Build the model that reinforcement learning begins with: from scratch, by imitation, or both."""
    warm = config.warm_start
    wanted = max(warm.episodes, _TOKENIZER_EPISODES)
    expert = Oracle(warm.noise)
    demonstrations = list(tracker.phase("Watching the expert", _play_some(expert, config, envs, wanted), wanted))
    if config.model == "scratch":
        # The tokenizer should know what the world says to a learner as well as what it says to an expert.
        stumbles = _play_some(Scripted(("?",)), config, envs, _TOKENIZER_EPISODES)
        model, chat = scratch_model(config.scratch, [*demonstrations, *stumbles], seed=config.seed)
    else:
        model, chat = load_model(config.model, dtype=torch.float32, device=accelerator.device)
    total = warm.epochs * -(-warm.episodes // warm.batch)
    settings = replace(config.optimizer, lr=warm.lr, warmup=total // 10, decay=total)
    learner = Learner(model, accelerator, settings)
    if warm.episodes:
        steps = imitate(
            learner,
            chat,
            demonstrations[: warm.episodes],
            epochs=warm.epochs,
            batch=warm.batch,
            layout=config.layout,
            seed=config.seed,
        )
        for _ in tracker.phase("Imitating it", steps, total):
            if stopping():
                raise KeyboardInterrupt
    unfinished = folder.path / ".start"
    shutil.rmtree(unfinished, ignore_errors=True)
    accelerator.unwrap_model(learner.model).save_pretrained(unfinished)
    chat.tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder.start)
    accelerator.free_memory()


def _play_some(
    policy: Policy, config: Config, envs: Sequence[gymnasium.Env[str, str]], episodes: int
) -> Iterator[Episode]:
    """Let a player who needs no model play training tasks."""
    tasks = text_env(envs[0]).tasks.train
    rng = np.random.default_rng([config.seed, episodes])
    chosen = rng.choice(len(tasks), episodes, replace=len(tasks) < episodes)
    jobs = [Job(tasks[int(i)].id, sample, config.seed) for sample, i in enumerate(chosen)]
    return play_many(envs, policy, jobs, horizon=config.horizon.longest)


def _save_model(learner: Learner, chat: Chat, folder: RunFolder) -> None:
    """The model at the end, as `from_pretrained` wants it."""
    learner.accelerator.unwrap_model(learner.model).save_pretrained(folder.model)
    chat.tokenizer.save_pretrained(folder.model)
