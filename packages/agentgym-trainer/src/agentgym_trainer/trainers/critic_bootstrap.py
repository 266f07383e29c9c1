"""What a critic expects where episodes that the horizon truncated would have gone on (`truncation` bootstrap)."""

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
    """The critic's value at the end of each truncated episode's context, the last observation included, E, float32, on
    the learner's device; 0 for the other episodes, and where the budgets of `generation` leave no token to a next
    reply. Every process must call it.

    Raises:
        ValueError: as `next_context`.
    """
    cut: list[int] = []
    made: list[Trajectory] = []
    for e, episode in enumerate(episodes):
        said = sum(len(turn.reply.sample.ids) for turn in episode.turns if turn.reply.sample)
        if episode.stop == "truncated" and not 0 < generation.max_completion_tokens <= said:
            context = next_context(chat, episode)
            if len(context) < generation.max_context:
                cut.append(e)
                # The critic is asked before a token is sampled; which one that is makes no difference to it.
                made.append(single_reply_trajectory(context, (chat.end_id,), (0.0,)))
    values = learner.values(make_batch(made))
    return values.new_zeros(len(episodes)).index_put((torch.tensor(cut, device=values.device).long(),), values)
