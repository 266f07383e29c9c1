"""The two updates that `learner.py` compares, this package's and TRL's, and the model and episodes that both get."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory
from synthetic import Shape, draw_turns, log_uniform, one_segment, random_qwen2

GROUP = 8
"""Group size."""
LR = 1e-5
GRPO = Algorithm(aggregation=Aggregation(kind="sequence"))
"""Without KL term, the loss a mean over sequences, which is TRL's loss type `grpo`."""


@dataclass(frozen=True, slots=True)
class Size:
    """Number and lengths of the episodes, and size of the model."""

    episodes: int = 16
    shortest: int = 200
    longest: int = 1500
    vocab: int = 32_768
    hidden: int = 256
    layers: int = 11


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of one side."""

    side: str
    name: str
    micro: int
    """Micro-batch: episodes for TRL, tokens for this package."""
    checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class Episodes:
    """The batch of both sides."""

    trajectories: list[Trajectory]
    advantages: list[float]

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""
        return sum(trajectory.tokens for trajectory in self.trajectories)


def build_model(size: Size) -> Any:
    """Return a Qwen2 with random weights."""
    heads, kv_heads = size.hidden // 32, size.hidden // 64
    return random_qwen2(Shape(size.hidden, size.layers, heads, kv_heads, 4 * size.hidden, size.vocab, 4 * size.longest))


def make_episodes(size: Size, model: Any) -> Episodes:
    """Return ragged episodes: a long first observation, then replies of 15 to 60 tokens, observations of 20 to 100.

    Lengths are uniform on a logarithmic scale. Log-probabilities are the model's with noise, like an engine's.
    """
    rng = np.random.default_rng(0)
    lengths = log_uniform(size.shortest, size.longest, size.episodes, rng)
    trajectories = [_episode(length, f"task {e // GROUP}", rng, size, model) for e, length in enumerate(lengths)]
    score_EG = np.array([t.rewards[-1] for t in trajectories]).reshape(-1, GROUP)
    centred = score_EG - score_EG.mean(1, keepdims=True)
    advantages = centred / (score_EG.std(1, ddof=1, keepdims=True) + 1e-6)
    return Episodes(trajectories, advantages.flatten().tolist())


@torch.no_grad()
def _episode(length: int, task: str, rng: np.random.Generator, size: Size, model: Any) -> Trajectory:
    ids = rng.integers(300, size.vocab, length)
    loss_mask, turns = draw_turns(length, int(rng.integers(60, 150)), (15, 60), (20, 100), rng)
    logprobs = torch.log_softmax(model(input_ids=torch.tensor(ids)[None]).logits[0, :-1].float(), -1)
    logprobs = logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy() + rng.normal(0, 0.02, length - 1)
    logprobs = np.concatenate([[0.0], logprobs]) * loss_mask
    return one_segment(ids, loss_mask, logprobs, turns, float(rng.random()), task)


def own_update(setup: Setup, model: Any, episodes: Episodes) -> Callable[[], dict[str, float]]:
    """Return a function that takes one GRPO update with `Learner.update` and returns its metrics."""
    learner = Learner(PolicyModel(model), Accelerator(cpu=True), Optimizer(lr=LR, micro_tokens=setup.micro))

    def update() -> dict[str, float]:
        batch = make_batch(episodes.trajectories)
        experience = learner.compute_logprobs(batch, GRPO)
        advantages = GRPO.compute_advantages(experience, learner.total)
        return learner.update(batch, experience, advantages, GRPO, epochs=1, minibatches=1, seed=0)

    return update


def trl_trainer(
    setup: Setup, model: Any, episodes: Episodes, steps: int, before: Callable[[], None], after: Callable[[], None]
) -> tuple[Any, float]:
    """Return TRL's trainer, which calls `before` and `after` around each of `steps` updates, and its share of padding.

    It is given the episodes instead of generating them.
    """
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    inputs = trl_inputs(episodes)

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            return trl_inputs(episodes)

    class Around(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            before()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            after()

    def no_reward(completions: list[Any], **_: Any) -> list[float | None]:
        return [0.0] * len(completions)

    count = len(episodes.trajectories)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=setup.micro,
        gradient_accumulation_steps=count // setup.micro,
        num_generations=GROUP,
        gradient_checkpointing=setup.checkpointing,
        loss_type="grpo",
        learning_rate=LR,
        adam_beta2=0.99,
        lr_scheduler_type="constant",
        max_steps=steps,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    trainer = Trainer(
        model=model,
        args=config,
        reward_funcs=no_reward,
        train_dataset=Dataset.from_dict({"prompt": ["?"] * count}),
        processing_class=train_tokenizer(["?"] * 8, 300),
        callbacks=[Around()],
    )
    trainer.remove_callback(PrinterCallback)
    positions = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
    return trainer, 1 - episodes.tokens / positions


def trl_inputs(episodes: Episodes) -> dict[str, torch.Tensor]:
    """Return the episodes in the layout of TRL's `_generate_and_score_completions`."""
    from trl.trainer.utils import pad

    columns: dict[str, list[torch.Tensor]] = {name: [] for name in ("prompt", "completion", "tool_mask", "old")}
    for trajectory in episodes.trajectories:
        segment = trajectory.segments[0]
        first = segment.loss_mask.index(True)
        columns["prompt"].append(torch.tensor(segment.ids[:first]))
        columns["completion"].append(torch.tensor(segment.ids[first:]))
        columns["tool_mask"].append(torch.tensor(segment.loss_mask[first:], dtype=torch.long))
        columns["old"].append(torch.tensor(segment.logprobs[first:]))
    ones = {name: [torch.ones_like(ids) for ids in columns[name]] for name in ("prompt", "completion")}
    tool_mask = pad(columns["tool_mask"], padding_value=1, padding_side="right")
    completion_mask = pad(ones["completion"], padding_value=0, padding_side="right")
    return {
        "prompt_ids": pad(columns["prompt"], padding_value=0, padding_side="left"),
        "prompt_mask": pad(ones["prompt"], padding_value=0, padding_side="left"),
        "completion_ids": pad(columns["completion"], padding_value=0, padding_side="right"),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "old_per_token_logps": pad(columns["old"], padding_value=0, padding_side="right"),
        "advantages": torch.tensor(episodes.advantages),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
