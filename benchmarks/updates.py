"""The two sides that `learner.py` compares, and what both are given: a model and ragged multi-turn episodes."""

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
from agentgym_trainer.tokens.trajectory import Segment, Trajectory

GROUP = 8
"""Episodes of a task."""
LR = 1e-5
GRPO = Algorithm(aggregation=Aggregation(kind="sequence"))
"""Without KL, the loss a mean of episodes' means: what TRL calls `grpo`."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained on."""

    episodes: int = 16
    shortest: int = 200
    longest: int = 1500
    vocab: int = 32_768
    hidden: int = 256
    layers: int = 11


@dataclass(frozen=True, slots=True)
class Way:
    """One way of setting a side up."""

    side: str
    name: str
    micro: int
    """Episodes in a forward pass of TRL's, tokens in one of ours."""
    checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class Episodes:
    """What both sides are given."""

    trajectories: list[Trajectory]
    advantages: list[float]

    @property
    def tokens(self) -> int:
        """All of them."""
        return sum(trajectory.tokens for trajectory in self.trajectories)

    @property
    def said(self) -> float:
        """Share of the tokens that the agent said."""
        return sum(sum(trajectory.segments[0].loss_mask) for trajectory in self.trajectories) / self.tokens


Update = Callable[[], dict[str, float]]


# What both sides get.


def build_model(size: Size) -> Any:
    """A Qwen2 with random weights, embeddings tied."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        num_key_value_heads=size.hidden // 64,
        max_position_embeddings=4 * size.longest,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        use_cache=False,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def make_episodes(size: Size, model: Any) -> Episodes:
    """Ragged games: a long first observation, then replies of 15 to 60 tokens and observations of 20 to 100.

    Lengths are evenly spread on a log scale. Log-probabilities are the model's own, a little off as an engine's are.
    """
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(size.shortest), np.log(size.longest), size.episodes)).astype(int)
    trajectories = [_episode(int(length), f"task {e // GROUP}", rng, size, model) for e, length in enumerate(lengths)]
    score_EG = np.array([t.rewards[-1] for t in trajectories]).reshape(-1, GROUP)
    centred = score_EG - score_EG.mean(1, keepdims=True)
    advantages = centred / (score_EG.std(1, ddof=1, keepdims=True) + 1e-6)
    return Episodes(trajectories, advantages.flatten().tolist())


@torch.no_grad()
def _episode(length: int, task: str, rng: np.random.Generator, size: Size, model: Any) -> Trajectory:
    ids = rng.integers(300, size.vocab, length)
    said, turns = np.zeros(length, dtype=bool), np.full(length, -1)
    at, turn = int(rng.integers(60, 150)), 0
    while at < length:
        end = min(length, at + int(rng.integers(15, 60)))
        said[at:end], turns[at:end] = True, turn
        at, turn = end + int(rng.integers(20, 100)), turn + 1
    logprobs = torch.log_softmax(model(input_ids=torch.tensor(ids)[None]).logits[0, :-1].float(), -1)
    logprobs = logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy() + rng.normal(0, 0.02, length - 1)
    logprobs = np.concatenate([[0.0], logprobs]) * said
    segment = Segment(*(tuple(column.tolist()) for column in (ids, said, logprobs, turns)))
    rewards = (0.0,) * (turn - 1) + (float(rng.random()),)
    observations = (("act", ""),) * turn
    return Trajectory((segment,), rewards=rewards, states=("",) * turn, observations=observations, group=task)


# The two sides. Each returns what takes one update, and the share of padding.


def ours(way: Way, model: Any, episodes: Episodes) -> tuple[Update, float]:
    """`Learner.update` with GRPO."""
    accelerator = Accelerator(cpu=True)
    actor = PolicyModel(model)
    learner = Learner(actor, accelerator, Optimizer(lr=LR, micro_tokens=way.micro))

    def update() -> dict[str, float]:
        batch = make_batch(episodes.trajectories)
        experience = learner.compute_logprobs(batch, GRPO)
        credit = GRPO.compute_advantages(experience, learner.total)
        return learner.update(batch, experience, credit, GRPO, epochs=1, minibatches=1, seed=0)

    return update, 0.0


def trls(
    way: Way, model: Any, episodes: Episodes, steps: int, before: Callable[[], None], after: Callable[[], None]
) -> tuple[Any, float]:
    """TRL's trainer, about to take `steps` updates, with a call before and after each of them."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    inputs = trl_inputs(episodes)

    class Trainer(GRPOTrainer):
        """Is handed the episodes instead of generating them."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            return trl_inputs(episodes)

    class Around(TrainerCallback):
        def on_step_begin(self, *unused: Any, **more: Any) -> None:
            before()

        def on_step_end(self, *unused: Any, **more: Any) -> None:
            after()

    many = len(episodes.trajectories)
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=way.micro,
        gradient_accumulation_steps=many // way.micro,
        num_generations=GROUP,
        gradient_checkpointing=way.checkpointing,
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
        args=arguments,
        reward_funcs=lambda completions, **more: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["?"] * many}),
        processing_class=train_tokenizer(["?"] * 8, 300),
        callbacks=[Around()],
    )
    trainer.remove_callback(PrinterCallback)
    positions = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
    return trainer, 1 - episodes.tokens / positions


def trl_inputs(episodes: Episodes) -> dict[str, torch.Tensor]:
    """The episodes as TRL's own `_generate_and_score_completions` lays a generation batch out."""
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
        "old_per_token_logps": pad(columns["old"], padding_value=0.0, padding_side="right"),
        "advantages": torch.tensor(episodes.advantages),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
