"""Value bootstrapping for episodes that the horizon truncated (`truncation` bootstrap)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from agentgym_envs import Episode
from torch import Tensor

from agentgym_trainer.config import Generation
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.encode import next_context
from agentgym_trainer.tokens.trajectory import Trajectory, single_reply_trajectory


def bootstrap_values(learner: Learner, chat: Chat, episodes: Sequence[Episode], generation: Generation) -> Tensor:
    """Return the critic's value at the end of each truncated episode. Every process must call this.

    The value is taken at the end of the episode's context, the last observation included. It is 0 for other episodes,
    and where the budgets of `generation` leave no token for another reply.

    Returns:
        The values, float32 [E], on the learner's device.

    Raises:
        ValueError: as `next_context`.
    """
    cut: list[int] = []
    made: list[Trajectory] = []
    for e, episode in enumerate(episodes):
        sampled = sum(len(turn.reply.sample.ids) for turn in episode.turns if turn.reply.sample)
        if episode.stop == "truncated" and not 0 < generation.max_completion_tokens <= sampled:
            context = next_context(chat, episode)
            if len(context) < generation.max_context:
                cut.append(e)
                # The value is taken before the reply, so it doesn't depend on the reply's token.
                made.append(single_reply_trajectory(context, (chat.end_id,), (0.0,)))
    values = learner.values(make_batch(made))
    return values.new_zeros(len(episodes)).index_put((torch.tensor(cut, device=values.device).long(),), values)
