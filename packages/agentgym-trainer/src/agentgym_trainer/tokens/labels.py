"""The replies of an expert in the policy's turns as tokens: labels, each after the context that the policy had."""

from __future__ import annotations

import math
from dataclasses import replace

from agentgym_envs import Episode

from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Segment, Trajectory, outline, own_turns


def label_trajectory(episode: Episode, chat: Chat, *, longest: float = math.inf) -> Trajectory:
    """Return a trajectory with a segment for each labeled turn: the tokens of the turn's recorded context, and the
    label as the only completion tokens, end-of-turn token included. Log-probabilities are 0.

    The contexts of an episode are prefixes of each other, which packs compute once.

    Args:
        episode: An episode with token ids, sampled or encoded.
        chat: Encodes the labels.
        longest: Labels that end beyond this number of tokens are left out.
    """
    chat = chat.with_tools(episode.tools)
    indices = {number: index for index, number in enumerate(own_turns(episode))}
    context: tuple[int, ...] = ()
    segments: list[Segment] = []
    for number, turn in enumerate(episode.turns):
        reply = turn.reply
        if reply.sample is None:
            continue  # an expert's turn before the policy's is part of the next prompt
        context = (() if reply.sample.fresh else context) + reply.sample.prompt
        if reply.label is not None:
            segment = _segment(context, tuple(chat.reply_ids(reply.label)), indices[number])
            segments += [segment] if len(segment.ids) <= longest else []
        context += reply.sample.ids
    return replace(outline(episode), segments=tuple(segments))


def _segment(context: tuple[int, ...], ids: tuple[int, ...], turn: int) -> Segment:
    prompt, completion = len(context), len(ids)
    return Segment(
        ids=context + ids,
        loss_mask=(False,) * prompt + (True,) * completion,
        logprobs=(0.0,) * (prompt + completion),
        turns=(-1,) * prompt + (turn,) * completion,
    )
