"""Training loops in the coin environment with scripted replies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import Evaluation, Generation, RLConfig, WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.rl_loop import RLLoop, Rollouts
from coin_world import ENV
from rich.console import Console
from toy_learner import make_learner

COIN = "coin/Coin-v0"
GRPO_PLAIN = replace(GRPO, kl=replace(GRPO.kl, where="off"))


def loop_config(**settings: Any) -> RLConfig:
    """Return a configuration whose runs take less than a second."""
    defaults: dict[str, Any] = {
        "world": WorldConfig(ENV, agent="bare", instructions=False),
        "algorithm": GRPO_PLAIN,
        "horizon": FixedHorizon(3),
        "generation": Generation(max_tokens=12, max_context=400),
        "evaluation": Evaluation(tasks=4, samples=2, ks=(1,)),
        "steps": 2,
        "tasks_per_step": 4,
        "group_size": 3,
        "save_every": 1,
    }
    return RLConfig(**(defaults | settings))


def random_guesses(seed: int = 0) -> Callable[[], str]:
    """Return a script that replies "heads" or "tails" with equal probability."""
    rng = np.random.default_rng(seed)
    return lambda: ("heads", "tails")[int(rng.integers(2))]


def initial_state(loop: RLLoop, **more: Any) -> TrainingState:
    """Return the state at the beginning of a run."""
    return TrainingState(stage=loop.config.horizon.begin(), **more)


def take_step(loop: RLLoop, progress: TrainingState) -> TrainingState:
    """Take a complete step."""
    return loop.finish_step(loop.step(progress))


def grpo_with_group_filter(**groups: Any) -> Any:
    """Return GRPO with a group filter."""
    return replace(GRPO_PLAIN, groups=GroupFilter(**groups))


Build = Callable[..., RLLoop]


def builder(stack: ExitStack, folder: Path, new_model: Callable[..., Any], chat: Chat) -> Build:
    """Return a function that builds a loop. Everything it opens is closed with the stack."""

    def make(config: RLConfig, script: Callable[[], str] | None = None, *, name: str = "run", **more: Any) -> RLLoop:
        worlds = stack.enter_context(open_environments(config))
        learner = make_learner(
            new_model(init=1.0), micro_tokens=400, reference=config.algorithm.needs_reference, **more
        )
        if script is not None:
            engine: Engine = ScriptedEngine(lambda _: chat.reply_ids(script()), end_id=chat.end_id)
        else:
            autocast = learner.accelerator.autocast
            engine = transformers_engine(learner.policy, end_id=chat.end_id, autocast=autocast)
        rollouts = stack.enter_context(RolloutRunner(engine))
        run = RunFolder.create(folder / name, config, "test")
        return RLLoop(config, run, worlds, learner, chat, RunConsole(Console(quiet=True)), rollouts)

    return make


def collect_rollouts(loop: RLLoop, state: TrainingState) -> Rollouts:
    """Collect the rollouts of a step with the weights of that step."""
    loop.sync_weights(state.step)
    return loop.collect(state)


def update_on_rollouts(loop: RLLoop, step: int, rollouts: Rollouts) -> dict[str, Any]:
    """Update on rollouts, and return the metrics."""
    batch = loop.compute_logprobs(loop.make_batch(rollouts))
    return loop.update(batch, loop.compute_advantages(batch, step), rollouts, step)
