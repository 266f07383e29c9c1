"""Supervised fine-tuning on episodes.

TRL's `SFTTrainer` trains on ids and labels from the same encoding as in reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
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
from agentgym_trainer.tokens.demonstrations import demonstration
from agentgym_trainer.tokens.trajectory import Trimming
from agentgym_trainer.trainers.setup import context_limit
from agentgym_trainer.trainers.training_data import imitated
from agentgym_trainer.trainers.trl_guard import GuardedTrainer
from agentgym_trainer.trainers.trl_run import TrainingSetup, on_one_gpu, train_on_data, trainer_arguments

IGNORED = -100
"""The label of tokens that are not in the loss, as in torch and transformers."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sequence of tokens with labels and a weight."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    """The ids of the tokens in the loss, and `IGNORED` for others."""
    weight: float
    """The score of the episode, which multiplies the example's loss if `weighted` is set."""


class Imitator(GuardedTrainer, SFTTrainer):
    """TRL's SFT trainer with support for weights of rows."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss over the tokens in it; each row's part is multiplied by its `weight`, if given."""
        weight_B = inputs.pop("weight", None)
        weighed: Any = model if weight_B is None else _weighing(model, weight_B)
        return super().compute_loss(weighed, inputs, return_outputs, num_items_in_batch)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "weight" not in self._signature_columns:
            self._signature_columns.append("weight")


class WeightCollator(DataCollatorForLanguageModeling):
    """TRL's collator with the weights of rows."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's tensors and `weight`, float [rows]."""
        weights = torch.tensor([example["weight"] for example in examples])
        return {**super().torch_call(examples), "weight": weights}


class PackCollator(DataCollatorForLanguageModeling):
    """TRL's collator of packed rows, with the segment boundaries in the format of this package's attention."""

    def __init__(self, pad_token_id: int, device: torch.device) -> None:
        super().__init__(pad_token_id, padding_free=True)
        self._device = device

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one row of examples that don't attend to each other, and its labels."""
        made = super().torch_call(examples)
        lengths: list[int] = made["cu_seq_lens_q"].diff().tolist()
        row = packed_inputs(made["input_ids"][0], made["position_ids"][0], Segments(lengths, self._device))
        return {**row, "labels": made["labels"]}


def _weighing(model: Any, weight_B: Tensor) -> Callable[..., Any]:
    """Wrap the model so that log-probabilities are multiplied by the weight of their row."""

    def forward(**inputs: Any) -> Any:
        outputs = model(**inputs)
        outputs.log_probs = outputs.log_probs * weight_B[:, None]
        return outputs

    return forward


def train(config: SFTConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Start or resume a run of supervised fine-tuning. All processes of the run must call this.

    Returns:
        The progress of the run. At the end, the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, an environment, a file or an option doesn't exist, or the engine can't be started.
        EngineError: when the engine can't be recovered.
        Stopped: when the run must end immediately. The progress is saved.
    """

    def make_trainer(setup: TrainingSetup) -> Imitator:
        trimming = Trimming(context_limit(config, setup.model))
        data = config.data
        demonstrations = imitated(setup.episodes, noise=data.imitate_noise, labels=data.imitate_labels)
        only = config.completion_only_loss
        examples = list(encode_examples(setup.chat, demonstrations, trimming, completion_only_loss=only))
        if not examples:
            raise UsageError(_why_none(len(setup.episodes), trimming))
        if config.weighted and not any(example.weight for example in examples):
            raise UsageError(
                "The score of every episode is 0, and so its weight in the loss: train without weighted, or on others."
            )
        if trimming.lost:
            tracker.say(str(trimming))
        return make_imitator(config, folder, setup, examples)

    return train_on_data(config, folder, tracker, stopping, make_trainer)


def encode_examples(
    chat: Chat, episodes: Iterable[Episode], trimming: Trimming, *, completion_only_loss: bool = True
) -> Iterator[Example]:
    """Yield one example per context and per label of the episodes, up to the last turn that ends within the budget of
    `trimming`. See `SFTConfig.completion_only_loss`.
    """
    for episode in episodes:
        segments = demonstration(chat, episode).segments
        # Only if all replies are in the loss does a segment tell those that are context from the prompts.
        replies = segments if completion_only_loss else demonstration(chat, _all_in_loss(episode)).segments
        for segment, all_replies in zip(segments, replies, strict=True):
            if (fits := trimming.trim(segment)).ids:
                labels = (
                    token if in_loss or not (completion_only_loss or is_reply) else IGNORED
                    for token, in_loss, is_reply in zip(fits.ids, fits.loss_mask, all_replies.loss_mask, strict=False)
                )
                yield Example(fits.ids, tuple(labels), episode.score or 0.0)


def _all_in_loss(episode: Episode) -> Episode:
    """Return the episode with all replies in the loss, also those of an expert before the policy's."""
    turns = (replace(turn, reply=replace(turn.reply, expert=False), loss=True) for turn in episode.turns)
    return replace(episode, turns=tuple(turns))


def _why_none(episodes: int, trimming: Trimming) -> str:
    """Return why the episodes contain nothing to train on."""
    if trimming.total:
        return f"In none of the {episodes} episodes does a reply end within {trimming.limit}. {trimming.limit.remedy}."
    return (
        f"The {episodes} episodes contain nothing to train on: there are no replies, or all are marked `loss: false` "
        "or are random actions of a noisy expert, which data.imitate_noise would include."
    )


def make_imitator(config: SFTConfig, folder: RunFolder, setup: TrainingSetup, examples: list[Example]) -> Imitator:
    """Return the trainer of a run on these examples."""
    row = config.generation.max_context
    longest = row if config.packing else max(len(example.ids) for example in examples)
    settings = trainer_arguments(config, folder, longest=longest)
    packed: dict[str, Any] = {"max_length": row, "packing": True} if config.packing else {"max_length": None}
    arguments = on_one_gpu(TRLSFTConfig(**settings, **packed))
    columns: dict[str, Any] = {
        "input_ids": [example.ids for example in examples],
        "labels": [example.labels for example in examples],
    }
    collator = None
    if config.weighted:
        columns["weight"] = [example.weight for example in examples]
        collator = WeightCollator(setup.chat.pad_id)
    trainer = Imitator(
        model=setup.model,
        args=arguments,
        data_collator=collator,
        train_dataset=Dataset.from_dict(columns),
        processing_class=setup.chat.padding_tokenizer(),
    )
    if config.packing:
        # Packed attention avoids a mask over the whole row, whose size is quadratic in its length.
        attention = choose_attention(arguments.device, trainer.accelerator.mixed_precision)
        use_attention(trainer.accelerator.unwrap_model(trainer.model), attention)
        trainer.data_collator = PackCollator(setup.chat.pad_id, arguments.device)
    return trainer
