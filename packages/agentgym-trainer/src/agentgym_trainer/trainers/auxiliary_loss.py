"""Auxiliary losses of reinforcement learning: SFT on demonstrations, and on an expert's labels of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgym_trainer.algorithms import Imitation
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.loss_term import LossTerm
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import Demonstrations
from agentgym_trainer.tokens.labels import label_trajectory
from agentgym_trainer.tokens.trajectory import Trajectory


def sft_term(demonstrations: Demonstrations | None, learner: Learner, step: int, weight: float) -> LossTerm | None:
    """Return the SFT loss on the demonstrations of a step, with this coefficient; None without demonstrations."""
    if demonstrations is None:
        return None
    own = demonstrations.of_step(step)
    return likelihood_term([item for _, item in own], [place for place, _ in own], learner, weight, name="sft/")


def label_term(
    groups: Sequence[EpisodeGroup], chat: Chat, learner: Learner, *, longest: int, weight: float
) -> LossTerm:
    """Return the SFT loss on the labels of episodes, with this coefficient: a mean over the tokens of all labels.

    Labels of all episodes that didn't fail are used, also of groups without variance in their rewards.

    Args:
        groups: This process's groups of a step.
        chat: Encodes the labels.
        learner: The learner that the term is for.
        longest: Labels that end beyond this number of tokens are left out.
        weight: Coefficient of the term.
    """
    labeled = {
        (group.number, episode.sample): replace(
            label_trajectory(episode, chat, longest=longest), group=str(group.number)
        )
        for group in groups
        for episode in group.usable
    }
    kept = {place: item for place, item in labeled.items() if item.segments}
    return likelihood_term([*kept.values()], [*kept], learner, weight, name="label/")


def likelihood_term(
    trajectories: Sequence[Trajectory], places: Sequence[tuple[int, int]], learner: Learner, weight: float, *, name: str
) -> LossTerm:
    """Return a loss term: the mean negative log-likelihood of the completion tokens of trajectories. See `LossTerm`."""
    batch, algorithm = make_batch(trajectories), Imitation()
    tokens = learner.compute_logprobs(batch, algorithm)
    advantages = algorithm.compute_advantages(tokens, learner.total)
    return LossTerm(batch, tokens, advantages, algorithm, places=places, weight=weight, name=name)
