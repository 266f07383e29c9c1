"""Warm start: imitation of an environment's expert, so that RL starts with a policy that knows the action format.

It uses the learner of reinforcement learning, with the likelihood in place of the surrogate loss. Tokens and
`loss_mask`, end-of-turn token included, are therefore the same as in RL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from agentgym_envs import Episode

from agentgym_trainer.algorithms import Imitation
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import encode
from agentgym_trainer.tokens.trajectory import trajectory


def warm_start(
    learner: Learner,
    chat: Chat,
    episodes: Sequence[Episode],
    *,
    epochs: int,
    batch: int,
    seed: int,
    ranks: Ranks,
) -> Iterator[dict[str, float]]:
    """Train on the completion tokens of `episodes`, and yield the metrics of each optimizer step.

    Args:
        learner: A learner with the learning rate of imitation.
        chat: Encodes the episodes.
        episodes: The demonstrations, the same on all processes; failed ones are skipped.
        epochs: Number of passes over the demonstrations.
        batch: Number of episodes per optimizer step.
        seed: Seed of the order of the episodes.
        ranks: The processes, each of which takes a share of every step's episodes.
    """
    trajectories = [trajectory(encode(chat, episode)) for episode in episodes if not episode.failed]
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(trajectories))
        for start in range(0, len(order), batch):
            chosen = [trajectories[i] for i in ranks.share(order[start : start + batch].tolist())]
            packed, algorithm = make_batch(chosen), Imitation()
            tokens = learner.compute_logprobs(packed, algorithm)
            yield learner.update(packed, tokens, algorithm.compute_advantages(tokens, learner.total), algorithm)
