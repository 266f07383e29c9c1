"""Recorded episodes as a local model would have played them: the ids of what was said, and of all that was read before.

Whoever said it, an expert, another model or a file from elsewhere, and whatever agent it was.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_envs import Episode, Sample
from agentgym_envs.episodes.conversation import continued, replay

from agentgym_trainer.tokens.chat import Chat, Context
from agentgym_trainer.tokens.trajectory import trajectory


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
        context.append_reply(ids)
        sample = Sample(prompt=tuple(prompt), ids=ids, logprobs=(0.0,) * len(ids), fresh=fresh)
        turns[i] = replace(turn, reply=replace(turn.reply, sample=sample))
    return replace(episode, turns=tuple(turns))


def next_context(chat: Chat, episode: Episode) -> tuple[int, ...]:
    """The ids of the context in which a sampled episode would have gone on: all that the agent read and said, and the
    last observation, up to where its next reply would begin.

    Raises:
        ValueError: when the episode failed or has no sampled ids, or its agent would not have come to such turns.
    """
    before, conversation = continued(episode)
    context = Context(chat.with_tools(episode.tools))
    context.resume(before, trajectory(episode).segments[-1].ids)
    context.prompt(conversation)
    return tuple(context.ids)
