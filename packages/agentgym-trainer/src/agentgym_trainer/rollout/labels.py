"""Labels in rollouts: in the turns of the policy, an expert is asked how it would have replied.

The policy's reply is executed, so that the expert sees the states that the policy reaches. This is DAgger's labeling
(Ross, Gordon and Bagnell 2011, arXiv 1011.0686) with beta 0 in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agentgym_envs import EnvFault, Episode, Policy, Reply, ReplyWrapper, TurnContext
from agentgym_envs.core.text_env import Malformed
from agentgym_envs.episodes.slots import NoExpertReply
from agentgym_envs.util.redaction import redacted


class LabelingPolicy(Policy):
    """A policy whose replies carry labels, `Reply.label`. What it replies doesn't depend on them."""

    def __init__(self, policy: Policy, expert: Policy | None, fraction: float) -> None:
        """Label the actions of `policy`; plans, reflections and summaries get no labels.

        Args:
            policy: Replies in all turns.
            expert: Gives the labels; None is the environment's expert.
            fraction: Probability that a turn is labeled.
        """
        self.name = policy.name
        self._policy = policy
        self._expert = expert
        self._fraction = fraction

    async def reply(self, context: TurnContext) -> Reply:
        """The policy's reply, in labeled turns with `label`, or `label_error` if the expert raised `EnvFault`."""
        reply = await self._policy.reply(context)
        # Drawn from a generator of its own, so that the policy samples the same with and without labels.
        chosen = self._fraction >= 1 or context.rng.spawn(1)[0].random() < self._fraction
        no_token_left = reply.sample is not None and not reply.sample.ids
        if context.kind != "act" or not chosen or no_token_left:
            return reply
        try:
            label = await self._label(context)
        except NoExpertReply:
            return reply
        except EnvFault as fault:
            return replace(reply, label_error=redacted(str(fault)))
        return replace(reply, label=label.text) if label.finish == "stop" else reply

    async def _label(self, context: TurnContext) -> Reply:
        if self._expert is not None:
            return await self._expert.reply(replace(context, rng=context.rng.spawn(1)[0]))
        if context.expert is None:
            raise NoExpertReply("This turn has no environment, and so no expert.")
        return await context.expert()

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context for the policy."""
        return self._policy.count_tokens(context)

    def forget(self, key: int) -> None:
        """Free what policy and expert keep for this attempt."""
        self._policy.forget(key)
        if self._expert is not None:
            self._expert.forget(key)


class LabelCounts(NamedTuple):
    """Counts over turns."""

    labels: int
    agreeing: int
    """Labels with the action that the policy took."""
    errors: int
    """Turns in which the expert raised an error."""


def count_labels(wrapped: ReplyWrapper, episodes: Sequence[Episode]) -> LabelCounts:
    """Count the labels of episodes of one environment.

    Args:
        wrapped: Parses the labels as it does replies.
        episodes: The episodes.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    labeled = [(turn, turn.reply.label) for turn in turns if turn.reply.label is not None]
    agreeing = sum(
        not isinstance(parsed := wrapped.parse(label), Malformed) and parsed == turn.action for turn, label in labeled
    )
    return LabelCounts(len(labeled), agreeing, sum(turn.reply.label_error is not None for turn in turns))
