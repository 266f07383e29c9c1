"""Recorded episodes as a local model would have played them: the ids of what was said, and of all that was read before.

Whoever said it, an expert, another model or a file from elsewhere, and whatever agent it was.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_envs import Episode, Sample
from agentgym_envs.dialogue import replay

from agentgym_trainer.chat import Chat, Context


def encode(chat: Chat, episode: Episode) -> Episode:
    """The episode with the ids that a local model would have sampled to say the same; their logprobs are 0.

    Raises:
        ValueError: when the episode's agent would not have come to such turns.
    """
    chat = chat.with_tools(episode.tools)
    context, turns = Context(chat), list(episode.turns)
    for i, (conversation, turn) in enumerate(replay(episode)):
        prompt, fresh = context.prompt(conversation)
        ids = tuple(chat.reply_ids(turn.reply.text))
        if turn.reply.finish == "length":
            ids = ids[:-1]  # who was cut off has not said that this was the end
        context.said(ids)
        sample = Sample(prompt=tuple(prompt), ids=ids, logprobs=(0.0,) * len(ids), fresh=fresh)
        turns[i] = replace(turn, reply=replace(turn.reply, sample=sample))
    return replace(episode, turns=tuple(turns))
