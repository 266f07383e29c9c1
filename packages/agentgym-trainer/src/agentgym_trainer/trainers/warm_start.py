"""Warm start: imitation of an environment's expert, so that RL starts with a policy that knows the action format.

It uses the learner of reinforcement learning, with the likelihood in place of the surrogate loss. Tokens and
`loss_mask`, end-of-turn token included, are therefore the same as in RL. The experts' episodes are saved once all are
played. Rounds of DAgger may follow the cloning; each is saved when it ends, and begins with a new optimizer, so a
resumed run continues exactly with the first that is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from agentgym_envs import Episode, read_episodes
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.algorithms import Imitation
from agentgym_trainer.config import RLConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.finite_checks import check_weights
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.load import load_model
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.quantization import check_layers, round_to_nf4
from agentgym_trainer.models.weights import weights_of
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import demonstration
from agentgym_trainer.tokens.trajectory import Trajectory, Trimming
from agentgym_trainer.trainers.dagger import Round, check_experts
from agentgym_trainer.trainers.layers import Layers
from agentgym_trainer.trainers.model_setup import load_policy, model_from_scratch, policy_dtype, save_model, save_start
from agentgym_trainer.trainers.renaming import names_by_world, rename_share
from agentgym_trainer.trainers.setup import context_limit, play_tasks, refusing
from agentgym_trainer.trainers.training_data import imitated


@dataclass(frozen=True)
class WarmStarter:
    """Makes the initial model of an RL run: created or loaded, trained by imitation, and saved in the run folder."""

    config: RLConfig
    folder: RunFolder
    worlds: Sequence[OpenEnvironment]
    accelerator: Accelerator
    layers: Layers
    """How the model's layers are computed, from `choose_layers`."""
    console: RunConsole
    stopping: Stopping

    def make_start(self) -> None:
        """Train on the experts' episodes, then in rounds of DAgger. All processes must call this.

        A model whose weights are quantized later is rounded to NF4 at the end.

        Raises:
            UsageError: if the model can't be trained with these settings, the engine can't be started, an expert can't
                act in all states that DAgger reaches, or no reply of the demonstrations ends within the context.
            EngineError: if the engine can't be recovered.
            TooManyFailed: if more episodes failed than `max_failed` allows.
            OSError: if a file can't be written.
            Stopped, KeyboardInterrupt: if the run was told to end. Finished rounds are kept.
        """
        warm, ranks = self.config.warm_start, Ranks()
        if self._only_rounds:
            with ranks.errors_together():
                if ranks.is_main:
                    self._save_rounded()
            return
        if warm.dagger.rounds:
            check_experts(self.worlds)
        if warm.rename:
            names_by_world(self.worlds)  # what can't be renamed is refused before an expert plays
        rounds = [Round(self.config, number, self.folder.warm_start) for number in range(warm.dagger.rounds + 1)]
        played = imitated(self._demonstrations(), noise=warm.imitate_noise, labels=warm.imitate_labels)
        data = self._renamed(played * warm.copies, self.config.seed)
        for each in rounds:
            last = rounds[each.number - 1].model
            if each.number:
                data += self._renamed(each.play(last, self.worlds, self.console, self.stopping), each.seed)
            trained = self.folder.start if each is rounds[-1] else each.model
            if ranks.broadcast(trained.exists()):
                continue
            if each.number:
                set_seed(each.seed % 2**32, device_specific=True)  # for what a model draws while it trains
                model = load_policy(self.config, str(last), self.accelerator, dtype=torch.float32)
                self._train(f"Training DAgger round {each.number}", model, data, warm.dagger.epochs, each.seed, trained)
            else:
                self._train("Warm start", self._untrained(data), data, warm.epochs, self.config.seed, trained)
        if ranks.is_main:
            for each in rounds:
                shutil.rmtree(each.model, ignore_errors=True)

    @property
    def _only_rounds(self) -> bool:
        """Whether a pretrained model is rounded and nothing trains, which takes no float32 weights."""
        config = self.config
        return config.lora.quantize != "off" and config.model != "scratch" and not config.warm_start.episodes

    def _save_rounded(self) -> None:
        """Save the configured model, rounded to NF4 layer by layer in host memory."""
        config, dtype = self.config, policy_dtype(self.config)
        model, chat = load_model(config.model, dtype=dtype, device=torch.device("cpu"))
        round_to_nf4(model, dtype=dtype, device=self.accelerator.device)
        save_start(self.folder, model, chat)

    def _demonstrations(self) -> list[Episode]:
        """The experts' episodes, which the main process plays if no earlier one has."""
        config, ranks, file = self.config, Ranks(), self.folder.demonstrations
        wanted = config.warm_start.episodes
        with ranks.errors_together():
            if ranks.is_main and wanted and not file.exists():
                expert = Oracle(config.warm_start.noise, labels=config.warm_start.imitate_labels)
                played = self.stopping.heeded(play_tasks(expert, config, self.worlds, wanted))
                self.folder.save_demonstrations(list(self.console.phase("Collecting demonstrations", played, wanted)))
        return list(read_episodes(file)) if wanted else []

    def _renamed(self, episodes: Sequence[Episode], seed: int) -> list[Episode]:
        return rename_share(episodes, self.worlds, self.config.warm_start.rename, seed)

    def _untrained(self, seen: Sequence[Episode]) -> tuple[Any, Chat]:
        """The model before any training: from scratch, loaded, or merged from an adapter and its model."""
        config = self.config
        if config.model == "scratch":
            return model_from_scratch(config, self.worlds, Oracle(config.warm_start.noise), seen)
        return load_policy(config, config.model, self.accelerator, dtype=torch.float32)

    def _train(
        self, phase: str, loaded: tuple[Any, Chat], data: Sequence[Episode], epochs: int, seed: int, folder: Path
    ) -> None:
        """Train a model on demonstrations with a new optimizer, and save it in `folder`."""
        config, warm, ranks, (model, chat) = self.config, self.config.warm_start, Ranks(), loaded
        quantized = config.lora.quantize != "off"
        if quantized:
            check_layers(model)
        trimming = Trimming(context_limit(config, model))
        with ranks.errors_together():
            examples = encode_demonstrations(chat, data, trimming)
        if trimming.lost:
            self.console.say(str(trimming))
        total = epochs * -(-len(examples) // warm.batch)
        settings = replace(config.optimizer, lr=warm.lr, warmup=total // 10, schedule="linear")
        with refusing(config):
            actor = PolicyModel(model, temperature=config.generation.temperature, attention=self.layers.attention)
            learner = Learner(self.layers.applied(actor), self.accelerator, settings, total_steps=max(1, total))
        steps = warm_start(learner, examples, epochs=epochs, batch=warm.batch, seed=seed, ranks=ranks)
        for _ in self.console.phase(phase, steps, total):
            if ranks.any(self.stopping()):
                raise KeyboardInterrupt
        check_weights(learner.policy.parameters(), self.accelerator)
        if quantized and folder == self.folder.start:
            round_to_nf4(learner.policy, dtype=policy_dtype(config), device=self.accelerator.device)
        # All processes gather, and only the main one keeps the weights.
        tensors = weights_of(learner.policy, 0).tensors()
        weights = {name: tensor.cpu() for name, tensor in tensors if ranks.is_main}
        with ranks.errors_together():
            if ranks.is_main:
                save_model(learner.policy, chat, folder, weights)
        self.accelerator.free_memory()


def encode_demonstrations(chat: Chat, episodes: Sequence[Episode], trimming: Trimming) -> list[Trajectory]:
    """Return the trajectories of the episodes that didn't fail, with the turns that end within the budget of
    `trimming`.

    Raises:
        UsageError: if there are episodes, but nothing in them to train on.
    """
    whole = [demonstration(chat, episode) for episode in episodes if not episode.failed]
    trimmed = [replace(each, segments=tuple(map(trimming.trim, each.segments))) for each in whole]
    kept = [each for each in trimmed if any(any(segment.loss_mask) for segment in each.segments)]
    if episodes and not kept:
        why = "all of their actions are random: lower warm_start.noise, or set warm_start.imitate_labels"
        if trimming.total:
            why = f"no reply ends within {trimming.limit}: {trimming.limit.remedy.lower()}"
        elif not whole:
            why = f"all of them failed, the first with: {episodes[0].error}"
        raise UsageError(f"The {len(episodes)} demonstrations contain nothing to train on; {why}.")
    return kept


def warm_start(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    *,
    epochs: int,
    batch: int,
    seed: int,
    ranks: Ranks,
) -> Iterator[dict[str, float]]:
    """Train on the completion tokens of `trajectories`, and yield the metrics of each optimizer step.

    Args:
        learner: A learner with the learning rate of imitation.
        trajectories: The demonstrations, the same on all processes.
        epochs: Number of passes over the demonstrations.
        batch: Number of episodes per optimizer step.
        seed: Seed of the order of the episodes.
        ranks: The processes, each of which takes a share of every step's episodes.
    """
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(trajectories))
        for start in range(0, len(order), batch):
            chosen = [trajectories[i] for i in ranks.share(order[start : start + batch].tolist())]
            packed, algorithm = make_batch(chosen), Imitation()
            tokens = learner.compute_logprobs(packed, algorithm)
            yield learner.update(packed, tokens, algorithm.compute_advantages(tokens, learner.total), algorithm)
