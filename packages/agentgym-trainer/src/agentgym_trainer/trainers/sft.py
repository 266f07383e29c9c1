"""Supervised fine-tuning: what was said in the data becomes likelier, and nothing else is learnt from.

TRL's `SFTTrainer` trains; ids and labels are ours, from the very encoding that reinforcement learning has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from agentgym_envs import Episode
from agentgym_eval.util.errors import UsageError
from datasets import Dataset
from torch import Tensor
from trl.trainer.sft_config import SFTConfig as TRLSFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from agentgym_trainer.config import SFTConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.models.attention import Segments, choose_attention, packed_inputs, use_attention
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import Trimming, trajectory
from agentgym_trainer.trainers.trl_guard import GuardedTrainer
from agentgym_trainer.trainers.trl_run import TrainingSetup, train_on_data, trainer_arguments

IGNORED = -100
"""The label of a token that nothing is learnt from, as in torch and transformers."""


@dataclass(frozen=True, slots=True)
class Example:
    """A run of tokens and what is to be learnt from it."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    """The ids of what was said, and `IGNORED` elsewhere."""
    weight: float
    """The score of its episode, which its part of the loss is multiplied by where that is asked for."""


class Imitator(GuardedTrainer, SFTTrainer):
    """TRL's trainer, in which rows may have weights."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean over what was said; each row's part is multiplied by its `weight`, if there is one."""
        weight_B = inputs.pop("weight", None)
        weighed: Any = model if weight_B is None else _weighing(model, weight_B)
        return super().compute_loss(weighed, inputs, return_outputs, num_items_in_batch)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "weight" not in self._signature_columns:
            self._signature_columns.append("weight")


class WeightCollator(DataCollatorForLanguageModeling):
    """TRL's collator, with the rows' weights beside their tokens."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's tensors, and `weight`, float [rows]."""
        weights = torch.tensor([example["weight"] for example in examples])
        return {**super().torch_call(examples), "weight": weights}


class PackCollator(DataCollatorForLanguageModeling):
    """TRL's collator of packed rows, told where each example ends in the way that our attention wants it."""

    def __init__(self, pad_token_id: int, device: torch.device) -> None:
        super().__init__(pad_token_id, padding_free=True)
        self._device = device

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """One row of examples that don't see each other, and its labels."""
        made = super().torch_call(examples)
        lengths: list[int] = made["cu_seq_lens_q"].diff().tolist()
        row = packed_inputs(made["input_ids"][0], made["position_ids"][0], Segments(lengths, self._device))
        return {**row, "labels": made["labels"]}


def _weighing(model: Any, weight_B: Tensor) -> Callable[..., Any]:
    """The model, with log-probabilities multiplied by the weight of their row."""

    def forward(**inputs: Any) -> Any:
        outputs = model(**inputs)
        outputs.log_probs = outputs.log_probs * weight_B[:, None]
        return outputs

    return forward


def train(config: SFTConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Begin a run of supervised fine-tuning or go on with one. All processes of the run call this.

    Returns:
        How far it came. At the end, the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, a world, a file or an option doesn't exist, or the engine can't be had.
        EngineError: when the engine can't be brought back.
        Stopped: when the run is to end at once. What is done is saved.
    """

    def make_trainer(pupil: TrainingSetup) -> Imitator:
        trimming = Trimming(config.generation.max_context)
        examples = list(encode_examples(pupil.chat, pupil.episodes, trimming))
        if not examples:
            raise UsageError(_why_none(len(pupil.episodes), trimming))
        if trimming.lost:
            tracker.say(str(trimming))
        return make_imitator(config, folder, pupil, examples)

    return train_on_data(config, folder, tracker, stopping, make_trainer)


def encode_examples(chat: Chat, episodes: Iterable[Episode], trimming: Trimming) -> Iterator[Example]:
    """The examples of episodes: one for each context, up to the last turn that ends within the budget of `trimming`."""
    for episode in episodes:
        for segment in trajectory(encode(chat, episode)).segments:
            if (fits := trimming.trim(segment)).ids:
                labels = (token if said else IGNORED for token, said in zip(fits.ids, fits.loss_mask, strict=True))
                yield Example(fits.ids, tuple(labels), episode.score or 0.0)


def _why_none(episodes: int, trimming: Trimming) -> str:
    """Why there is nothing to learn from in so many episodes."""
    if trimming.said:
        return (
            f"In none of the {episodes} episodes a reply ends within generation.max_context, {trimming.longest} "
            "tokens. Raise it."
        )
    return (
        f"In the {episodes} episodes nothing is to be learned from: no reply, or none that isn't marked `loss: false`."
    )


def make_imitator(config: SFTConfig, folder: RunFolder, pupil: TrainingSetup, examples: list[Example]) -> Imitator:
    """The trainer of a run on these examples."""
    row = config.generation.max_context
    longest = row if config.packing else max(len(example.ids) for example in examples)
    arguments = TRLSFTConfig(
        **trainer_arguments(config, folder, longest=longest),
        max_length=row if config.packing else None,
        packing=config.packing,
    )
    columns: dict[str, Any] = {
        "input_ids": [example.ids for example in examples],
        "labels": [example.labels for example in examples],
    }
    collator = None
    if config.weighted:
        columns["weight"] = [example.weight for example in examples]
        collator = WeightCollator(pupil.chat.pad_id)
    trainer = Imitator(
        model=pupil.model,
        args=arguments,
        data_collator=collator,
        train_dataset=Dataset.from_dict(columns),
        processing_class=pupil.chat.tokenizer,
    )
    if config.packing:
        # Without a mask over the whole row, which would take the square of its length.
        use_attention(
            trainer.accelerator.unwrap_model(trainer.model), choose_attention(arguments.device, config.precision)
        )
        trainer.data_collator = PackCollator(pupil.chat.pad_id, arguments.device)
    return trainer
