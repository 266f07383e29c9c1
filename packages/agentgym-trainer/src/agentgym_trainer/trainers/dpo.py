"""Direct preference optimization with TRL's trainer, on pairs of episodes as token ids.

TRL computes the loss. This module tokenizes and masks: only the completion tokens after the point where the two
episodes diverge count. The segments of an episode whose context is rebuilt, as with a window, share a row and don't
attend to each other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_envs import Episode, Task, play_many
from agentgym_eval.data.pairs import Pair, make_pairs
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.dpo_config import DPOConfig as TRLDPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from agentgym_trainer.config import DPOConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.models.load import check_model, load_model
from agentgym_trainer.rollout.environments import OpenEnvironment, episode_specs
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import player
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import ContextLimit, trajectory
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.setup import context_limit
from agentgym_trainer.trainers.stored_play import StoredPlay
from agentgym_trainer.trainers.training_data import keep_episodes
from agentgym_trainer.trainers.trl_guard import GuardedTrainer
from agentgym_trainer.trainers.trl_run import TrainingSetup, on_one_gpu, train_on_data, trainer_arguments

_PLAYING = "playing"
"""Folder in the run folder with the episodes that the model has played so far."""

REFERENCE = "reference.safetensors"

Row = dict[str, list[dict[str, list[int]]]]
"""A pair as `chosen` and `rejected`: for each, the segments with tokens in the loss, as `ids` and `loss_mask`."""


def encode_pair(chat: Chat, pair: Pair) -> Row:
    """Encode a pair as token ids, without segments that end before the two episodes diverge."""
    sides = zip(("chosen", "rejected"), pair.compared(), strict=True)
    found = {name: trajectory(encode(chat, episode)).segments for name, episode in sides}
    return {
        name: [
            {"ids": list(s.ids), "loss_mask": [int(in_loss) for in_loss in s.loss_mask]}
            for s in segments
            if any(s.loss_mask)
        ]
        for name, segments in found.items()
    }


def length(row: Row) -> int:
    """Return the number of tokens of the longer side."""
    return max(sum(len(segment["ids"]) for segment in side) for side in row.values())


def longest_segment(row: Row) -> int:
    """Return the number of tokens of the longest segment of either side, which is the longest context."""
    return max(len(segment["ids"]) for side in row.values() for segment in side)


@dataclass(frozen=True)
class PairCollator:
    """Collates pairs as TRL's trainer expects them: first all chosen sides, then all rejected ones."""

    pad_id: int

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Collate pairs into tensors [2 * pairs, tokens], padded to the longest side.

        Returns:
            `input_ids`; `completion_mask`, 1 for completion tokens after the point of divergence; `attention_mask`.
            If a row has several segments, also `position_ids`, and the mask is bool [2 * pairs, 1, tokens, tokens].
        """
        sides = [row[name] for name in ("chosen", "rejected") for row in rows]
        padded = {
            "input_ids": _padded([[i for s in side for i in s["ids"]] for side in sides], self.pad_id),
            "completion_mask": _padded([[i for s in side for i in s["loss_mask"]] for side in sides], 0),
        }
        segment = _padded([[n for n, s in enumerate(side) for _ in s["ids"]] for side in sides], -1)
        if all(len(side) == 1 for side in sides):
            return {**padded, "attention_mask": (segment >= 0).long()}
        positions = [[t for s in side for t in range(len(s["ids"]))] for side in sides]
        same, causal = segment[:, :, None] == segment[:, None, :], torch.ones(2 * (segment.shape[1],)).tril().bool()
        return {**padded, "position_ids": _padded(positions, 0), "attention_mask": (same & causal)[:, None]}


class PairTrainer(GuardedTrainer, DPOTrainer):
    """TRL's trainer for pairs that are already tokenized.

    When an adapter trains, the reference is the model without it. Checkpoints contain a reference that is updated
    during training.
    """

    def __init__(self, model: Any, rows: Sequence[Row], chat: Chat, settings: TRLDPOConfig, reference: Any) -> None:
        """Create a trainer of `model` on these pairs.

        Args:
            model: A causal language model, or a PEFT model of one.
            rows: The pairs.
            chat: The chat of the model.
            settings: TRL's settings.
            reference: The reference model, not used elsewhere; None when an adapter trains.
        """
        super().__init__(
            model=model,
            ref_model=reference,
            args=settings,
            data_collator=PairCollator(chat.pad_id),
            train_dataset=Dataset.from_list(list(rows)),
            processing_class=chat.padding_tokenizer(),
        )
        self.moves = settings.sync_ref_model
        if reference is None:
            # TRL's copy of the new adapter, which has no effect yet, equals the model without an adapter.
            model.delete_adapter("ref")

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.moves and self.args.should_save:
            weights: dict[str, Tensor] = self._reference().state_dict()
            folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
            # Clones, because safetensors rejects shared tensors, such as tied embeddings.
            with writing(folder):
                save_file({name: tensor.clone() for name, tensor in weights.items()}, folder / REFERENCE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.moves:
            self._reference().load_state_dict(load_file(Path(resume_from_checkpoint, REFERENCE)))

    def _reference(self) -> Any:
        return self.accelerator.unwrap_model(self.ref_model)


def train(config: DPOConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Start or resume a run of direct preference optimization. All processes of the run must call this.

    Returns:
        The progress of the run. At the end, the folder holds the model, evaluations, and metrics of the whole run.

    Raises:
        UsageError: when the model, an environment, a file or an option doesn't exist, the engine can't be started, or
            the episodes make no pair.
        EngineError: when the engine can't be recovered.
        Stopped: when the run must end immediately. The progress is saved.
    """
    if config.player == "model" and config.model == "scratch" and not config.data.files:
        raise UsageError(
            "A model from scratch solves no tasks yet, so its episodes make no preference pairs. Use a trained model, "
            "such as --model runs/sft-textcraft/model, or let experts play with --player expert."
        )
    if config.reference.model:
        check_model(config.reference.model)

    def make_trainer(setup: TrainingSetup) -> PairTrainer:
        pairs = make_pairs(setup.episodes, config.pairs)
        tasks = len({pair.chosen.task_id for pair in pairs}), len({episode.task_id for episode in setup.episodes})
        rows, left_out = learnable(setup, pairs, config)
        tracker.say(f"Training on {len(rows)} pairs of episodes, from {tasks[0]} of {tasks[1]} tasks{left_out}.")
        given = trainer_arguments(config, folder, longest=2 * max(map(length, rows)))
        settings = on_one_gpu(dpo_settings(config, given))
        return PairTrainer(setup.model, rows, setup.chat, settings, _reference_of(config, setup))

    def play(held_out: Evaluator) -> list[Episode]:
        return play_pairs(config, held_out, stopping)

    return train_on_data(config, folder, tracker, stopping, make_trainer, play=None if config.data.files else play)


def learnable(setup: TrainingSetup, pairs: Sequence[Pair], config: DPOConfig) -> tuple[list[Row], str]:
    """Return the pairs that can be trained on, and the end of a sentence that says why others can't.

    Raises:
        UsageError: when there is none; the message says why.
    """
    limit = context_limit(config, setup.model)
    in_loss = [row for pair in pairs if all((row := encode_pair(setup.chat, pair)).values())]
    rows = [row for row in in_loss if longest_segment(row) <= limit.tokens]
    if not rows:
        raise UsageError(_why_none(config, limit, len(setup.episodes), len(pairs), len(in_loss)))
    masked, too_long = len(pairs) - len(in_loss), len(in_loss) - len(rows)
    left_out = f"; {too_long} more are longer than {limit}" if too_long else ""
    if masked:
        left_out += f"; in {masked} more, one side has no tokens in the loss (`loss: false`)"
    return rows, left_out


def play_pairs(config: DPOConfig, held_out: Evaluator, stopping: Stopping) -> list[Episode]:
    """Play several episodes of each of some training tasks with the initial model or experts, or read them back.

    All processes must call this; it returns the same episodes on all of them.

    Raises:
        TooManyFailed: when more episodes failed than `max_failed` allows.
        Stopped: when the run must end immediately. The model's finished episodes are kept.
    """
    folder, ranks, tracker = held_out.folder, held_out.ranks, held_out.tracker
    if not ranks.broadcast(folder.data.exists()):
        chosen = _tasks(config, held_out.worlds)
        who, count = f"the {config.player}", sum(len(tasks) for _, tasks in chosen)
        tracker.say(f"Playing {config.samples} episodes of each of {count} training tasks with {who}.")
        play = StoredPlay(
            [(world, episode_specs(tasks, samples=config.samples, seed=config.seed)) for world, tasks in chosen],
            folder.path / _PLAYING,
        )
        if config.player == "model":
            found = _by_model(config, held_out, play)
        else:
            played = stopping.heeded(_by_experts(config, chosen))
            found = list(tracker.phase("Playing pairs", played, count * config.samples))
        folder.keeps_data = config.player == "model"
        with ranks.errors_together():
            if ranks.is_main:
                try:
                    keep_episodes(found, config.data, who, folder, tracker)
                except UsageError as error:
                    if not play.folder.exists():
                        raise
                    used = f"--data.files {play.folder}/*/episodes.jsonl"
                    raise UsageError(f"{error} Another run can use them: {used}") from error
                tracker.say(f"To train another run on the same episodes: --data.files {folder.data}")
    if ranks.is_main:
        shutil.rmtree(folder.path / _PLAYING, ignore_errors=True)
    return folder.read_data()


def dpo_settings(config: DPOConfig, arguments: dict[str, Any]) -> TRLDPOConfig:
    """Return TRL's settings: `arguments` and those specific to DPO."""
    return TRLDPOConfig(
        **arguments,
        beta=config.beta,
        loss_type=[config.loss, "sft"] if config.imitation else [config.loss],
        loss_weights=[1.0, config.imitation] if config.imitation else None,
        label_smoothing=config.label_smoothing,
        ld_alpha=config.ld_alpha if config.ld_alpha < 1 else None,
        sync_ref_model=config.reference.sync > 0,
        ref_model_sync_steps=max(1, config.reference.sync),
        ref_model_mixup_alpha=config.reference.share,
        max_length=None,
        remove_unused_columns=False,
    )


def _tasks(config: DPOConfig, worlds: Sequence[OpenEnvironment]) -> list[tuple[OpenEnvironment, list[Task]]]:
    """Return training tasks of each environment, in proportion to its weight."""
    rng = np.random.default_rng([config.seed, config.samples])
    shares = apportion(max(1, config.data.episodes // config.samples), [world.weight for world in worlds], rng)
    return [
        (world, [world.tasks.train[i] for i in evenly(world.tasks.train.ids, share, rng)])
        for world, share in zip(worlds, shares, strict=True)
    ]


def _by_model(config: DPOConfig, held_out: Evaluator, play: StoredPlay) -> list[Episode]:
    """Play the episodes with the initial model; return them on the main process, and none on the others."""
    if missing := play.missing():
        policy = player(config, held_out.rollouts, held_out.chat, temperature=config.generation.temperature)
        play.play(missing, held_out.rollouts, policy, config, tracker=held_out.tracker, title="Playing pairs")
    with held_out.ranks.errors_together():
        found = play.episodes() if held_out.ranks.is_main else []
        FailureLimit(config.max_failed).count(map(EpisodeOutcome.of, found))
    return found


def _by_experts(config: DPOConfig, chosen: Sequence[tuple[OpenEnvironment, list[Task]]]) -> Iterator[Episode]:
    expert, turns, failed = Oracle(config.data.noise), config.horizon.longest, FailureLimit(config.max_failed)
    for world, tasks in chosen:
        # With one seed of the environment, so that the episodes of a task begin alike.
        specs = episode_specs(tasks, samples=config.samples, seed=config.seed)
        for episode in play_many(world.wrapped, expert, specs, horizon=turns):
            failed.count([EpisodeOutcome.of(episode)])
            yield episode


def _why_none(config: DPOConfig, limit: ContextLimit, episodes: int, pairs: int, in_loss: int) -> str:
    """Return why no pair can be trained on; `in_loss` of the `pairs` have tokens in the loss on both sides."""
    if in_loss:
        return (
            f"All {in_loss} pairs have a context of more than {limit}. {limit.remedy}, or play episodes with the habit "
            "window, which keeps contexts short."
        )
    if pairs:
        return f"In all {pairs} pairs, one side has no tokens in the loss: its replies are marked `loss: false`."
    return (
        f"The {episodes} episodes make no pair: no two episodes of the same task and agent start with the same context "
        f"and differ in score by at least pairs.min_gap, {config.pairs.min_gap:g}. Lower it, or play more episodes of "
        "each task."
    )


def _reference_of(config: DPOConfig, setup: TrainingSetup) -> Any:
    """Return the reference model, or None if it is the policy without its adapter."""
    if config.reference.model:
        model, chat = load_model(config.reference.model, dtype=setup.model.dtype, device=setup.model.device)
        if chat.tokenizer.get_vocab() != setup.chat.tokenizer.get_vocab():
            raise UsageError(
                f"The reference {config.reference.model} has another vocabulary than {config.model}; choose one with "
                "the same tokenizer."
            )
        return model.eval()
    return None if config.lora.rank else deepcopy(setup.model).eval()


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=value)
