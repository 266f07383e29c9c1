"""Imitation of a world's expert, so that reinforcement learning begins with a player who knows the grammar.

The very learner that reinforcement learning uses does it, with likelihood in place of the surrogate: the tokens and
the mask of what was said are then the same on both sides, end-of-turn token included.
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
    """Train on what was said in `episodes`, and yield the metrics of each optimizer step.

    Args:
        learner: Made with the learning rate of imitation.
        chat: Encodes the episodes.
        episodes: The demonstrations; failed ones are left out.
        epochs: Passes over them.
        batch: Episodes in an optimizer step.
        seed: Orders the episodes.
        ranks: The processes that share each step's episodes out among them; all have all episodes.
    """
    trajectories = [trajectory(encode(chat, episode)) for episode in episodes if not episode.failed]
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(trajectories))
        for start in range(0, len(order), batch):
            chosen = [trajectories[i] for i in ranks.share(order[start : start + batch].tolist())]
            packed, algorithm = make_batch(chosen), Imitation()
            experience = learner.compute_logprobs(packed, algorithm)
            yield learner.update(packed, experience, algorithm.compute_advantages(experience, learner.total), algorithm)
