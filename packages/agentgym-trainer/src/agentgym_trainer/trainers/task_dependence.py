"""How much replies depend on their tasks: the mutual information of task and first reply, by in-batch cross-scoring.

Template collapse (RAGEN-2, arXiv 2604.06268): replies keep their entropy and no longer depend on the prompt. Entropy is
measured within one prompt and can't see it. So the policy is asked how likely each reply is after the prompts of other
tasks, too.

Deviation: of every task one first reply is scored, with all that the agent said in it; the authors also score later
turns and only what was said as reasoning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import single_reply_trajectory

_SAME = 1e-3
"""Nats by which the same log-probability may differ from one forward pass to another."""


@dataclass(frozen=True, slots=True, order=True)
class FirstReply:
    """What an agent replied to the first prompt of a task."""

    env: str
    number: int
    """Of the group, among all of the step."""
    task: str
    prompt: tuple[int, ...]
    """All ids up to the reply."""
    reply: tuple[int, ...]


def mutual_information(logp_RC: Tensor) -> tuple[float, float]:
    """How much replies tell about the prompts that they were given to, of which each is as likely as any other.

    Args:
        logp_RC: Log-probability of each reply after each prompt, in nats, float64; that after its own on the diagonal.

    Returns:
        The estimate of I(prompt; reply) in nats, at most log C: the mean over replies of
        log p(reply | prompt) - log mean_c p(reply | prompt_c), expected to be 0 where replies don't depend on the
        prompt. And the retrieval accuracy: how often the own prompt is the likeliest, ties counting as their share; 1/C
        by chance.
    """
    own_R, prompts = logp_RC.diagonal(), logp_RC.shape[1]
    nats = (own_R - (logp_RC.logsumexp(1) - math.log(prompts))).mean()
    likeliest_RC = logp_RC >= logp_RC.amax(1, keepdim=True) - _SAME
    return nats.item(), (likeliest_RC.diagonal() / likeliest_RC.sum(1)).mean().item()


def task_dependence(
    learner: Learner, ranks: Ranks, groups: Sequence[EpisodeGroup], *, tasks: int, max_context: int
) -> dict[str, float]:
    """`mutual_information` and `retrieval_accuracy` of the learner's policy as it is now, over tasks that all processes
    played; means over replies where there are several environments, and only tasks of the same are compared. Every
    process must call it.

    Args:
        learner: Scores `tasks` x `tasks` replies without a gradient.
        ranks: The processes, which share them.
        groups: Those that this process played, trained on or not.
        tasks: At most so many are compared, the first of the step.
        max_context: Replies are cut to as many tokens as fit behind the longest prompt.

    Returns:
        Nothing where no environment has two tasks with a reply.
    """
    chosen = _chosen(ranks.gather(_first_replies(groups)), tasks)
    pairs: list[tuple[int, int, int]] = []
    made: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for env, replies in enumerate(chosen):
        room = max_context - max(len(each.prompt) for each in replies)
        if room > 0:
            pairs += [(env, r, c) for r in range(len(replies)) for c in range(len(replies))]
            made += [(prompt.prompt, reply.reply[:room]) for reply in replies for prompt in replies]
    batch = make_batch(
        [single_reply_trajectory(prompt, reply, (0.0,) * len(reply)) for prompt, reply in ranks.share(made)]
    )
    logp_N = learner.logprobs(batch).double().cpu()
    logp_X = logp_N.new_zeros(len(batch.episodes)).index_add(0, batch.experience.episode_N, logp_N)
    scores = dict(ranks.gather(list(zip(ranks.share(pairs), logp_X.tolist(), strict=True))))
    found = [
        (*mutual_information(torch.tensor(square, dtype=torch.float64)), len(square))
        for env, replies in enumerate(chosen)
        if (env, 0, 0) in scores
        for square in [[[scores[env, r, c] for c in range(len(replies))] for r in range(len(replies))]]
    ]
    if not found:
        return {}
    replies = sum(count for *_, count in found)
    return {
        "mutual_information": sum(nats * count for nats, _, count in found) / replies,
        "retrieval_accuracy": sum(accuracy * count for _, accuracy, count in found) / replies,
    }


def _first_replies(groups: Sequence[EpisodeGroup]) -> list[FirstReply]:
    """One of each group: of its first episode that didn't fail and has one."""
    found: list[FirstReply] = []
    for group in groups:
        for episode in group.usable:
            sample = episode.turns[0].reply.sample if episode.turns else None
            if sample is not None and sample.ids:
                found.append(FirstReply(episode.env, group.number, episode.task_id, sample.prompt, sample.ids))
                break
    return found


def _chosen(found: Sequence[FirstReply], most: int) -> list[list[FirstReply]]:
    """Those of the first tasks of the step, by environment; of environments with at least two tasks."""
    by_env: dict[str, dict[str, FirstReply]] = {}
    for each in sorted(found):
        by_env.setdefault(each.env, {}).setdefault(each.task, each)
    compared = [list(replies.values()) for replies in by_env.values() if len(replies) > 1]
    return [replies[: max(2, most // len(compared))] for replies in compared]
