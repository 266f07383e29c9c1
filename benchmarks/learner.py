"""Our update against that of TRL's `GRPOTrainer`: tokens/s, padding and peak memory.

    uv run python benchmarks/learner.py --repeats 5 --out learner.json

The same model of 20M parameters with a vocabulary of 32k and random weights, the same ragged multi-turn episodes with
the same log-probabilities from sampling and the same advantages, GRPO's loss without a KL term, AdamW, float32, one
thread. TRL's side is its own trainer with its own training loop: only where it would generate and score it is handed
the episodes, padded by its own function as it pads (prompts to the left, completions to the right, a `tool_mask` on
observations). On a CPU TRL's head scores every position, said or not; on a GPU it would leave out padding, not
observations. Either side's whole update is timed: laying out, forward, backward, clipping, optimizer.

First each way of setting either side up runs alone in a process of its own: there memory is measured. Then TRL's
fastest and our fastest take turns in one process, and the ratios of neighbouring updates are what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_trainer.actor import Actor
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.algorithms.aggregation import Aggregation
from agentgym_trainer.batch import make_batch
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner import Learner
from agentgym_trainer.scratch import train_tokenizer
from agentgym_trainer.trajectory import Segment, Trajectory
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

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


WAYS = (
    Way("TRL", "as it comes", 8, checkpointing=True),
    Way("TRL", "leanest", 1, checkpointing=True),
    Way("TRL", "1 episode at a time", 1),
    Way("TRL", "4 episodes at a time", 4),
    Way("ours", "4,096 tokens at a time", 4096),
    Way("ours", "1,536 tokens at a time", 1536),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a way came to when it ran alone."""

    way: Way
    seconds: float
    tokens_per_second: float
    """Of the episodes' tokens; padding doesn't count."""
    padding: float
    """Share of the token positions that went through the model for nothing."""
    peak_mb: float
    """Peak of resident memory above what the process held with the model and the episodes loaded."""
    resident_mb: float
    """Of it, gradients and the optimizer's state, the same for all."""
    largest_mb: float
    """The largest tensor that was made."""
    grad_norm: float


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
        return sum(sum(trajectory.segments[0].said) for trajectory in self.trajectories) / self.tokens


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
    return Trajectory((segment,), rewards=rewards, states=("",) * turn, group=task)


# The two sides. Each returns what takes one update, and the share of padding.


def ours(way: Way, model: Any, episodes: Episodes) -> tuple[Update, float]:
    """`Learner.update` with GRPO."""
    accelerator = Accelerator(cpu=True)
    actor = Actor(model)
    learner = Learner(actor, accelerator, Optimizer(lr=LR, micro_tokens=way.micro))

    def update() -> dict[str, float]:
        batch = make_batch(episodes.trajectories)
        experience = learner.assess(batch, GRPO)
        credit = GRPO.credit(experience, learner.total)
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
        first = segment.said.index(True)
        columns["prompt"].append(torch.tensor(segment.ids[:first]))
        columns["completion"].append(torch.tensor(segment.ids[first:]))
        columns["tool_mask"].append(torch.tensor(segment.said[first:], dtype=torch.long))
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


# Each way alone.


def alone(way: Way, size: Size) -> Figures:
    """Two updates in a fresh process: memory over both, time of the second, the largest tensor of the first."""
    quiet()
    model = build_model(size)
    episodes = make_episodes(size, model)
    largest = Largest()
    norms: list[float] = []
    marks: list[float] = []
    _reset_peak()
    before = _memory("VmRSS")
    if way.side == "ours":
        update, padding = ours(way, model, episodes)
        with largest:
            norms.append(update()["grad_norm"])
        marks.append(time.perf_counter())
        update()
        marks.append(time.perf_counter())
    else:
        # Before the first update the largest tensor begins to be looked for, before the second it ends.
        stack = contextlib.ExitStack()
        first = iter((lambda: stack.enter_context(largest), stack.close))

        def mark() -> None:
            marks.append(time.perf_counter())

        def begin() -> None:
            next(first)()
            mark()

        trainer, padding = trls(way, model, episodes, 2, begin, mark)
        trainer.train()
        norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    seconds = marks[-1] - marks[-2]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    peak = _memory("VmHWM") - before
    rate = episodes.tokens / seconds
    return Figures(way, seconds, rate, padding, peak / 1e6, 3 * weights / 1e6, largest.bytes / 1e6, norms[0])


class Largest(TorchDispatchMode):
    """Looks out for the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


def _memory(what: str) -> int:
    """Resident memory of this process in bytes, now (VmRSS) or at most since the last reset (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


# Side by side.


def side_by_side(theirs: Way, own: Way, size: Size, repeats: int) -> list[tuple[float, float]]:
    """Seconds of neighbouring updates of TRL's and ours, which take turns in one process; the first pair isn't kept."""
    quiet()
    episodes = make_episodes(size, build_model(size))
    update, _ = ours(own, build_model(size), episodes)
    marks: list[float] = []

    def mark() -> None:
        marks.append(time.perf_counter())

    def follow() -> None:
        mark()
        update()
        mark()

    trainer, _ = trls(theirs, build_model(size), episodes, repeats + 1, mark, follow)
    trainer.train()
    pairs = [(ended - began, done - ended) for began, ended, done in zip(*[iter(marks)] * 3, strict=True)]
    return pairs[1:]


def quiet() -> None:
    """One thread, and no bars or notes of libraries."""
    import datasets
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()


def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="pairs of updates side by side")
    parser.add_argument("--quick", action="store_true", help="a small model and few episodes: shows that it works")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    size = Size(16, 200, 400, 2048, 64, 2) if asked.quick else Size()
    console = Console()
    table = Table(title="Each alone, in a process of its own", title_justify="left")
    for column in ("", "s per update", "tokens/s", "padding", "peak MB", "largest tensor MB", "grad norm"):
        table.add_column(column, justify="right" if column else "left")
    found: list[Figures] = []
    for way in WAYS:
        figures = apart(alone, way, size)
        found.append(figures)
        cells = f"{figures.seconds:.1f}", f"{figures.tokens_per_second:,.0f}", f"{figures.padding:.1%}"
        memory = f"{figures.peak_mb:,.0f}", f"{figures.largest_mb:,.0f}", f"{figures.grad_norm:.4f}"
        table.add_row(f"{way.side}, {way.name}", *cells, *memory)
        console.print(f"{way.side}, {way.name}: {figures.seconds:.1f} s, {figures.peak_mb:,.0f} MB", highlight=False)
    console.print(table)
    console.print(f"Of each peak, gradients and Adam's state are {found[0].resident_mb:,.0f} MB.", highlight=False)
    best = {side: min((f for f in found if f.way.side == side), key=lambda f: f.seconds) for side in ("TRL", "ours")}
    pairs = apart(side_by_side, best["TRL"].way, best["ours"].way, size, asked.repeats)
    ratios = sorted(theirs / own for theirs, own in pairs)
    console.print(
        f"Side by side, {len(pairs)} pairs, TRL ({best['TRL'].way.name}) / ours ({best['ours'].way.name}): "
        f"{median(ratios):.2f} times the tokens/s ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        highlight=False,
    )
    if asked.out is not None:
        record = {
            "size": asdict(size),
            "alone": [asdict(figures) for figures in found],
            "pairs_s": pairs,
            "ratio": {"median": median(ratios), "least": ratios[0], "most": ratios[-1]},
        }
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
