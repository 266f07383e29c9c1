"""Encode recorded episodes as if a local model had played them: prompt and completion token ids.

The episodes may be from an expert, another model or a file, and from any agent.
"""

from __future__ import annotations

from dataclasses import replace

from agentgym_envs import Episode, Sample
from agentgym_envs.episodes.conversation import continued, replay

from agentgym_trainer.tokens.chat import Chat, Context
from agentgym_trainer.tokens.trajectory import trajectory


def encode(chat: Chat, episode: Episode) -> Episode:
    """Return the episode with the token ids that a local model would have sampled for its replies; logprobs are 0.

    Raises:
        ValueError: The episode's agent would not have produced such turns.
    """
    chat = chat.with_tools(episode.tools)
    context, turns = Context(chat), list(episode.turns)
    for i, (conversation, turn) in enumerate(replay(episode)):
        prompt, fresh = context.prompt(conversation)
        ids = tuple(chat.reply_ids(turn.reply.text))
        if turn.reply.finish == "length":
            ids = ids[:-1]  # a truncated reply has no end-of-turn token
        context.append_reply(ids)
        sample = Sample(prompt=tuple(prompt), ids=ids, logprobs=(0.0,) * len(ids), fresh=fresh)
        turns[i] = replace(turn, reply=replace(turn.reply, sample=sample))
    return replace(episode, turns=tuple(turns))


def next_context(chat: Chat, episode: Episode) -> tuple[int, ...]:
    """Return the token ids of the context for the next reply of a sampled episode: its last context, extended by the
    last reply and observation.

    Raises:
        ValueError: The episode failed or has no sampled ids, or its agent would not have produced such turns.
    """
    before, conversation = continued(episode)
    context = Context(chat.with_tools(episode.tools))
    context.resume(before, trajectory(episode).segments[-1].ids)
    context.prompt(conversation)
    return tuple(context.ids)
